//! Whether two ranks are faster where the memory in which they stage changes hands.
//!
//! It depends on how the processor's caches pass lines on, so it is measured: in the operation itself, once in the life of a process.

use crate::region::Staging;
use crate::span::Span;
use crate::team::Team;
use crate::{Call, Fault, Transfer};
use phalanx_algo::MemoryWay;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bytes that each rank gives the other.
const LEN: usize = 64 << 10;
/// All_gathers that are timed together.
const TOGETHER: u32 = 8;
/// Times that each of the two is tried, by turns. The shortest counts.
const TRIES: usize = 8;

/// What rank 0 says of what its process knows.
const UNKNOWN: u64 = 0;
const OWN: u64 = 1;
const SWAPPED: u64 = 2;

/// What this process has found out as rank 0, or was told by one.
static FOUND: OnceLock<u64> = OnceLock::new();

/// Whether lines are handed back to their writer on this machine: see `stores.rs`. Not where cells that change hands are faster.
pub(crate) fn lines_are_handed_back() -> bool {
    FOUND.get() != Some(&SWAPPED)
}

impl Team {
    /// Sets where this team stages. Collective; where it is to be measured that takes about a millisecond.
    pub(crate) fn choose_staging(&mut self, crowded: bool, call: &mut Call<'_>) -> Result<(), Fault> {
        self.region.stage(self.rank, if crowded { Staging::Crowded } else { Staging::Own });
        if crowded || self.world_size != 2 {
            return Ok(());
        }
        let known = FOUND.get().copied().unwrap_or(UNKNOWN);
        let mut best = self.exchange([known, 0, 0], call)?[0][0];
        if best == UNKNOWN {
            let [own, swapped] = self.time_both(call)?;
            let found = if swapped < own { SWAPPED } else { OWN };
            best = self.exchange([found, 0, 0], call)?[0][0];
            tracing::debug!(?own, ?swapped, "time of an all_gather of 64 KiB by where ranks stage");
        }
        FOUND.get_or_init(|| best);
        self.region.stage(self.rank, if best == SWAPPED { Staging::Swapped } else { Staging::Own });
        Ok(())
    }

    /// How long some all_gathers take where each rank stages in slots of its own, and where cells change hands.
    fn time_both(&mut self, call: &mut Call<'_>) -> Result<[Duration; 2], Fault> {
        let mut buffer = vec![1u8; 2 * LEN];
        // SAFETY: the vector outlives the span, and is used through it alone.
        let buffer = unsafe { Span::new(buffer.as_mut_ptr(), buffer.len()) };
        let place = |rank: usize| rank * LEN..(rank + 1) * LEN;
        let own = place(self.rank);
        let part = |_: usize| own.clone();
        let pull = Transfer {
            same: true,
            gives: &|_| true,
            largest: LEN,
            part: &part,
            place: Some(&place),
            layout: None,
        };
        let mut shortest = [Duration::MAX; 2];
        for _ in 0..TRIES {
            for (staging, shortest) in [Staging::Own, Staging::Swapped].into_iter().zip(&mut shortest) {
                self.region.stage(self.rank, staging);
                // Both begin at the same time, and are done with all pieces.
                self.exchange([0; 3], call)?;
                let begun = Instant::now();
                for _ in 0..TOGETHER {
                    self.pull_spans(MemoryWay::Staged, call, buffer, buffer, pull)?;
                }
                *shortest = (*shortest).min(begun.elapsed() / TOGETHER);
                self.exchange([0; 3], call)?;
            }
        }
        Ok(shortest)
    }
}
