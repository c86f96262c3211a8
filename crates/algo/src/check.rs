//! The proof that a schedule is right, for one world and one layout.

use crate::memory::{Memory, Path};
use crate::oracle::{self, Element, Ranks};
use crate::unbuffered::{self, At, Event};
use crate::{Action, Algorithm, Buffers, Job, Recv, Send, Span, Step};
use phalanx_core::OpKind;
use std::ops::Range;

/// Largest world that [`check`] can take.
pub const WORLD_SIZE_MAX: usize = Ranks::BITS as usize;

/// What was measured on a correct schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// Transfers one after the other on the longest path.
    pub rounds: usize,
    /// Most elements that any one rank sends.
    pub sent_max: usize,
    /// Times that data has to reach another rank before it can go on, on the longest way.
    pub hops: usize,
    /// Messages of all ranks together.
    pub messages: usize,
    /// Elements that all ranks together send.
    pub traffic: usize,
    /// Elements that cross a wire one after the other on the longest path.
    pub moved: usize,
    /// Elements that are combined one after the other on the longest path.
    pub combined: usize,
    /// Whether a step receives into elements that it is sending.
    pub overlaps: bool,
    /// Most elements that any one rank has to keep besides the buffers of the call: those that it relays to others, and those
    /// that a step receives into what it sends.
    pub scratch: usize,
}

/// Proves that `algorithm` does `job` right and at no higher cost than its properties say.
///
/// All ranks are run at once on symbols instead of numbers, as [`check_schedules`] describes.
///
/// # Errors
/// What is wrong, in words that name the rank and the step.
///
/// # Panics
/// If the algorithm is for another operation or does not support the world size.
///
/// # Examples
/// ```
/// use phalanx_algo::{Algorithm, Job, check};
/// use phalanx_core::{Layout, OpKind};
///
/// let job = Job::new(OpKind::AllReduce, Layout::even(6, 60), 0);
/// let proof = check(Algorithm::AllReduceRing, &job).unwrap();
/// assert_eq!((proof.rounds, proof.sent_max), (10, 100)); // 2(P - 1) and 2(P - 1)n/P
/// ```
pub fn check(algorithm: Algorithm, job: &Job) -> Result<Proof, String> {
    let mut proof = check_schedules(&job.of_spans(algorithm), &job.schedules(algorithm))?;
    if algorithm.buffers() == Buffers::Contributions {
        let len = job.shape(0).layout.len();
        proof.combined += (job.world_size() - 1) * len;
        proof.scratch += job.world_size() * len;
    }
    let cost = algorithm.cost(job.volume());
    let measured = [
        ("rounds", proof.rounds, cost.rounds),
        ("elements sent by one rank", proof.sent_max, cost.sent),
        ("hops", proof.hops, cost.hops),
        ("messages", proof.messages, cost.messages),
        ("elements sent by all ranks", proof.traffic, cost.traffic),
        ("elements moved one after the other", proof.moved, cost.moved),
        ("elements combined one after the other", proof.combined, cost.combined),
        ("elements of scratch memory", proof.scratch, cost.scratch),
    ];
    for (what, found, promised) in measured {
        if found as f64 > promised {
            return Err(format!("{found} {what}; its properties say {promised}"));
        }
    }
    if proof.overlaps && !algorithm.properties().overlaps {
        return Err("a step receives into what it sends; its properties say that none does".into());
    }
    Ok(proof)
}

/// Proves that `schedules`, one a rank, do `job` right.
///
/// The ranks run by rendezvous, without any buffering: each send must meet one receive of equal length, nobody may wait
/// in a circle, and nothing may be left over. Elements are symbols that know their place, whose contributions are in
/// them, whether they were finished, and in which order they were combined. A combination must join disjoint
/// contributions to the same place; a copy must not spread a partial sum; and at the end every rank must hold what the
/// operation promises, with the same history (hence the same bits) on all ranks.
///
/// # Errors
/// What is wrong, in words that name the rank and the step.
pub fn check_schedules(job: &Job, schedules: &[Vec<Step>]) -> Result<Proof, String> {
    if job.world_size() > WORLD_SIZE_MAX {
        return Err(format!("{} ranks; at most {WORLD_SIZE_MAX} can be checked", job.world_size()));
    }
    if schedules.len() != job.world_size() {
        return Err(format!("{} schedules for {} ranks", schedules.len(), job.world_size()));
    }
    let mut world: Vec<_> = (0..job.world_size()).map(|rank| Memory::before(job, rank)).collect();
    let overlap = check_spans(&world, schedules)?;
    let (mut rounds, mut messages) = (0, 0);
    for event in unbuffered::run(schedules)? {
        match event {
            Event::Transfer { from, to, round } => {
                let (Some(send), Some(recv)) =
                    (&schedules[from.rank][from.step].send, &schedules[to.rank][to.step].recv)
                else {
                    unreachable!("a transfer has two ends");
                };
                transfer(&mut world, (from.rank, send), (to.rank, recv));
                rounds = rounds.max(round);
                messages += 1;
            }
            Event::Done(at) => world[at.rank]
                .finish_step(&schedules[at.rank][at.step], oracle::everybody(job))
                .map_err(|what| format!("{at} {what}"))?,
        }
    }
    check_results(job, &world)?;
    let last = world.iter().fold(Path::default(), |last, memory| last.later(memory.through));
    Ok(Proof {
        rounds,
        sent_max: world.iter().map(|memory| memory.sent).max().unwrap_or(0),
        hops: world.iter().map(|memory| memory.hops_max).max().unwrap_or(0),
        messages,
        traffic: world.iter().map(|memory| memory.sent).sum(),
        moved: last.moved,
        combined: last.combined,
        overlaps: overlap > 0,
        scratch: overlap + (0..world.len()).map(|rank| relayed(job, rank, &world[rank])).max().unwrap_or(0),
    })
}

/// Takes a message from one rank's memory to the other's desk.
fn transfer(world: &mut [Memory], (src, send): (usize, &Send), (dst, recv): (usize, &Recv)) {
    let len = recv.span.len();
    let combined = if recv.action == Action::Copy { 0 } else { len };
    let until = world[src].posted.later(world[dst].posted).plus(len, combined);
    world[dst].arrived = Some((world[src].read(&send.span), world[src].heard));
    world[dst].arrived_hops = world[src].hops(&send.span) + 1;
    world[src].sent += len;
    for rank in [src, dst] {
        world[rank].through = world[rank].through.later(until);
    }
}

/// Elements that a rank got though the call gave it no room for them.
fn relayed(job: &Job, rank: usize, memory: &Memory) -> usize {
    let before = oracle::before(job, rank);
    let got = |at: &usize| before[*at] == Element::BLANK && memory.buffer[*at] != Element::BLANK;
    if memory.input.is_some() {
        return 0;
    }
    (0..before.len()).filter(got).filter(|&at| oracle::after(job, rank, at).is_none()).count()
}

/// Checks that all spans lie in the buffers and don't cover an element twice. Returns the length of the longest receive into
/// what its own step sends.
fn check_spans(world: &[Memory], schedules: &[Vec<Step>]) -> Result<usize, String> {
    let mut overlap = 0;
    for (rank, steps) in schedules.iter().enumerate() {
        let memory = &world[rank];
        for (step, halves) in steps.iter().enumerate() {
            let sent = halves.send.as_ref().map(|s| &s.span);
            let received = halves.recv.as_ref().map(|r| &r.span);
            for (span, len) in [(sent, memory.source().len()), (received, memory.buffer.len())] {
                span.map_or(Ok(()), |span| check_span(span, len))
                    .map_err(|what| format!("{}: {what}", At { rank, step }))?;
            }
            if let (Some(sent), Some(received), None) = (sent, received, &memory.input)
                && sent.parts().any(|a| received.parts().any(|b| meet(&a, &b)))
            {
                overlap = overlap.max(received.len());
            }
        }
    }
    Ok(overlap)
}

fn check_span(span: &Span, len: usize) -> Result<(), String> {
    if span.parts().any(|part| part.end > len) {
        Err(format!("{span:?} goes beyond the {len} elements of the buffer"))
    } else if meet(&span.first, &span.second) {
        Err(format!("{span:?} covers elements twice"))
    } else {
        Ok(())
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// Compares what every rank holds with the oracle, and the histories of equal elements with each other.
fn check_results(job: &Job, world: &[Memory]) -> Result<(), String> {
    let everybody = oracle::everybody(job);
    let mut histories = vec![None; world.iter().map(|m| m.buffer.len()).max().unwrap_or(0)];
    for (rank, memory) in world.iter().enumerate() {
        if job.op() == OpKind::Barrier && memory.heard != everybody {
            return Err(format!("rank {rank} leaves the barrier before it heard of all: {:b}", memory.heard));
        }
        for (at, found) in memory.buffer.iter().enumerate() {
            let Some(expected) = oracle::after(job, rank, at) else { continue };
            if !found.same_as(expected) {
                return Err(format!("rank {rank} ends with {found} at {at}, not with {expected}"));
            }
            let first = *histories[at].get_or_insert(found.history);
            if reduces(job.op()) && first != found.history {
                return Err(format!(
                    "rank {rank} combined element {at} in another order than the ranks before it"
                ));
            }
        }
    }
    Ok(())
}

fn reduces(op: OpKind) -> bool {
    matches!(op, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Reduce)
}
