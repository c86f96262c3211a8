//! Which copies between two ranks are the C library's, where the memory in which they stage changes hands. The others are vectors.
//!
//! In cells that change hands each rank writes what it has read, so that it owns the lines. What only one of them gives is different, and what is combined: its reader has read
//! those lines last, and they must be taken from it. Vectors take one after the other. The C library may copy by `rep movsb`, which writes whole lines without reading them, and may ask for many lines at
//! once where it reads what the other has written. Which is faster depends on the processor, so it is measured: in the operation itself, once in the life of a process. A program can say which it wants, too.

use crate::library_copy::{LibraryCopy, found, remember};
use crate::span::Span;
use crate::stores::Stores;
use crate::team::Team;
use crate::{Call, Fault, Givers, Transfer};
use phalanx_algo::MemoryWay;
use std::time::{Duration, Instant};

/// How long what one of two ranks gives takes, where cells change hands: a broadcast of 64 KiB, by which copies are the C library's.
#[derive(Debug, Clone, Copy)]
pub struct CopyTimes {
    /// None.
    pub never: Duration,
    /// The root's.
    pub write: Duration,
    /// Both.
    pub always: Duration,
}

impl CopyTimes {
    /// What ranks choose that have found this.
    pub fn best(&self) -> LibraryCopy {
        let times = [self.never, self.write, self.always];
        let [first, rest @ ..] = LibraryCopy::ALL.map(|choice| (times[choice as usize], choice));
        rest.into_iter().fold(first, |best, next| if next.0 < best.0 { next } else { best }).1
    }
}

/// Bytes of a broadcast: so many that most of its time is that of lines that change hands, in whichever copy.
const LEN: usize = 64 << 10;
/// The rank that gives. The other decides: it is the one that waits.
const GIVER: usize = 1;
/// Broadcasts before those that are timed.
const BEFORE: u32 = 4;
/// Broadcasts that are timed together.
const TOGETHER: u32 = 8;
/// Times that each of them is tried at least, by turns, unless that takes too long. The shortest counts.
const TRIES: usize = 5;
/// A broadcast that takes longer was disturbed: where many processes start at once, two ranks may share a core for a while.
const UNDISTURBED: Duration = Duration::from_micros(40);
/// How long they are tried until one of each was not disturbed.
const PATIENCE: Duration = Duration::from_millis(10);

impl Team {
    /// Sets by which copies two ranks stage. Collective; where it is to be measured that takes 180 broadcasts, or ten milliseconds where other processes disturb it.
    pub(crate) fn choose_copy(&mut self, call: &mut Call<'_>) -> std::result::Result<(), Fault> {
        let known = LibraryCopy::code(found());
        let mut best = LibraryCopy::of_code(self.exchange([known, 0, 0], call)?[0][0]);
        if best.is_none() {
            let times = self.time_copies(call)?;
            let found = LibraryCopy::code(Some(times.best()));
            best = LibraryCopy::of_code(self.exchange([found, 0, 0], call)?[0][0]);
            let CopyTimes { never, write, always } = times;
            tracing::debug!(
                ?never,
                ?write,
                ?always,
                "time of a broadcast of 64 KiB by the C library's copies"
            );
        }
        let best = best.unwrap_or(LibraryCopy::Never);
        remember(best);
        self.region.copy_by_library(best);
        Ok(())
    }

    /// How long some broadcasts take by which copies.
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
        let mut shortest = LibraryCopy::ALL.map(|_| Duration::MAX);
        let first = Instant::now();
        for tries in 1.. {
            for (choice, shortest) in LibraryCopy::ALL.into_iter().zip(&mut shortest) {
                self.region.copy_by_library(choice);
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
        let [never, write, always] = shortest;
        Ok(CopyTimes { never, write, always })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_copies_are_chosen() {
        let best = |times: [u64; 3]| {
            let [never, write, always] = times.map(Duration::from_nanos);
            CopyTimes { never, write, always }.best()
        };
        assert_eq!(best([3, 2, 1]), LibraryCopy::Always);
        assert_eq!(best([3, 1, 2]), LibraryCopy::Write);
        assert_eq!(best([1, 2, 3]), LibraryCopy::Never);
        assert_eq!(best([2, 2, 2]), LibraryCopy::Never, "as before");
    }
}
