//! A rank: works in the groups of its shape until an operation fails, and says whom the error names. The victim hurts itself.

use super::plan::{End, Harm, Plan, Shape};
use crate::support;
use phalanx::error::Cause;
use phalanx::{Error, ProcessGroup, ReduceOp};
use phalanx_testkit::oracle::Random;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGTERM;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any job may take.
const FOREVER: Duration = Duration::from_secs(600);

/// The program of a process of the job.
pub(crate) fn run(plan: &Plan) {
    // Who is asked to end says first what it knows.
    signal_hook::flag::register(SIGTERM, Arc::default()).expect("there is such a signal");
    let world = phalanx::init().expect("the ranks come together");
    let rank = world.rank();
    // The victim may be done with its groups, and hurt itself, before others have theirs.
    let (groups, error) = match groups(plan, &world) {
        Ok(groups) => {
            let error = work_on(plan, &world, &groups);
            (groups, error)
        }
        Err(error) => (Vec::new(), error),
    };
    support::say("failed", format!("{} {error}", named(&error)));
    match plan.end(rank) {
        End::Panic => panic!("{error}"),
        End::Drop => drop((groups, world)),
        End::Exit => std::process::exit(1),
    }
    std::process::exit(1)
}

/// The groups in which the rank works in each step.
fn groups(plan: &Plan, world: &ProcessGroup) -> phalanx::Result<Vec<ProcessGroup>> {
    let (rank, width) = (world.rank(), plan.width());
    let divided = |color: usize| Ok(world.split(Some(color as u32), 0)?.expect("this rank gave a color"));
    match plan.shape {
        Shape::World => Ok(vec![world.clone()]),
        Shape::Mesh => Ok(vec![divided(rank / width)?, divided(rank % width)?]),
        Shape::Split => Ok(vec![divided(2 * rank / plan.ranks)?]),
    }
}

/// Works in the groups until an operation fails. The victim hurts itself before its step.
fn work_on(plan: &Plan, world: &ProcessGroup, groups: &[ProcessGroup]) -> Error {
    let mut order = Random::new(plan.seed);
    let error = (0..).find_map(|step| {
        if world.rank() == plan.victim && step == plan.step {
            strike(plan.harm);
        }
        let kind = order.below(4);
        let len = 1 << order.below(15);
        let in_all = (plan.shape == Shape::Split && step % 7 == 6).then_some(world);
        groups.iter().chain(in_all).find_map(|group| work(group, kind, len).err())
    });
    error.expect("the loop ends only with an error")
}

fn work(group: &ProcessGroup, kind: usize, len: usize) -> phalanx::Result<()> {
    let ranks = group.world_size();
    match kind {
        0 => group.barrier(),
        1 => {
            let mut all = vec![0.0f32; len * ranks];
            group.all_gather(&vec![group.rank() as f32; len], &mut all)
        }
        2 => {
            let sum = group.all_reduce_async(vec![1.0f32; len], ReduceOp::Sum)?.wait()?;
            assert!(sum.iter().all(|&one| one == ranks as f32), "a wrong sum");
            Ok(())
        }
        _ => {
            let mut sum = vec![1.0f32; len];
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
            assert!(sum.iter().all(|&one| one == ranks as f32), "a wrong sum");
            Ok(())
        }
    }
}

fn strike(harm: Harm) {
    support::say("dying", support::now_ms());
    let send = |signal| kill_process(getpid(), signal).expect("it is our own process");
    match harm {
        Harm::Panic => panic!("chaos"),
        Harm::ExitZero => std::process::exit(0),
        Harm::ExitThree => std::process::exit(3),
        Harm::Kill => send(Signal::KILL),
        Harm::Hang => std::thread::sleep(FOREVER),
        Harm::Stop => send(Signal::STOP),
    }
}

/// Whom an error names: ranks with commas between them, or `nobody`.
fn named(error: &Error) -> String {
    let of_cause = |cause: &Cause| match cause {
        Cause::TimedOut { missing, .. } => missing.clone(),
        Cause::Deadlock { waits } => waits.iter().map(|wait| wait.peer.clone()).collect(),
        Cause::Mismatch { left, right, .. } => vec![left.0.clone(), right.0.clone()],
        other => other.culprit().cloned().into_iter().collect(),
    };
    let peers = match error {
        Error::PeerLost { peer, .. } | Error::Aborted { peer, .. } | Error::Protocol { peer, .. } => {
            vec![peer.clone()]
        }
        Error::Timeout { missing, .. } => missing.clone(),
        Error::Deadlock { cause, .. } | Error::Poisoned { cause, .. } => of_cause(cause),
        Error::Mismatch { left, right, .. } => vec![left.0.clone(), right.0.clone()],
        _ => Vec::new(),
    };
    let ranks: Vec<_> = peers.iter().map(|peer| peer.rank.to_string()).collect();
    if ranks.is_empty() { "nobody".into() } else { ranks.join(",") }
}
