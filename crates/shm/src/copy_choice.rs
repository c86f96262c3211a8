//! Which copies between ranks that share memory are to be the C library's. The others are vectors.
//!
//! What a rank stages goes to lines that others have read last, and must be taken from them. (Where two ranks both give, in cells that change hands, each owns the lines that it writes.) Vectors take one after the other. The C library may copy by `rep movsb`, which writes whole lines
//! without reading them, and may ask for many lines at once where it reads what another has written. Which is faster depends on the processor, so it is measured: in an operation itself, once in the life of a process. A program can say which it
//! wants, too.
//!
//! Of two ranks the whole operation is timed, in which one writes while the other reads. More ranks often share cores, and all may start beside other processes: there an operation takes as
//! long as the others are let run. Then copies are timed alone, without the waits between them.

use crate::choice::fastest;
use crate::copy_clock::CopyClock;
use crate::library_copy::{Among, found, remember};
use crate::span::Span;
use crate::stores::Stores;
use crate::team::Team;
use crate::{Call, Fault, Givers, Transfer};
use phalanx_algo::MemoryWay;
use phalanx_core::LibraryCopy;
use std::time::{Duration, Instant};

/// How long it takes by which copies are the C library's: a broadcast of 64 KiB between two ranks, or the copies of an all_gather of 256 KiB of all of more.
pub(crate) type CopyTimes = [(LibraryCopy, Duration); 3];

/// Bytes that one of two ranks gives: so many that most of the time is that of lines that change hands, in whichever copy.
const PAIR_LEN: usize = 64 << 10;
/// Bytes that more ranks give together.
const LEN: usize = 256 << 10;
/// Of two ranks, the one that gives. The other decides: it is the one that waits. Of more all give.
const GIVER: usize = 1;
/// Operations before those that are timed.
const BEFORE: u32 = 2;
/// Operations that are timed together.
const TOGETHER: u32 = 4;
/// Times that each of them is tried, by turns, unless that takes too long.
const TRIES: usize = 8;
/// Times that they are tried however long that takes: the medians of fewer say little.
const TRIES_MIN: usize = 3;
/// How long that may take. Two ranks that nobody disturbs are done in one or two milliseconds.
const PATIENCE: Duration = Duration::from_millis(5);

impl Team {
    /// Sets which copies are the C library's. Collective; where it is to be measured that takes 144 operations; five milliseconds or more where other processes disturb them.
    pub(crate) fn choose_copy(&mut self, call: &mut Call<'_>) -> std::result::Result<(), Fault> {
        if self.world_size == 1 {
            return Ok(());
        }
        let among = Among::of(self.world_size);
        let best = self.choose_way(&LibraryCopy::ALL, found(among), call, |team, call| {
            let times = team.time_copies(call)?;
            let world_size = team.world_size;
            tracing::debug!(world_size, ?times, "by which copies are the C library's");
            Ok(fastest(&times))
        })?;
        remember(among, best);
        self.region.copy_by_library(best);
        Ok(())
    }

    /// How long it takes by which copies: [`CopyTimes`].
    pub(crate) fn time_copies(&mut self, call: &mut Call<'_>) -> std::result::Result<CopyTimes, Fault> {
        let among = Among::of(self.world_size);
        let (len, givers) = match among {
            Among::Pair => (PAIR_LEN, Givers::Only(GIVER)),
            Among::Many => ((LEN / self.world_size).next_multiple_of(64), Givers::All),
        };
        let mut buffer = vec![1u8; self.world_size * len];
        // SAFETY: the vector outlives the span, and is used through it alone.
        let buffer = unsafe { Span::new(buffer.as_mut_ptr(), buffer.len()) };
        // All staging of the others is mapped then.
        self.exchange_parts(self.region.slots() as u32, buffer, givers, call)?;
        let mut shortest = [Duration::MAX; 3];
        let mut clocks = [(); 3].map(|()| Some(CopyClock::new(self.world_size)));
        let first = Instant::now();
        for tries in 1.. {
            for (n, choice) in LibraryCopy::ALL.into_iter().enumerate() {
                self.region.copy_by_library(choice);
                // What it knows it has learned the other way.
                self.stores = Stores::default();
                self.exchange_parts(BEFORE, buffer, givers, call)?;
                // All begin at the same time.
                self.exchange([0; 3], call)?;
                self.copy_clock = clocks[n].take();
                let begun = Instant::now();
                self.exchange_parts(TOGETHER, buffer, givers, call)?;
                shortest[n] = shortest[n].min(begun.elapsed() / TOGETHER);
                clocks[n] = self.copy_clock.take();
                self.exchange([0; 3], call)?;
            }
            let is_late = first.elapsed() > PATIENCE;
            if self.rank_0_says(tries >= TRIES || is_late && tries >= TRIES_MIN, call)? {
                break;
            }
        }
        self.stores = Stores::default();
        // Rank 0 chooses: what the others find does not count.
        let is_disturbed = first.elapsed() > PATIENCE;
        let alone = self.sums_of_medians(clocks, call)?;
        let times = if among == Among::Pair && !is_disturbed { shortest } else { alone };
        Ok(std::array::from_fn(|n| (LibraryCopy::ALL[n], times[n])))
    }

    /// The times of copies alone, of all ranks together.
    fn sums_of_medians(
        &mut self,
        clocks: [Option<CopyClock>; 3],
        call: &mut Call<'_>,
    ) -> std::result::Result<[Duration; 3], Fault> {
        let own = clocks.map(|clock| {
            let sum = clock.map_or(Duration::MAX, |mut clock| clock.sum_of_medians());
            sum.as_nanos().try_into().unwrap_or(u64::MAX)
        });
        let all = self.exchange(own, call)?;
        let of_all = |n: usize| all.iter().fold(0u64, |sum, words| sum.saturating_add(words[n]));
        Ok(std::array::from_fn(|n| Duration::from_nanos(of_all(n))))
    }

    /// What rank 0 says of it, to all.
    fn rank_0_says(&mut self, is_so: bool, call: &mut Call<'_>) -> std::result::Result<bool, Fault> {
        Ok(self.exchange([is_so.into(), 0, 0], call)?[0][0] != 0)
    }

    /// Exchanges the parts of `buffer`, so many times.
    fn exchange_parts(
        &mut self,
        times: u32,
        buffer: Span,
        givers: Givers,
        call: &mut Call<'_>,
    ) -> std::result::Result<(), Fault> {
        let len = buffer.len() / self.world_size;
        let place = |rank: usize| rank * len..(rank + 1) * len;
        let own = place(self.rank);
        let part = |_: usize| own.clone();
        let receives = givers != Givers::Only(self.rank);
        let transfer = Transfer {
            same: true,
            givers,
            largest: len,
            part: &part,
            place: if receives { Some(&place) } else { None },
            own: None,
            layout: None,
        };
        for _ in 0..times {
            self.pull_spans(MemoryWay::Staged, call, buffer, buffer, transfer)?;
        }
        Ok(())
    }
}
