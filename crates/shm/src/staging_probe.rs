//! Whether two ranks are faster where the memory in which they stage changes hands.
//!
//! It depends on how the processor's caches pass lines on, so it is measured: in the operation itself, once in the life of a process. A program can
//! say which it wants, too.

use crate::copy_choice::CopyTimes;
use crate::plan::{Kind, Plan};
use crate::region::{Staging, segment_len};
use crate::span::Span;
use crate::team::Team;
use crate::{Call, Fault, Givers, Stopped, Transfer, WaitCheck, create};
use phalanx_algo::MemoryWay;
use phalanx_core::{CallSite, Error, OpKind, Result, Signature};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Where two ranks stage that have a core each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairStaging {
    /// Each in slots of its own.
    Own,
    /// In cells that change hands.
    Swapped,
    /// In cells that change hands, whose lines a rank claims as it reads them: it owns them when it writes there next.
    Claimed,
}

/// What a measurement has found.
#[derive(Debug, Clone, Copy)]
pub struct StagingTimes {
    /// Time of an all_gather of 64 KiB of each rank, where each stages in slots of its own.
    pub own: Duration,
    /// The same, where cells change hands.
    pub swapped: Duration,
    /// The same, where who reads a cell claims it besides.
    pub claimed: Duration,
}

impl StagingTimes {
    /// Where ranks stage that have found this.
    pub fn best(&self) -> PairStaging {
        let swapped = (self.swapped, PairStaging::Swapped);
        let better = if self.claimed < self.swapped { (self.claimed, PairStaging::Claimed) } else { swapped };
        if better.0 < self.own { better.1 } else { PairStaging::Own }
    }
}

/// How long two threads that play a pair of ranks may take.
const MEASURE_WITHIN: Duration = Duration::from_secs(60);

/// Bytes that each rank gives the other.
const LEN: usize = 64 << 10;
/// All_gathers that are timed together.
const TOGETHER: u32 = 8;
/// Times that each of them is tried, by turns. The shortest counts.
const TRIES: usize = 7;

/// What rank 0 says of what its process knows.
const UNKNOWN: u64 = 0;
const OWN: u64 = 1;
const SWAPPED: u64 = 2;
const CLAIMED: u64 = 3;

/// What this process has found out as rank 0, or was told by one.
static FOUND: OnceLock<u64> = OnceLock::new();

/// From now on pairs in which this process is rank 0 stage there. The first that is said in the life of a process counts, and what was measured before.
pub fn force_staging(staging: PairStaging) {
    FOUND.get_or_init(|| code(staging));
}

fn code(staging: PairStaging) -> u64 {
    match staging {
        PairStaging::Own => OWN,
        PairStaging::Swapped => SWAPPED,
        PairStaging::Claimed => CLAIMED,
    }
}

fn staging(code: u64) -> Staging {
    match code {
        SWAPPED => Staging::Swapped,
        CLAIMED => Staging::Claimed,
        _ => Staging::Own,
    }
}

/// Measures where two ranks with a core each should stage, and by which copy, with two threads of this process. It takes a few milliseconds.
///
/// # Errors
/// [`Io`](phalanx_core::Error::Io) if the memory can't be had; [`Internal`](phalanx_core::Error::Internal) if the threads did not come together.
pub fn measure_staging() -> Result<(StagingTimes, CopyTimes)> {
    let file = create(segment_len(2))?;
    let measure = |rank: usize| {
        let signature = Signature::bare(OpKind::Init, CallSite::caller());
        let mut within = Within(Instant::now());
        let mut call = Call { seq: 0, signature: &signature, wait_check: &mut within };
        let mut team = Team::join(&file, rank, 2, false, &mut call)?;
        let mut call = Call { seq: 1, signature: &signature, wait_check: &mut within };
        team.run(&mut call, Plan::of(Kind::Join, MemoryWay::Mutual), |team, call| {
            let times = team.time_all(call)?;
            team.region.stage(team.rank, Staging::Swapped);
            Ok((times, team.time_copies(call)?))
        })
    };
    let times = std::thread::scope(|scope| {
        let other = scope.spawn(|| measure(1));
        let times = measure(0);
        other.join().map_or(Err(Fault::Stopped), |other| other.and(times))
    });
    times.map_err(|fault| match fault {
        Fault::Failed(error) => *error,
        fault => Error::Internal { what: format!("measuring where ranks stage: {fault:?}") },
    })
}

/// A check that ends the wait after a time.
struct Within(Instant);

impl WaitCheck for Within {
    fn look(&mut self, _peer: usize, _waited: Duration) -> std::result::Result<(), Stopped> {
        if self.0.elapsed() < MEASURE_WITHIN { Ok(()) } else { Err(Stopped) }
    }

    fn look_meanwhile(&mut self, peer: usize) -> std::result::Result<(), Stopped> {
        self.look(peer, Duration::ZERO)
    }
}

/// Whether the pipes of this process hand lines back to their writer, as where two ranks have found slots of their own faster: see `stores.rs`. Not where cells that change hands are faster; there those of rings may be.
pub(crate) fn lines_are_handed_back() -> bool {
    FOUND.get() == Some(&OWN)
}

/// Whether the ends of the pipes of this process claim the lines of the cells that they read. Where no two ranks have measured that, they do: on every processor that was tried it is the fastest, or as fast as the fastest.
pub(crate) fn lines_are_claimed() -> bool {
    FOUND.get().is_none_or(|&found| found == CLAIMED)
}

impl Team {
    /// Sets where this team stages. Collective; where it is to be measured that takes about two milliseconds.
    pub(crate) fn choose_staging(
        &mut self,
        crowded: bool,
        call: &mut Call<'_>,
    ) -> std::result::Result<(), Fault> {
        self.region.stage(self.rank, if crowded { Staging::Crowded } else { Staging::Own });
        if crowded || self.world_size != 2 {
            return Ok(());
        }
        let known = FOUND.get().copied().unwrap_or(UNKNOWN);
        let mut best = self.exchange([known, 0, 0], call)?[0][0];
        if best == UNKNOWN {
            let times = self.time_all(call)?;
            best = self.exchange([code(times.best()), 0, 0], call)?[0][0];
            let StagingTimes { own, swapped, claimed } = times;
            tracing::debug!(?own, ?swapped, ?claimed, "time of an all_gather of 64 KiB by where ranks stage");
        }
        FOUND.get_or_init(|| best);
        self.region.stage(self.rank, staging(best));
        Ok(())
    }

    /// How long some all_gathers take by where the ranks stage.
    fn time_all(&mut self, call: &mut Call<'_>) -> std::result::Result<StagingTimes, Fault> {
        let mut buffer = vec![1u8; 2 * LEN];
        // SAFETY: the vector outlives the span, and is used through it alone.
        let buffer = unsafe { Span::new(buffer.as_mut_ptr(), buffer.len()) };
        let place = |rank: usize| rank * LEN..(rank + 1) * LEN;
        let own = place(self.rank);
        let part = |_: usize| own.clone();
        let pull = Transfer {
            same: true,
            givers: Givers::All,
            largest: LEN,
            part: &part,
            place: Some(&place),
            own: None,
            layout: None,
        };
        let mut shortest = [Duration::MAX; 3];
        for _ in 0..TRIES {
            let ways = [Staging::Own, Staging::Swapped, Staging::Claimed];
            for (staging, shortest) in ways.into_iter().zip(&mut shortest) {
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
        let [own, swapped, claimed] = shortest;
        Ok(StagingTimes { own, swapped, claimed })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn two_threads_measure_all() {
        let (StagingTimes { own, swapped, claimed }, CopyTimes { never, write, always }) =
            measure_staging().unwrap();
        let times = [own, swapped, claimed, never, write, always];
        assert!(
            times.iter().all(|time| (Duration::from_nanos(1)..Duration::MAX).contains(time)),
            "{times:?}"
        );
    }

    #[test]
    fn the_shortest_is_the_best() {
        let best = |times: [u64; 3]| {
            let [own, swapped, claimed] = times.map(Duration::from_nanos);
            StagingTimes { own, swapped, claimed }.best()
        };
        assert_eq!(best([1, 2, 3]), PairStaging::Own);
        assert_eq!(best([3, 1, 2]), PairStaging::Swapped);
        assert_eq!(best([2, 3, 1]), PairStaging::Claimed);
        assert_eq!(best([2, 2, 2]), PairStaging::Own, "the simplest");
    }
}
