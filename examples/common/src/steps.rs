//! What communication adds to a training step: two ranks, as processes of one thread each, whatever library they train with.
//!
//! Several kinds of steps take turns in the same processes, a few of each at a time: without communication, with a barrier in its place, with the
//! gradients of all ranks. A step is what the slower rank needs for it.
#![allow(clippy::print_stdout, reason = "a benchmark reports to its user")]

use phalanx::config::Source;
use phalanx::launch::{Launch, Outcome};
use phalanx::{Config, ProcessGroup, ReduceOp};
use std::process::ExitCode;
use std::time::Instant;

/// Turns of each kind; one more goes before, to warm up.
const ROUNDS: usize = 12;

/// Measures the cases that the program was asked for, or all, on two ranks that it starts; or, if a launcher has started it, on the launcher's.
///
/// # Errors
/// Those of `measure` and of the group.
pub fn run(
    cases: &[&str],
    measure: impl Fn(&ProcessGroup, &str) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    if Config::from_env()?.source != Source::Alone {
        let group = phalanx::init()?;
        for case in cases {
            // Cargo adds an argument of its own, `--bench`.
            if std::env::args().skip(1).all(|arg| arg == *case || arg.starts_with("--")) {
                measure(&group, case)?;
            }
        }
        group.finalize()?;
        return Ok(ExitCode::SUCCESS);
    }
    // One thread a rank: with two ranks on two cores more would only be in each other's way.
    let launch = Launch::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).ranks(2);
    let outcome = launch.env("RAYON_NUM_THREADS", "1").env("OMP_NUM_THREADS", "1").run()?;
    if let Outcome::Failure(failure) = &outcome {
        println!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}

/// How long a step took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Milliseconds of the whole step.
    pub step: f64,
    /// Milliseconds of its backward pass, with what is sent in it and after it.
    pub backward: f64,
}

/// Times a step by its three parts, of which the second is the backward pass.
///
/// # Errors
/// Those of the parts.
pub fn time<L, G>(
    forward: impl FnOnce() -> anyhow::Result<L>,
    backward: impl FnOnce(L) -> anyhow::Result<G>,
    optimize: impl FnOnce(G) -> anyhow::Result<()>,
) -> anyhow::Result<Times> {
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let loss = forward()?;
    let passed = Instant::now();
    let grads = backward(loss)?;
    let backward = ms(passed);
    optimize(grads)?;
    Ok(Times { step: ms(start), backward })
}

/// A kind of step.
pub trait Trainer {
    /// Makes a step.
    ///
    /// # Errors
    /// The library's.
    fn step(&mut self) -> anyhow::Result<Times>;
}

/// Has trainers make `steps` steps at a time, in turns, and prints a table of what each kind needs, beside the first. Returns the medians.
///
/// # Errors
/// Those of the trainers and of the group.
pub fn compare(
    group: &ProcessGroup,
    title: &str,
    steps: usize,
    trainers: &mut [(&str, Box<dyn Trainer + '_>)],
) -> anyhow::Result<Vec<Times>> {
    let mut times: Vec<Vec<Times>> = trainers.iter().map(|_| Vec::new()).collect();
    for round in 0..=ROUNDS {
        for ((_, trainer), times) in trainers.iter_mut().zip(&mut times) {
            group.barrier()?;
            for step in 0..=steps {
                let time = trainer.step()?;
                // The first steps of all, and the first after another kind's, find cold caches.
                if round > 0 && step > 0 {
                    times.push(time);
                }
            }
        }
    }
    if group.rank() == 0 {
        println!("{title}, {}", group.describe());
        println!("step         median ms    min ms  overhead  backward ms");
    }
    let mut medians: Vec<Times> = Vec::new();
    for ((name, _), times) in trainers.iter().zip(&times) {
        let of_slower = |part: fn(&Times) -> f64| -> anyhow::Result<Vec<f64>> {
            let mut all: Vec<f64> = times.iter().map(part).collect();
            group.all_reduce(&mut all, ReduceOp::Max)?;
            all.sort_by(f64::total_cmp);
            Ok(all)
        };
        let (steps, backwards) = (of_slower(|time| time.step)?, of_slower(|time| time.backward)?);
        let (step, backward) = (steps[steps.len() / 2], backwards[backwards.len() / 2]);
        let overhead = (step / medians.first().map_or(step, |alone| alone.step) - 1.0) * 100.0;
        if group.rank() == 0 {
            println!("{name:<12} {step:>9.2} {:>9.2} {overhead:>7.1} % {backward:>12.2}", steps[0]);
        }
        medians.push(Times { step, backward });
    }
    Ok(medians)
}
