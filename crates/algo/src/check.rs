//! The proof that a schedule is right, for one world and one layout.

use crate::oracle::{self, Element, Ranks};
use crate::rendezvous::{self, At, Event};
use crate::{Action, Algorithm, Job, Span, Step};
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
    /// Elements that cross a wire one after the other on the longest path.
    pub moved: usize,
    /// Elements that are combined one after the other on the longest path.
    pub combined: usize,
    /// Whether a step receives into elements that it is sending.
    pub overlaps: bool,
}

/// Proves that `algorithm` does `job` right and at no higher cost than its card says.
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
    let proof = check_schedules(job, &job.schedules(algorithm))?;
    let card = algorithm.cost(job.volume());
    let measured = [
        ("rounds", proof.rounds, card.rounds),
        ("elements sent by one rank", proof.sent_max, card.sent),
        ("elements moved one after the other", proof.moved, card.moved),
        ("elements combined one after the other", proof.combined, card.combined),
    ];
    for (what, found, promised) in measured {
        if found as f64 > promised {
            return Err(format!("{found} {what}; the card says {promised}"));
        }
    }
    if proof.overlaps && !algorithm.card().overlaps {
        return Err("a step receives into what it sends; the card says that none does".into());
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
    let mut proof = Proof { overlaps: check_spans(&world, schedules)?, ..Proof::default() };
    for event in rendezvous::run(schedules)? {
        match event {
            Event::Transfer { from, to, round } => {
                let (send, recv) = (&schedules[from.rank][from.step].send, &schedules[to.rank][to.step].recv);
                let (send, recv) = (send.as_ref().expect("one end"), recv.as_ref().expect("the other end"));
                let combined = if recv.action == Action::Copy { 0 } else { recv.span.len() };
                let until =
                    world[from.rank].posted.later(world[to.rank].posted).plus(send.span.len(), combined);
                world[to.rank].arrived = Some((world[from.rank].read(&send.span), world[from.rank].heard));
                world[from.rank].sent += send.span.len();
                for rank in [from.rank, to.rank] {
                    world[rank].through = world[rank].through.later(until);
                }
                proof.rounds = proof.rounds.max(round);
            }
            Event::Done(at) => world[at.rank]
                .finish_step(&schedules[at.rank][at.step], oracle::everybody(job))
                .map_err(|what| format!("{at} {what}"))?,
        }
    }
    check_results(job, &world)?;
    proof.sent_max = world.iter().map(|m| m.sent).max().unwrap_or(0);
    let last = world.iter().fold(Path::default(), |last, m| last.later(m.through));
    Ok(Proof { moved: last.moved, combined: last.combined, ..proof })
}

/// Lengths of the longest paths to some moment.
#[derive(Debug, Clone, Copy, Default)]
struct Path {
    moved: usize,
    combined: usize,
}

impl Path {
    fn later(self, other: Self) -> Self {
        Self { moved: self.moved.max(other.moved), combined: self.combined.max(other.combined) }
    }

    fn plus(self, moved: usize, combined: usize) -> Self {
        Self { moved: self.moved + moved, combined: self.combined + combined }
    }
}

/// One rank while the schedules run.
struct Memory {
    /// What receives write, and sends read unless there is an input.
    buffer: Vec<Element>,
    /// What sends read, where that is separate.
    input: Option<Vec<Element>>,
    /// What the current step received; in place only when the step is through, for sends read what was there before.
    arrived: Option<(Vec<Element>, Ranks)>,
    /// The ranks that are known to have entered the operation.
    heard: Ranks,
    sent: usize,
    /// When the current step was posted, and when those of its halves that are through were so.
    posted: Path,
    through: Path,
}

impl Memory {
    fn before(job: &Job, rank: usize) -> Self {
        let (buffer, input) = match job.op() {
            OpKind::AllToAll => (oracle::output_before(job, rank), Some(oracle::before(job, rank))),
            _ => (oracle::before(job, rank), None),
        };
        let (posted, through) = (Path::default(), Path::default());
        Self { buffer, input, arrived: None, heard: 1 << rank, sent: 0, posted, through }
    }

    fn source(&self) -> &[Element] {
        self.input.as_ref().unwrap_or(&self.buffer)
    }

    fn read(&self, span: &Span) -> Vec<Element> {
        span.parts().flat_map(|part| &self.source()[part]).copied().collect()
    }

    /// Puts what the step received in place.
    fn finish_step(&mut self, step: &Step, everybody: Ranks) -> Result<(), String> {
        self.posted = self.through;
        let (Some(recv), Some((values, heard))) = (&step.recv, self.arrived.take()) else { return Ok(()) };
        self.heard |= heard;
        for (at, value) in recv.span.parts().flatten().zip(values) {
            let there = &mut self.buffer[at];
            let put = match recv.action {
                Action::Copy if value.from == 0 => Err("copies an element that the sender never had"),
                Action::Copy if value.from & (value.from - 1) != 0 && !value.finished => {
                    Err("copies a partial sum")
                }
                Action::Copy => Ok(value),
                Action::Combine => there.combine(value, false, everybody),
                Action::Finish => there.combine(value, true, everybody),
            };
            *there = put.map_err(|what| format!("{what} (from rank {}, to element {at})", recv.peer))?;
        }
        Ok(())
    }
}

/// Checks that all spans lie in the buffers and don't cover an element twice. Says whether a step receives into what it sends.
fn check_spans(world: &[Memory], schedules: &[Vec<Step>]) -> Result<bool, String> {
    let mut overlaps = false;
    for (rank, steps) in schedules.iter().enumerate() {
        for (step, Step { send, recv }) in steps.iter().enumerate() {
            let memory = &world[rank];
            let ends = [
                (send.as_ref().map(|s| &s.span), memory.source()),
                (recv.as_ref().map(|r| &r.span), &memory.buffer),
            ];
            for (span, buffer) in ends.into_iter().filter_map(|(span, buffer)| span.map(|s| (s, buffer))) {
                let at = At { rank, step };
                if span.parts().any(|part| part.end > buffer.len()) {
                    return Err(format!(
                        "{at}: {span:?} goes beyond the {} elements of the buffer",
                        buffer.len()
                    ));
                }
                if meet(&span.first, &span.second) {
                    return Err(format!("{at}: {span:?} covers elements twice"));
                }
            }
            if let (Some(send), Some(recv), None) = (send, recv, &memory.input) {
                overlaps |= send.span.parts().any(|a| recv.span.parts().any(|b| meet(&a, &b)));
            }
        }
    }
    Ok(overlaps)
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
            let Some((index, from, finished)) = oracle::after(job, rank, at) else { continue };
            if (found.index, found.from, found.finished) != (index, from, finished) {
                return Err(format!(
                    "rank {rank} ends with {found:?} at {at}, not with element {index} of ranks {from:b}, finished: {finished}"
                ));
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
