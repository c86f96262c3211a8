//! Whether two ranks are faster where the memory in which they stage changes hands.
//!
//! It depends on how the processor's caches pass lines on, so it is measured: in the operation itself, once in the life of a process. A program can
//! say which it wants, too.

use crate::choice::fastest;
use crate::copy_choice::CopyTimes;
use crate::plan::{Kind, Plan};
use crate::region::{self, segment_len};
use crate::span::Span;
use crate::team::Team;
use crate::{Call, Fault, Givers, Stopped, Transfer, WaitCheck, create};
use phalanx_algo::MemoryWay;
use phalanx_core::{CallSite, Error, OpKind, Result, Signature, Staging};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time of an all_gather of 64 KiB of each of two ranks, by where they stage.
type StagingTimes = [(Staging, Duration); 3];

/// How long two threads that play a pair of ranks may take.
const MEASURE_WITHIN: Duration = Duration::from_secs(60);

/// Bytes that each rank gives the other.
const LEN: usize = 64 << 10;
/// All_gathers that are timed together.
const TOGETHER: u32 = 8;
/// Times that each of them is tried, by turns. The shortest counts.
const TRIES: usize = 7;

/// What this process has found out as rank 0, or was told by one.
static FOUND: OnceLock<Staging> = OnceLock::new();

/// From now on pairs in which this process is rank 0 stage there. The first that is said in the life of a process counts, and what was measured before.
pub fn force_staging(staging: Staging) {
    FOUND.get_or_init(|| staging);
}

fn in_region(staging: Staging) -> region::Staging {
    match staging {
        Staging::Own => region::Staging::Own,
        Staging::Swapped => region::Staging::Swapped,
        Staging::Claimed => region::Staging::Claimed,
    }
}

/// Measures how long an all_gather of 64 KiB of two ranks with a core each takes by where they stage, and a broadcast of 64 KiB by which copies are the C library's, with two threads of this process. It takes a few milliseconds.
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
            team.region.stage(team.rank, region::Staging::Swapped);
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
    FOUND.get() == Some(&Staging::Own)
}

/// Whether the ends of the pipes of this process claim the lines of the cells that they read. Where no two ranks have measured that, they do: cells are faster on every processor that was tried, and claiming them was on a Xeon "Cascade Lake" and an EPYC "Turin".
pub(crate) fn lines_are_claimed() -> bool {
    FOUND.get().is_none_or(|&found| found == Staging::Claimed)
}

impl Team {
    /// Sets where this team stages. Collective; where it is to be measured that takes about two milliseconds.
    pub(crate) fn choose_staging(
        &mut self,
        crowded: bool,
        call: &mut Call<'_>,
    ) -> std::result::Result<(), Fault> {
        let alone = if crowded { region::Staging::Crowded } else { region::Staging::Own };
        self.region.stage(self.rank, alone);
        if crowded || self.world_size != 2 {
            return Ok(());
        }
        let best = self.choose_way(&Staging::ALL, FOUND.get().copied(), call, |team, call| {
            let times = team.time_all(call)?;
            tracing::debug!(?times, "an all_gather of 64 KiB, by where ranks stage");
            Ok(fastest(&times))
        })?;
        FOUND.get_or_init(|| best);
        self.region.stage(self.rank, in_region(best));
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
        let mut shortest = Staging::ALL.map(|staging| (staging, Duration::MAX));
        for _ in 0..TRIES {
            for (staging, shortest) in &mut shortest {
                self.region.stage(self.rank, in_region(*staging));
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn two_threads_measure_all() {
        let (staging, copies) = measure_staging().unwrap();
        let times: Vec<_> =
            staging.map(|(_, time)| time).into_iter().chain(copies.map(|(_, time)| time)).collect();
        assert!(
            times.iter().all(|time| (Duration::from_nanos(1)..Duration::MAX).contains(time)),
            "{times:?}"
        );
    }
}
