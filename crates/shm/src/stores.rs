//! How a rank writes what others read last: through the caches, or past them.
//!
//! A line that another core has read must be taken from it before it can be written again, and that is slow: on an EPYC 7 ns a line
//! between cores that share a cache and 27 where they don't, one after the other, where bare bandwidth is 1. There are two ways out.
//!
//! - The reader **hands the line back**: it writes a byte of what it has read, so that it owns the line alone. A line that has one
//!   owner passes to the next as fast as it is read: 1.2 ns, and 4 between far cores. That takes a line with one reader, and less data
//!   than leave the caches by themselves.
//! - Stores **past the caches** take nothing from anybody: 2.6 ns. But what they wrote is then read from memory, which takes longer than from a
//!   near cache.
//!
//! Two ranks that stage in cells that change hands write what they have just read, and so need neither way. What only one of them gives is the exception: it is
//! stored past the caches where that is faster, and its lines are not handed back.
//!
//! Which is better depends on where the two cores are, and a virtual machine may be moved at any time. So each rank looks at
//! how long its stores take either way.

use crate::copy_clock::{TELLING_BYTES, nanos_for_64_kib};
use crate::region::SLOTS;
use std::time::{Duration, Instant};

/// For how many pieces a rank goes past the caches before it tries them again.
const PIECES_PAST: u32 = 1024;
/// Every so many pieces through the caches, one goes past them, to see how long that takes.
const PIECES_THROUGH: u32 = 128;
/// Of so many pieces through the caches one is timed, and each after a slow one: to look at the clock twice takes as long as to copy a KiB.
const TIMED_EVERY: u32 = 4;

/// Nanoseconds that a reader gains on 64 KiB when it finds them in a near cache, and not in memory: 4 a line, measured on an EPYC ("Milan").
const GAIN_OF_READER: u64 = 4_000;

/// Slow pieces in a row that cannot be chance, as one that was interrupted, or some that found their source in no cache.
const SLOW_IN_A_ROW: u32 = 8;
/// Slow pieces in a row that cannot be chance after the caches were tried again.
const STILL_SLOW: u32 = 2;

/// The way of one piece.
#[derive(Debug, Clone, Copy)]
struct StorePath {
    past_caches: bool,
    /// Whether its reader is to hand the lines back.
    hand_back: bool,
    is_timed: bool,
}

/// How a piece is filled, from when it begins to its end.
pub(crate) struct Filling {
    /// Whether it is filled past the caches.
    pub(crate) past_caches: bool,
    /// Whether its reader is to hand the lines back.
    pub(crate) hand_back: bool,
    /// If it is long enough to tell how fast stores are: its way, and when it began.
    tells: Option<(StorePath, Option<Instant>)>,
}

/// A rank's knowledge of its stores: whether they are faster through the caches or past them.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    /// The pieces that still go past the caches.
    past: u32,
    /// The pieces that still go through the caches before one goes past.
    through: u32,
    /// Nanoseconds that 64 KiB took past the caches, the latest twice.
    cost_past: Option<[u64; 2]>,
    /// How many pieces in a row were handed back, and the bytes of the longest.
    handed_back: (u32, usize),
    /// How many pieces in a row were slow through the caches.
    slow: u32,
}

impl Stores {
    /// Begins a piece of at most `len` bytes. `may_hand_back` says that each line has one reader, who would hand it back.
    pub(crate) fn begin(&mut self, len: usize, may_hand_back: bool) -> Filling {
        if len < TELLING_BYTES {
            return Filling { past_caches: false, hand_back: may_hand_back, tells: None };
        }
        let path = self.next(may_hand_back);
        let begun = path.is_timed.then(Instant::now);
        Filling { past_caches: path.past_caches, hand_back: path.hand_back, tells: Some((path, begun)) }
    }

    /// A piece is filled with so many bytes.
    pub(crate) fn end(&mut self, filling: &Filling, filled: usize) {
        if let Some((path, begun)) = filling.tells {
            self.judge(path, filled, begun.map(|begun| begun.elapsed()));
        }
    }

    fn next(&mut self, may_hand_back: bool) -> StorePath {
        if self.past > 0 {
            self.past -= 1;
            // So that the caches are tried with lines that were handed back.
            let hand_back = may_hand_back && self.past < SLOTS;
            return StorePath { past_caches: true, hand_back, is_timed: true };
        }
        let past_caches = self.through == 0;
        let is_timed = self.through.is_multiple_of(TIMED_EVERY) || self.slow > 0;
        self.through = if past_caches { PIECES_THROUGH } else { self.through - 1 };
        StorePath { past_caches, hand_back: may_hand_back, is_timed }
    }

    fn judge(&mut self, path: StorePath, len: usize, took: Option<Duration>) {
        let (in_a_row, longest) = self.handed_back;
        self.handed_back = match path.hand_back {
            true if len <= longest => (in_a_row + 1, longest),
            true => (1, len),
            false => (0, 0),
        };
        let Some(took) = took else { return };
        let cost = nanos_for_64_kib(took, len);
        if path.past_caches {
            let before = self.cost_past.map_or(cost, |[_, latest]| latest);
            self.cost_past = Some([before, cost]);
            return;
        }
        // These lines were not.
        if path.hand_back && in_a_row < SLOTS {
            return;
        }
        // One that was interrupted tells nothing.
        let past = self.cost_past.map_or(u64::MAX, |[before, latest]| before.min(latest));
        let gain = if path.hand_back { past / 4 } else { GAIN_OF_READER };
        let worth = past.saturating_add(gain);
        let is_slow = cost > worth;
        self.slow = if is_slow { self.slow + 1 } else { 0 };
        if self.slow >= SLOW_IN_A_ROW {
            self.past = PIECES_PAST;
            // Then a few are enough to know that nothing has changed.
            self.slow = SLOW_IN_A_ROW - STILL_SLOW;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 << 10;
    const PAST: u64 = 6000;

    /// Fills pieces that take so long, and says how many of them went past the caches.
    fn run(stores: &mut Stores, pieces: u32, hand_back: bool, through: u64) -> u32 {
        let pieces = (0..pieces).map(|_| {
            let path = stores.next(hand_back);
            let took = Duration::from_nanos(if path.past_caches { PAST } else { through });
            stores.judge(path, LEN, path.is_timed.then_some(took));
            u32::from(path.past_caches)
        });
        pieces.sum()
    }

    #[test]
    fn quick_caches_are_used_but_for_a_look_now_and_then() {
        let mut stores = Stores::default();
        let looks = run(&mut stores, 10 * (PIECES_THROUGH + 1), true, PAST + PAST / 5);
        assert_eq!(looks, 10);
        assert_eq!(
            run(&mut stores, 10 * (PIECES_THROUGH + 1), false, PAST + GAIN_OF_READER),
            10,
            "nobody hands lines back"
        );
    }

    #[test]
    fn slow_caches_are_left_and_tried_again() {
        for (hand_back, through) in [(true, PAST * 2), (false, PAST + 2 * GAIN_OF_READER)] {
            let mut stores = Stores::default();
            // Until one is timed that tells something.
            let first = if hand_back { SLOTS + 1 } else { 1 };
            assert_eq!(run(&mut stores, first + SLOW_IN_A_ROW, hand_back, through), 1, "a look");
            assert_eq!(run(&mut stores, PIECES_PAST, hand_back, through), PIECES_PAST);
            // A few more are enough, as nothing has changed; then it has.
            assert_eq!(run(&mut stores, STILL_SLOW + PIECES_PAST, hand_back, through), PIECES_PAST);
            assert_eq!(run(&mut stores, PIECES_THROUGH / 2, hand_back, PAST), 0);
        }
    }

    #[test]
    fn some_slow_pieces_are_chance() {
        let mut stores = Stores::default();
        run(&mut stores, SLOTS, true, PAST);
        for _ in 0..20 {
            let slow = run(&mut stores, SLOW_IN_A_ROW - 1, true, 9 * PAST);
            assert!(run(&mut stores, 1, true, PAST) + slow <= 1);
        }
    }

    #[test]
    fn the_caches_are_tried_with_lines_that_were_handed_back() {
        let mut stores = Stores { past: PIECES_PAST, through: 1, ..Stores::default() };
        let ways: Vec<_> = (0..=PIECES_PAST).map(|_| stores.next(true)).collect();
        let asked = ways.iter().filter(|path| path.past_caches && path.hand_back).count();
        assert_eq!(asked, SLOTS as usize);
        assert!(ways[..PIECES_PAST as usize - asked].iter().all(|path| !path.hand_back));
    }

    #[test]
    fn lines_that_nobody_has_handed_back_yet_tell_nothing() {
        let mut stores = Stores::default();
        for _ in 0..20 {
            assert!(run(&mut stores, SLOTS, true, 9 * PAST) + run(&mut stores, 1, false, PAST) <= 1);
        }
    }

    #[test]
    fn small_pieces_tell_nothing() {
        let mut stores = Stores { past: 5, ..Stores::default() };
        let filling = stores.begin(TELLING_BYTES - 1, true);
        assert!(!filling.past_caches && filling.hand_back);
        stores.end(&filling, TELLING_BYTES - 1);
        assert_eq!(stores.past, 5);
    }
}
