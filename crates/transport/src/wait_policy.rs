//! The wait policy: what a waiting thread knows of its core, and whether it spins, yields or sleeps. `docs/design/waiting.md` says why.

#[cfg(target_os = "linux")]
use rustix::thread::CpuSet;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a thread keeps its core to itself while the core must not be given away. About twice what it takes to wake a core
/// that sleeps (30–50 µs): with less, two ranks can put each other to sleep in every operation.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// How long it stays awake in all, giving the core to whoever else wants it again and again.
pub const AWAKE_TIME: Duration = Duration::from_micros(300);
/// The time from which a core that was given away has been used by somebody else ……
const SWITCH_TIME: Duration = Duration::from_nanos(1500);
/// … and a rank that waits as we do gives it back within microseconds. Who keeps it for longer is a stranger, or at work.
const SLICE_TIME: Duration = Duration::from_millis(1);
/// How often in a row nobody else must have used the core for a rank to take itself for alone on it.
const LONELY_AFTER: u32 = 64;
/// How long we don't give the core away after a slice was lost …
const BAN_MIN: Duration = Duration::from_millis(1);
/// … and how long at most, after one loss soon after the other.
const BAN_MAX: Duration = Duration::from_millis(512);
/// Losses that follow each other within so many bans are one foreign load; the ban grows.
const BANS_APART: u32 = 8;

/// The other users of a thread's core, as far as that shows when it gives the core away.
#[derive(Debug, Clone, Copy)]
pub struct Company {
    /// Above zero if another rank was seen here lately: the scheduler puts a woken rank next to its waker when the machine is
    /// busy. There whoever keeps the core awake keeps the other from working.
    seen: u32,
    ban: Duration,
    banned_until: Option<Instant>,
}

impl Company {
    /// The state of a core on which nobody was seen yet.
    pub const UNKNOWN: Self = Self { seen: 0, ban: BAN_MIN, banned_until: None };

    /// Whether another rank was here lately.
    #[inline]
    pub fn was_seen(&self) -> bool {
        self.seen > 0
    }

    /// Whether the core may be given away at all.
    #[inline]
    pub fn may_yield(&self, now: Instant) -> bool {
        self.banned_until.is_none_or(|until| until <= now)
    }

    /// How long to keep the core before giving it away, or before sleeping if it may not be. `crowded`: ranks outnumber cores;
    /// `alone_time`: where a rank should have this core to itself.
    #[inline]
    pub fn spin_time(&self, crowded: bool, yields: bool, alone_time: Duration) -> Duration {
        match (crowded || self.was_seen(), yields) {
            (true, _) => Duration::ZERO,
            (false, true) => alone_time,
            (false, false) => SPIN_TIME,
        }
    }

    /// Judges from a core that was given away for so long, until `now`, who else is on it. `true`: somebody who does not wait for us.
    #[inline]
    pub fn judge(&mut self, away: Duration, now: Instant) -> bool {
        self.seen = match away {
            _ if away < SWITCH_TIME => self.seen.saturating_sub(1),
            _ if away < SLICE_TIME => LONELY_AFTER,
            _ => 0,
        };
        if away < SLICE_TIME {
            return false;
        }
        // For a while we sleep instead, which costs a wake-up but no slice.
        let again = self.banned_until.is_some_and(|until| now - until < self.ban * BANS_APART);
        self.ban = if again { (self.ban * 2).min(BAN_MAX) } else { BAN_MIN };
        self.banned_until = Some(now + self.ban);
        true
    }
}

/// How the ranks of a host share its cores, where they outnumber them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreSharing {
    /// Each with its neighbours, if they may use all cores. Where ranks share memory, messages between neighbours then stay in the caches of one core, and take half the time.
    WithNeighbours,
    /// Neighbours on different cores. Over TCP short operations are faster so: the kernel of one core sends while that of another receives.
    WithOthers,
}

#[cfg(target_os = "linux")]
impl CoreSharing {
    /// The core on which a rank belongs, the `nth` of `ranks` on its host, of those that it may use.
    pub fn home_core(self, nth: usize, ranks: usize, allowed: &CpuSet) -> Option<usize> {
        self.home_of(nth, ranks, allowed, online_cores())
    }

    /// The same on a host with so many cores. A rank that may not use all of them may have others beside it that use the rest: which of its own are free of them, it can't know.
    fn home_of(self, nth: usize, ranks: usize, allowed: &CpuSet, online: usize) -> Option<usize> {
        let cores = allowed.count() as usize;
        let turn = match self {
            Self::WithNeighbours if ranks > cores && cores >= online => nth * cores / ranks,
            _ => nth.checked_rem(cores)?,
        };
        cores_in(allowed).nth(turn)
    }
}

/// The cores of a set.
#[cfg(target_os = "linux")]
pub fn cores_in(set: &CpuSet) -> impl Iterator<Item = usize> {
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core))
}

/// How many cores this host has, whoever may use them; more than any set has where Linux does not say.
#[cfg(target_os = "linux")]
fn online_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let read = || std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
    *CORES.get_or_init(|| read().and_then(|text| count_of(text.trim_end())).unwrap_or(usize::MAX))
}

/// How many numbers a list of Linux has: `0-3,8`.
#[cfg(target_os = "linux")]
fn count_of(list: &str) -> Option<usize> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').map(count).sum()
}

/// Moves this thread to one of the cores that it may use, once: then it may go where it likes again.
#[cfg(target_os = "linux")]
pub fn move_to(core: usize, allowed: &CpuSet) {
    use rustix::thread::sched_setaffinity;
    let mut there = CpuSet::new();
    there.set(core);
    // Where that is not allowed, the scheduler decides alone.
    let _ = sched_setaffinity(None, &there).and_then(|()| sched_setaffinity(None, allowed));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const AT_ONCE: Duration = Duration::from_nanos(300);
    const BY_A_RANK: Duration = Duration::from_micros(5);
    const ALONE_TIME: Duration = Duration::from_micros(7);

    #[cfg(target_os = "linux")]
    #[test]
    fn ranks_that_outnumber_cores_share_them_with_neighbours_or_with_others() {
        use CoreSharing::{WithNeighbours, WithOthers};
        let mut allowed = CpuSet::new();
        assert_eq!([WithNeighbours, WithOthers].map(|sharing| sharing.home_core(0, 1, &allowed)), [None; 2]);
        [3, 5, 8].into_iter().for_each(|core| allowed.set(core));
        let homes = |sharing: CoreSharing, ranks| {
            (0..ranks).map(|nth| sharing.home_of(nth, ranks, &allowed, 3).unwrap()).collect::<Vec<_>>()
        };
        for sharing in [WithNeighbours, WithOthers] {
            assert_eq!(homes(sharing, 2), [3, 5]);
            assert_eq!(homes(sharing, 3), [3, 5, 8]);
        }
        assert_eq!(homes(WithNeighbours, 4), [3, 3, 5, 8]);
        assert_eq!(homes(WithNeighbours, 8), [3, 3, 3, 5, 5, 5, 8, 8]);
        assert_eq!(homes(WithOthers, 8), [3, 5, 8, 3, 5, 8, 3, 5]);
    }

    /// Six ranks, three of them on each half of a host: none shares a core.
    #[cfg(target_os = "linux")]
    #[test]
    fn ranks_that_are_bound_to_parts_of_a_host_use_all_cores_of_these() {
        for (ranks, part) in [(0..3, [0, 1, 2]), (3..6, [3, 4, 5])] {
            let mut allowed = CpuSet::new();
            part.into_iter().for_each(|core| allowed.set(core));
            let home = |nth| CoreSharing::WithNeighbours.home_of(nth, 6, &allowed, 6).unwrap();
            assert_eq!(ranks.map(home).collect::<Vec<_>>(), part);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn cores_are_counted_as_linux_lists_them() {
        for (list, count) in [("0", 1), ("0-1", 2), ("0-3,8", 5), ("0,2-3", 3)] {
            assert_eq!(count_of(list), Some(count), "{list}");
        }
        for list in ["", "-", "3-1", "0-", "a", "0-18446744073709551615"] {
            assert_eq!(count_of(list), None, "{list:?}");
        }
    }

    #[test]
    fn a_rank_on_the_core_is_remembered_for_a_while() {
        let (mut company, now) = (Company::UNKNOWN, Instant::now());
        assert_eq!(company.spin_time(false, true, ALONE_TIME), ALONE_TIME);
        assert_eq!(company.spin_time(true, true, ALONE_TIME), Duration::ZERO, "a core that is shared");
        assert!(!company.judge(BY_A_RANK, now));
        for _ in 0..LONELY_AFTER {
            assert!(company.was_seen());
            assert_eq!(company.spin_time(false, true, ALONE_TIME), Duration::ZERO);
            assert!(!company.judge(AT_ONCE, now));
        }
        assert!(!company.was_seen());
    }

    #[test]
    fn bans_grow_while_slices_are_lost_and_start_over_after_a_quiet_time() {
        let (mut company, mut now) = (Company::UNKNOWN, Instant::now());
        assert!(company.may_yield(now));
        let mut ban = BAN_MIN;
        for _ in 0..12 {
            assert!(company.judge(4 * MS, now));
            assert!(!company.may_yield(now + ban - AT_ONCE));
            assert_eq!(company.spin_time(false, false, ALONE_TIME), SPIN_TIME);
            now += ban;
            assert!(company.may_yield(now));
            ban = (2 * ban).min(BAN_MAX);
        }
        now += BAN_MAX * BANS_APART;
        company.judge(4 * MS, now);
        assert!(company.may_yield(now + BAN_MIN));
    }
}
