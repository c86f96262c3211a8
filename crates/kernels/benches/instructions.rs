//! Instructions a KiB, counted under valgrind: what a noisy machine can repeat, and what shows that a loop is no longer
//! made of vectors.
//!
//! Compares with `instructions.txt`, or writes it with `--bless`. AVX-512 isn't counted: valgrind doesn't know it. The counts
//! depend on the compiler, so a new one may need a new table: read what changed before blessing it.

#![allow(clippy::print_stdout, reason = "a benchmark reports to its user")]

use phalanx_core::{DType, ReduceOp};
use phalanx_kernels::{Instance, Kernel};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::process::{Command, ExitCode};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
const KIB: usize = 64;
const TOLERANCE: f64 = 0.02;

/// How the counted process is told what to do: this word, then the number of the case.
const CHILD: &str = "counted";

const INSTANCES: [Instance; 2] = [Instance::Baseline, Instance::Avx2];

/// A handful that stands for all: each way of computing, and more than two sources and one destination.
const CASES: [(ReduceOp, DType, usize, usize); 13] = [
    (ReduceOp::Sum, DType::F32, 2, 1),
    (ReduceOp::Sum, DType::F32, 4, 2),
    (ReduceOp::Avg, DType::F64, 3, 1),
    (ReduceOp::Max, DType::F32, 2, 1),
    (ReduceOp::Sum, DType::BF16, 2, 1),
    (ReduceOp::Avg, DType::BF16, 4, 1),
    (ReduceOp::Min, DType::BF16, 2, 1),
    (ReduceOp::Sum, DType::F16, 2, 1),
    (ReduceOp::Prod, DType::I8, 2, 1),
    (ReduceOp::Min, DType::U64, 2, 1),
    (ReduceOp::Avg, DType::I8, 2, 1),
    (ReduceOp::Avg, DType::I32, 2, 1),
    (ReduceOp::Avg, DType::I64, 2, 1),
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [word, instance, case, ..] = &args[..]
        && word == CHILD
    {
        let (instance, case) = (instance.parse().unwrap_or(0), case.parse().unwrap_or(0));
        child(INSTANCES[instance], CASES[case]);
        return ExitCode::SUCCESS;
    }
    if !cfg!(target_arch = "x86_64") || Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: instructions are counted with valgrind, on x86-64, and it is not there");
        return ExitCode::SUCCESS;
    }
    compare(&measured(), args.iter().any(|arg| arg == "--bless"))
}

/// One warm call, so that nothing is found out for the first time in the counted one.
fn child(instance: Instance, (op, dtype, sources, destinations): (ReduceOp, DType, usize, usize)) {
    let Some(kernel) = Kernel::with(instance, op, dtype) else { return };
    let mut buffers = vec![vec![0x3au8; KIB << 10]; sources];
    let into: Vec<*mut u8> = buffers[..destinations].iter_mut().map(Vec::as_mut_ptr).collect();
    let from: Vec<*const u8> = buffers.iter_mut().map(|b| b.as_mut_ptr().cast_const()).collect();
    // SAFETY: every pointer is good for the whole of its own buffer; destinations are sources.
    unsafe { kernel.reduce(&into, &from, KIB << 10, sources) };
    counted(kernel, &into, &from);
}

/// What valgrind is told to count.
#[inline(never)]
fn counted(kernel: Kernel, into: &[*mut u8], from: &[*const u8]) {
    // SAFETY: as in `child`.
    unsafe { kernel.reduce(black_box(into), black_box(from), KIB << 10, from.len()) };
}

/// The lines of the table, and the instructions a KiB of each.
fn measured() -> Vec<(String, f64)> {
    let program = env::current_exe().expect("a running program has a path");
    let mut lines = Vec::new();
    for (i, instance) in INSTANCES.iter().enumerate() {
        for (c, (op, dtype, sources, destinations)) in CASES.iter().enumerate() {
            let out = Command::new("valgrind")
                .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"])
                .arg(&program)
                .args([CHILD, &i.to_string(), &c.to_string()])
                .output()
                .expect("valgrind ran a moment ago");
            let log = String::from_utf8_lossy(&out.stderr);
            let count = log
                .lines()
                .find_map(|line| line.split_once("Collected :")?.1.trim().parse::<f64>().ok())
                .filter(|&count| count > 0.0);
            let name = format!("{instance} {op} {dtype} {sources} to {destinations}");
            match count {
                Some(count) => lines.push((name, count / KIB as f64)),
                None => println!("{name}: not counted, this machine can't run it under valgrind"),
            }
        }
    }
    lines
}

fn compare(measured: &[(String, f64)], bless: bool) -> ExitCode {
    let before = fs::read_to_string(TABLE).unwrap_or_default();
    let mut table =
        "# Instructions a KiB of one source, by `cargo bench -p phalanx-kernels --bench instructions`.\n"
            .to_owned();
    let mut worst: f64 = 0.0;
    for (name, count) in measured {
        let old =
            before.lines().find_map(|line| line.strip_prefix(name.as_str())?.trim().parse::<f64>().ok());
        let change = old.map_or(f64::INFINITY, |old| count / old - 1.0);
        worst = worst.max(change.abs());
        println!(
            "{name:<28} {count:8.1}  {}",
            if change.is_finite() { format!("{:+.1} %", change * 100.0) } else { "new".to_owned() }
        );
        let _ = writeln!(table, "{name:<28} {count:8.1}");
    }
    if bless {
        fs::write(TABLE, table).expect("the table can be written");
    } else if worst > TOLERANCE {
        println!(
            "more than {} % away from {TABLE}: find out why, or write it anew with `-- --bless`",
            TOLERANCE * 100.0
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
