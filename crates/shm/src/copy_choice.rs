//! By which copy two ranks stage what they have not read before, where the memory in which they stage changes hands: vectors, or the C library's copy.
//!
//! In cells that change hands each rank writes what it has read, so that it owns the lines. What only one of them gives is different, and what is combined: its reader has read
//! those lines last, and they must be taken from it. Vectors take one after the other. The C library may copy by `rep movsb`, which writes whole lines without reading them. Which
//! is faster depends on the processor, so it is measured: in the operation itself, once in the life of a process. A program can say which it wants, too.

use crate::span::Span;
use crate::stores::Stores;
use crate::team::Team;
use crate::{Call, Fault, Givers, Transfer};
use phalanx_algo::MemoryWay;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long what one of two ranks gives takes, where cells change hands.
#[derive(Debug, Clone, Copy)]
pub struct CopyTimes {
    /// Time of a broadcast of 16 KiB that its root stages by vectors.
    pub vectors: Duration,
    /// The same, by the C library's copy.
    pub library: Duration,
}

impl CopyTimes {
    /// Whether ranks that have found this stage by the C library's copy.
    pub fn is_library_faster(&self) -> bool {
        self.library < self.vectors
    }
}

/// Bytes of a broadcast: more than the C library copies by vectors too, and so few that most of its time is that of lines that change hands.
const LEN: usize = 16 << 10;
/// The rank that gives. The other decides: it is the one that waits.
const GIVER: usize = 1;
/// Broadcasts before those that are timed.
const BEFORE: u32 = 4;
/// Broadcasts that are timed together.
const TOGETHER: u32 = 8;
/// Times that each of them is tried at least, by turns, unless that takes too long. The shortest counts.
const TRIES: usize = 5;
/// A broadcast that takes longer was disturbed: where many processes start at once, two ranks may share a core for a while.
const UNDISTURBED: Duration = Duration::from_micros(20);
/// How long they are tried until one of each was not disturbed.
const PATIENCE: Duration = Duration::from_millis(10);

/// What rank 0 says of what its process knows.
const UNKNOWN: u64 = 0;
const VECTORS: u64 = 1;
const LIBRARY: u64 = 2;

/// What this process has found out as rank 0, or was told by one.
static FOUND: OnceLock<u64> = OnceLock::new();

/// From now on pairs in which this process is rank 0, and whose cells change hands, stage by the C library's copy or not. The first that is said in the life of a process counts, and what was measured before.
pub fn force_library_copy(by_library: bool) {
    FOUND.get_or_init(|| code(by_library));
}

/// Whether this process has found, or was told, that the C library's copy is faster.
pub(crate) fn is_library_faster() -> bool {
    FOUND.get() == Some(&LIBRARY)
}

fn code(by_library: bool) -> u64 {
    if by_library { LIBRARY } else { VECTORS }
}

impl Team {
    /// Sets by which copy two ranks stage. Collective; where it is to be measured that takes 120 broadcasts, or ten milliseconds where other processes disturb it.
    pub(crate) fn choose_copy(&mut self, call: &mut Call<'_>) -> std::result::Result<(), Fault> {
        let known = FOUND.get().copied().unwrap_or(UNKNOWN);
        let mut best = self.exchange([known, 0, 0], call)?[0][0];
        if best == UNKNOWN {
            let times = self.time_copies(call)?;
            best = self.exchange([code(times.is_library_faster()), 0, 0], call)?[0][0];
            let CopyTimes { vectors, library } = times;
            tracing::debug!(?vectors, ?library, "time of a broadcast of 16 KiB by the copy that stages it");
        }
        FOUND.get_or_init(|| best);
        self.region.stage_by_library(best == LIBRARY);
        Ok(())
    }

    /// How long some broadcasts take either way.
    pub(crate) fn time_copies(&mut self, call: &mut Call<'_>) -> std::result::Result<CopyTimes, Fault> {
        let mut buffer = vec![1u8; LEN];
        // SAFETY: the vector outlives the span, and is used through it alone.
        let buffer = unsafe { Span::new(buffer.as_mut_ptr(), buffer.len()) };
        let whole = |_: usize| 0..LEN;
        let transfer = Transfer {
            same: true,
            givers: Givers::Only(GIVER),
            largest: LEN,
            part: &whole,
            place: if self.rank == GIVER { None } else { Some(&whole) },
            own: None,
            layout: None,
        };
        let mut shortest = [Duration::MAX; 2];
        let first = Instant::now();
        for tries in 1.. {
            for (by_library, shortest) in [false, true].into_iter().zip(&mut shortest) {
                self.region.stage_by_library(by_library);
                // What it knows it has learned the other way.
                self.stores = Stores::default();
                let mut begun = Instant::now();
                for n in 0..BEFORE + TOGETHER {
                    if n == BEFORE {
                        // Both begin at the same time.
                        self.exchange([0; 3], call)?;
                        begun = Instant::now();
                    }
                    self.pull_spans(MemoryWay::Staged, call, buffer, buffer, transfer)?;
                }
                *shortest = (*shortest).min(begun.elapsed() / TOGETHER);
                self.exchange([0; 3], call)?;
            }
            let is_sure = tries >= TRIES && shortest.iter().all(|time| *time < UNDISTURBED);
            let is_enough = is_sure || first.elapsed() > PATIENCE;
            if self.exchange([is_enough.into(), 0, 0], call)?[0][0] != 0 {
                break;
            }
        }
        self.stores = Stores::default();
        let [vectors, library] = shortest;
        Ok(CopyTimes { vectors, library })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_faster_copy_is_chosen() {
        let is_library = |times: [u64; 2]| {
            let [vectors, library] = times.map(Duration::from_nanos);
            CopyTimes { vectors, library }.is_library_faster()
        };
        assert!(is_library([2, 1]) && !is_library([1, 2]));
        assert!(!is_library([2, 2]), "as before");
    }
}
