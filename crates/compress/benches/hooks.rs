//! What a hook takes beside a plain all_reduce: two ranks, as processes, and one bucket of 4 MiB, a matrix.
//!
//! `cargo bench -p phalanx-compress --bench hooks`. All take turns in the same processes. A turn is what the slower rank needs for it.

#![allow(clippy::print_stdout, reason = "a benchmark reports to its user")]

use half::bf16;
use phalanx::config::Source;
use phalanx::launch::{Launch, Outcome};
use phalanx::{Config, ProcessGroup, ReduceOp, Result};
use phalanx_compress::{Bucket, Cast, CommHook, Int8, PowerSgd, TopK};
use std::process::ExitCode;
use std::time::Instant;

const SHAPE: [usize; 2] = [1024, 1024];
/// Turns of each; one more goes before, to warm up.
const ROUNDS: usize = 15;

fn main() -> Result<ExitCode> {
    if Config::from_env()?.source != Source::Alone {
        compare(&phalanx::init()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let program =
        std::env::current_exe().map_err(|error| phalanx::Error::io("looking for this program", error))?;
    let outcome = Launch::new(program).ranks(2).prefix(false).run()?;
    if let Outcome::Failure(failure) = &outcome {
        println!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}

fn compare(group: &ProcessGroup) -> Result<()> {
    let bf16: Cast<bf16> = Cast::bf16();
    let mut hooks: Vec<(&str, Option<Box<dyn CommHook>>)> = vec![
        ("all_reduce of f32", None),
        ("bf16", Some(Box::new(bf16))),
        ("int8", Some(Box::new(Int8::new()))),
        ("top-k, 1 %", Some(Box::new(TopK::new(0.01)?))),
        ("PowerSGD, rank 1", Some(Box::new(PowerSgd::new(1)?))),
        ("PowerSGD, rank 4", Some(Box::new(PowerSgd::new(4)?))),
    ];
    let len = SHAPE.iter().product();
    let gradients: Vec<f32> =
        (0..len).map(|i| ((i * 7919 + group.rank()) % 10_007) as f32 / 1e4 - 0.5).collect();
    let mut times = vec![Vec::new(); hooks.len()];
    for round in 0..=ROUNDS {
        for ((_, hook), times) in hooks.iter_mut().zip(&mut times) {
            let mut sum = gradients.clone();
            let bucket = Bucket { index: 0, gradients: &mut sum, shapes: &[&SHAPE] };
            group.barrier()?;
            let start = Instant::now();
            match hook {
                Some(hook) => hook.reduce(bucket, group)?,
                None => group.all_reduce(bucket.gradients, ReduceOp::Sum)?,
            }
            let mut took = [start.elapsed().as_secs_f64() * 1e3];
            group.all_reduce(&mut took, ReduceOp::Max)?;
            if round > 0 {
                times.push(took[0]);
            }
        }
    }
    if group.rank() == 0 {
        println!("over {}: median ms, and how many times fewer bytes", group.describe());
        for ((name, hook), mut times) in hooks.into_iter().zip(times) {
            times.sort_by(f64::total_cmp);
            let ratio = hook.map_or(1.0, |hook| hook.traffic().ratio());
            println!("{name:<18} {:>9.2} {ratio:>8.1}", times[times.len() / 2]);
        }
    }
    group.clone().finalize()
}
