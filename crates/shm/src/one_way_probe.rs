//! Whether the lines of what only one of two ranks gives are handed back to it, where the memory in which the two stage changes hands.
//!
//! In cells that change hands each rank writes what it has read, so that it owns the lines. What only one of them gives is different: its reader has read those lines last. The
//! reader may hand them back (`stores.rs`). Where that pays depends on how the processor's caches pass lines on, as it does for cells. So it is measured too: in the operation itself, once in the life of a process.

use crate::span::Span;
use crate::stores::Stores;
use crate::team::Team;
use crate::{Call, Fault, Givers, Transfer};
use phalanx_algo::MemoryWay;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long what one of two ranks gives takes, where cells change hands.
#[derive(Debug, Clone, Copy)]
pub struct OneWayTimes {
    /// Time of a broadcast of 16 KiB.
    pub kept: Duration,
    /// The same, where its lines are handed back.
    pub handed_back: Duration,
}

impl OneWayTimes {
    /// Whether ranks that have found this hand lines back.
    pub fn is_handed_back(&self) -> bool {
        self.handed_back < self.kept
    }
}

/// Bytes of a broadcast: enough to be handed back, and so few that most of its time is that of lines that change hands.
const LEN: usize = 16 << 10;
/// The rank that gives. The other decides: it is the one that waits.
const GIVER: usize = 1;
/// Broadcasts before those that are timed: in them the lines of all cells are handed back, or kept.
const BEFORE: u32 = 4;
/// Broadcasts that are timed together.
const TOGETHER: u32 = 8;
/// Times that each of them is tried, by turns. The shortest counts.
const TRIES: usize = 5;

/// What rank 0 says of what its process knows.
const UNKNOWN: u64 = 0;
const KEPT: u64 = 1;
const HANDED_BACK: u64 = 2;

/// What this process has found out as rank 0, or was told by one.
static FOUND: OnceLock<u64> = OnceLock::new();

/// From now on pairs in which this process is rank 0, and whose cells change hands, do so. The first that is said in the life of a process counts, and what was measured before.
pub fn force_hand_back(handed_back: bool) {
    FOUND.get_or_init(|| code(handed_back));
}

fn code(handed_back: bool) -> u64 {
    if handed_back { HANDED_BACK } else { KEPT }
}

impl Team {
    /// Sets whether lines are handed back of what one of two ranks gives. Collective; where it is to be measured that takes less than a millisecond.
    pub(crate) fn choose_hand_back(&mut self, call: &mut Call<'_>) -> std::result::Result<(), Fault> {
        let known = FOUND.get().copied().unwrap_or(UNKNOWN);
        let mut best = self.exchange([known, 0, 0], call)?[0][0];
        if best == UNKNOWN {
            let times = self.time_one_way(call)?;
            best = self.exchange([code(times.is_handed_back()), 0, 0], call)?[0][0];
            let OneWayTimes { kept, handed_back } = times;
            tracing::debug!(
                ?kept,
                ?handed_back,
                "time of a broadcast of 16 KiB by whether its lines are handed back"
            );
        }
        FOUND.get_or_init(|| best);
        self.hands_back = best == HANDED_BACK;
        Ok(())
    }

    /// How long some broadcasts take either way.
    pub(crate) fn time_one_way(&mut self, call: &mut Call<'_>) -> std::result::Result<OneWayTimes, Fault> {
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
        for _ in 0..TRIES {
            for (hands_back, shortest) in [false, true].into_iter().zip(&mut shortest) {
                self.hands_back = hands_back;
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
        }
        self.stores = Stores::default();
        let [kept, handed_back] = shortest;
        Ok(OneWayTimes { kept, handed_back })
    }
}
