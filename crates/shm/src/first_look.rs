//! When a rank that has posted looks for what others post.
//!
//! A look takes a line from the rank that is about to write it: that one must get it back first, and then it travels once more. Ranks that post to each other at the same time
//! and look at once do that to each other. So where a line takes long from core to core, a rank looks half of that time later, or a few pauses at most. How long a line takes is measured now and then,
//! at a line that came: cores of a virtual machine move.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// From so long on a line comes from far, and it is better not to look at once.
const FAR: Duration = Duration::from_nanos(100);
/// So many waits are not timed after one that was.
const UNTIMED: u32 = 64;
/// How many of the latest times count, by their median: threads are interrupted.
const TIMES: usize = 5;
/// The most pauses: 0.2 µs where one takes 25 ns. What takes longer has other reasons than its way.
const PAUSES_MAX: u32 = 8;
/// After so many waits for long data since a line was timed, it is not known any more that lines come from far: who only reads what others post times none.
const FAR_WAITS_MAX: u32 = 1024;
/// The most looks at a line while it is timed: some microseconds. Who sleeps until this rank has looked is woken only after that.
const LOOKS_MAX: u32 = 100;

/// One rank's knowledge of how far away the others are.
#[derive(Debug, Default)]
pub(crate) struct FirstLook {
    /// How long lines took, the latest in turn.
    times: [Duration; TIMES],
    timed: usize,
    until_timed: u32,
    pauses: u32,
    far_waits_left: u32,
}

impl FirstLook {
    /// Waits until it is time for the first look, or measures how long one takes.
    #[inline]
    pub(crate) fn wait(&mut self, is_here: impl Fn() -> bool) {
        if self.until_timed == 0 {
            return self.time(is_here, costs());
        }
        self.until_timed -= 1;
        for _ in 0..self.pauses {
            std::hint::spin_loop();
        }
    }

    /// Whether lines are known to come soon.
    pub(crate) fn is_near(&self) -> bool {
        self.timed >= TIMES && self.pauses == 0
    }

    /// Whether lines come from far, and that was found out lately. Called once for each wait that goes by it.
    pub(crate) fn is_still_far(&mut self) -> bool {
        self.far_waits_left = self.far_waits_left.saturating_sub(1);
        self.far_waits_left > 0
    }

    /// Looks until it is here, and learns from the look that found it.
    #[cold]
    fn time(&mut self, is_here: impl Fn() -> bool, costs: &Costs) {
        let Costs { look_at_clock, pause } = *costs;
        self.until_timed = UNTIMED;
        if look_at_clock >= FAR {
            // Such a clock says nothing of a line.
            return;
        }
        for _ in 0..LOOKS_MAX {
            let begun = Instant::now();
            let found = is_here();
            let took = begun.elapsed();
            if found {
                return self.learn(took.saturating_sub(look_at_clock), pause);
            }
        }
    }

    fn learn(&mut self, line: Duration, pause: Duration) {
        self.times[self.timed % TIMES] = line;
        self.timed += 1;
        if self.timed < TIMES {
            // The next wait is timed too: nothing is known yet.
            self.until_timed = 0;
            return;
        }
        let mut times = self.times;
        times.sort_unstable();
        self.pauses = pauses(times[TIMES / 2], pause);
        self.far_waits_left = if self.pauses > 0 { FAR_WAITS_MAX } else { 0 };
    }
}

/// How many pauses before the first look, where a line takes so long.
fn pauses(line: Duration, pause: Duration) -> u32 {
    if line < FAR {
        return 0;
    }
    ((line / 2).as_nanos() / pause.as_nanos().max(1)).clamp(1, PAUSES_MAX.into()) as u32
}

/// How long it takes to do nothing.
#[derive(Debug)]
struct Costs {
    /// From one look at the clock to the next, with nothing between.
    look_at_clock: Duration,
    /// One [`spin_loop`](std::hint::spin_loop).
    pause: Duration,
}

/// Measured once in a process, in some microseconds: medians.
fn costs() -> &'static Costs {
    static COSTS: OnceLock<Costs> = OnceLock::new();
    COSTS.get_or_init(|| {
        const PAUSES: u32 = 32;
        let median = |pauses: u32| {
            let mut times: [Duration; 15] = std::array::from_fn(|_| {
                let begun = Instant::now();
                (0..pauses).for_each(|_| std::hint::spin_loop());
                begun.elapsed()
            });
            times.sort_unstable();
            times[times.len() / 2]
        };
        let look_at_clock = median(0);
        Costs { look_at_clock, pause: median(PAUSES).saturating_sub(look_at_clock) / PAUSES }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    const PAUSE: Duration = Duration::from_nanos(25);
    const COSTS: Costs = Costs { look_at_clock: Duration::from_nanos(20), pause: PAUSE };

    fn learnt(lines: &[u64]) -> FirstLook {
        let mut look = FirstLook::default();
        lines.iter().for_each(|&line| look.learn(Duration::from_nanos(line), PAUSE));
        look
    }

    #[test]
    fn who_is_near_is_looked_at_at_once_and_who_is_far_after_half_the_time_of_a_line() {
        assert_eq!(learnt(&[40; TIMES]).pauses, 0);
        assert!(learnt(&[40; TIMES]).is_near() && !learnt(&[40; TIMES]).is_still_far());
        assert!(!learnt(&[40; TIMES - 1]).is_near(), "that is not known yet");
        assert_eq!(learnt(&[160; TIMES]).pauses, 3);
        assert!(!learnt(&[160; TIMES]).is_near() && learnt(&[160; TIMES]).is_still_far());
        assert!(!learnt(&[160; TIMES - 1]).is_still_far(), "that is not known yet");
        assert_eq!(learnt(&[10_000; TIMES]).pauses, PAUSES_MAX);
        assert_eq!(pauses(FAR, Duration::ZERO), PAUSES_MAX, "a processor that does not pause");
        assert_eq!(pauses(FAR, FAR), 1, "one that pauses long");
    }

    #[test]
    fn far_is_far_until_it_was_long_not_found_out_or_is_near() {
        let mut look = learnt(&[160; TIMES]);
        let waits = (0..2 * FAR_WAITS_MAX).take_while(|_| look.is_still_far()).count();
        assert_eq!(waits as u32, FAR_WAITS_MAX - 1);
        look.learn(Duration::from_nanos(160), PAUSE);
        assert!(look.is_still_far());
        (0..TIMES).for_each(|_| look.learn(Duration::from_nanos(40), PAUSE));
        assert!(!look.is_still_far());
    }

    #[test]
    fn a_few_interruptions_change_nothing_and_cores_that_move_do() {
        assert_eq!(learnt(&[40, 9_000, 40, 9_000, 40]).pauses, 0);
        assert_eq!(learnt(&[40, 40, 40, 40, 40, 160, 160]).pauses, 0);
        assert_eq!(learnt(&[40, 40, 40, 40, 40, 160, 160, 160]).pauses, 3);
    }

    #[test]
    fn a_line_is_timed_now_and_then() {
        let (mut look, looks) = (FirstLook::default(), Cell::new(0));
        // Each line is there at the third look.
        let is_here = || {
            looks.set(looks.get() + 1);
            looks.get() % 3 == 0
        };
        (0..TIMES).for_each(|_| {
            assert_eq!(look.until_timed, 0);
            look.time(is_here, &COSTS);
        });
        assert_eq!((looks.get(), look.timed), (3 * TIMES, TIMES));
        for left in (0..UNTIMED).rev() {
            look.wait(is_here);
            assert_eq!(look.until_timed, left);
        }
        assert_eq!(looks.get(), 3 * TIMES);
    }

    #[test]
    fn a_line_that_does_not_come_is_left_to_whoever_waits_longer() {
        let (mut look, looks) = (FirstLook::default(), Cell::new(0));
        let never = || {
            looks.set(looks.get() + 1);
            false
        };
        look.time(never, &COSTS);
        assert_eq!((looks.get(), look.timed, look.until_timed), (LOOKS_MAX, 0, UNTIMED));
    }

    #[test]
    fn a_slow_clock_is_not_asked() {
        let (mut look, slow) = (FirstLook::default(), Costs { look_at_clock: FAR, ..COSTS });
        look.time(|| unreachable!("a look"), &slow);
        assert_eq!((look.pauses, look.until_timed), (0, UNTIMED));
    }
}
