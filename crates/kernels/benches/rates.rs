//! Every kernel beside a copy that moves as many bytes and beside the sum of `f32`, as one table: the bar is 0.9 of the copy's rate.
//!
//! `cargo bench -p phalanx-kernels --bench rates -- [WORDS]`: only lines that have every one of these words, as in `-- bf16 "256 KiB"`. It is
//! the fastest instance that is measured, or the one that a word names: `-- avx2`. The rounds of a line take turns with those of the copy and
//! of the sum of `f32`, so that what disturbs one disturbs the others; figures are medians.

#![allow(clippy::print_stdout, reason = "a benchmark reports to its user")]

use phalanx_core::{DType, ReduceOp};
use phalanx_kernels::{Conversion, HalfSum, Instance, Kernel, copy_slice};
use std::env;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of one source. The first cache, the second, the third, memory.
const SIZES: [(&str, usize); 4] =
    [("16 KiB", 16 << 10), ("256 KiB", 256 << 10), ("4 MiB", 4 << 20), ("64 MiB", 64 << 20)];

/// Rounds of a line, fewer where one is long, and bytes that each of them moves at least.
const ROUNDS: [usize; 2] = [31, 7];
const ROUND_BYTES: usize = 6 << 20;

/// A small value of any type, so that nothing overflows or turns subnormal however often it is added to.
const FILL: u8 = 0x3a;

/// What is measured: the name, the bytes that it moves for every two bytes of a source, and one call.
type Case = (String, usize, Box<dyn FnMut(&mut Buffers, usize)>);

/// A destination that is a source too, a source, and one of twice the length for sums in `f32`.
struct Buffers {
    into: Vec<u8>,
    from: Vec<u8>,
    wide: Vec<u8>,
}

impl Buffers {
    fn new(size: usize) -> Self {
        Self { into: vec![FILL; size], from: vec![FILL; size], wide: vec![FILL; 2 * size] }
    }
}

fn main() {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let named = |instance: &Instance| words.iter().any(|word| word == instance.name());
    let best = Instance::best();
    println!("{:<34}{:>9}{:>12}{:>8}{:>9}{:>9}", "", "size", "ns", "GB/s", "of copy", "of f32");
    for instance in Instance::ALL.into_iter().filter(|i| i.is_available() && (*i == best || named(i))) {
        for (name, size) in SIZES {
            let mut buffers = Buffers::new(size);
            for (what, moved, mut call) in cases(instance) {
                let line = format!("{instance} {what} {name}");
                if words.iter().all(|word| line.contains(word.as_str())) {
                    let (ns, of_copy, of_f32) = measured(instance, &mut buffers, size, moved, &mut call);
                    let rate = (moved * size) as f64 / 2.0 / ns;
                    println!(
                        "{:<34}{name:>9}{ns:>12.0}{rate:>8.1}{of_copy:>9.2}{of_f32:>9.2}",
                        format!("{instance} {what}")
                    );
                }
            }
        }
    }
}

/// Everything that an instance does.
fn cases(instance: Instance) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            if let Some(kernel) = Kernel::with(instance, op, dtype) {
                let call =
                    move |b: &mut Buffers, len: usize| kernel.combine(&mut b.into[..len], &b.from[..len]);
                cases.push((format!("{op} {dtype}"), 6, Box::new(call)));
            }
            if op == ReduceOp::Avg
                && let Some(kernel) = Kernel::with(instance, op, dtype)
            {
                for by in [2, 3] {
                    let call = move |b: &mut Buffers, len: usize| {
                        kernel.combine_last(&mut b.into[..len], &b.from[..len], by);
                    };
                    cases.push((format!("{op} by {by} {dtype}"), 6, Box::new(call)));
                }
            }
            if op == ReduceOp::Sum
                && let Some(sum) = HalfSum::with(instance, op, dtype)
            {
                let begin = move |b: &mut Buffers, len: usize| {
                    sum.begin(&b.into[..len], &b.from[..len], &mut b.wide[..2 * len]);
                };
                let add = move |b: &mut Buffers, len: usize| sum.add(&mut b.wide[..2 * len], &b.from[..len]);
                let end = move |b: &mut Buffers, len: usize| {
                    sum.end(&b.wide[..2 * len], &b.from[..len], &mut b.into[..len], 3);
                };
                cases.push((format!("begin {op} {dtype} as f32"), 8, Box::new(begin)));
                cases.push((format!("add {op} {dtype} as f32"), 10, Box::new(add)));
                cases.push((format!("end {op} {dtype} as f32"), 8, Box::new(end)));
            }
        }
        if let Some(conversion) = Conversion::with(instance, dtype) {
            let widen =
                move |b: &mut Buffers, len: usize| conversion.widen(&b.from[..len], &mut b.wide[..2 * len]);
            let narrow =
                move |b: &mut Buffers, len: usize| conversion.narrow(&b.wide[..2 * len], &mut b.into[..len]);
            cases.push((format!("widen {dtype}"), 6, Box::new(widen)));
            cases.push((format!("narrow {dtype}"), 6, Box::new(narrow)));
        }
    }
    cases
}

/// Nanoseconds a call, and the rate in bytes moved of the call by that of a copy and by that of a sum of `f32`.
fn measured(
    instance: Instance,
    buffers: &mut Buffers,
    size: usize,
    moved: usize,
    call: &mut dyn FnMut(&mut Buffers, usize),
) -> (f64, f64, f64) {
    let bytes = moved * size / 2;
    // A copied byte is one read and one write.
    let (from, mut into) = (vec![FILL; bytes / 2], vec![FILL; bytes / 2]);
    let f32s = Kernel::with(instance, ReduceOp::Sum, DType::F32).expect("f32 can be summed");
    // So many bytes in each of two buffers as move as many in all.
    let f32_len = (bytes / 3).next_multiple_of(4).min(buffers.wide.len());
    let (mut a, b) = (vec![FILL; f32_len], vec![FILL; f32_len]);
    let calls = ROUND_BYTES.div_ceil(bytes);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS[usize::from(bytes > 16 * ROUND_BYTES)] {
        times[0].push(timed(calls, || call(black_box(buffers), size)));
        times[1].push(timed(calls, || copy_slice(black_box(&mut into), black_box(&from))));
        times[2].push(timed(calls, || f32s.combine(black_box(&mut a), black_box(&b))));
    }
    // Overwritten, or sums of many rounds would be infinite.
    buffers.into.fill(FILL);
    buffers.wide.fill(FILL);
    let [ns, copy, f32s] = times.map(median);
    (ns, copy / ns, f32s / ns)
}

/// Nanoseconds of one of `calls`, after one that isn't counted: other buffers were in the caches.
fn timed(calls: usize, mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64() * 1e9 / calls as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
