//! How long a rank copies, apart from how long it waits. Where ranks share cores with each other, and with processes that start beside them, the time of an operation says who had the
//! core meanwhile. A copy of some KiB is seldom interrupted.

use std::time::{Duration, Instant};

/// Pieces of so many bytes tell which way of copying is faster. Smaller ones go into the caches, or through them.
pub(crate) const TELLING_BYTES: usize = 8 << 10;

/// Nanoseconds for 64 KiB, where `len` bytes took so long.
pub(crate) fn nanos_for_64_kib(took: Duration, len: usize) -> u64 {
    (took.as_nanos() as u64 * (64 << 10)) / len.max(1) as u64
}

/// How long copies took, by the rank whose bytes they were.
#[derive(Debug)]
pub(crate) struct CopyClock {
    times: Vec<Vec<Duration>>,
}

impl CopyClock {
    pub(crate) fn new(world_size: usize) -> Self {
        Self { times: vec![Vec::new(); world_size] }
    }

    /// A copy of bytes of `rank` has ended, which began then.
    pub(crate) fn ended(&mut self, rank: usize, begun: Instant) {
        self.times[rank].push(begun.elapsed());
    }

    /// The medians of all ranks together: copies that were interrupted don't count, nor do those of ranks that shared a core for a moment.
    pub(crate) fn sum_of_medians(&mut self) -> Duration {
        let median = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        };
        self.times.iter_mut().map(median).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn copies_that_were_interrupted_do_not_count() {
        let us = Duration::from_micros;
        let mut clock = CopyClock::new(3);
        clock.times[0] = vec![us(3), us(9_000), us(2), us(4_000), us(1)];
        clock.times[2] = vec![us(20)];
        assert_eq!(clock.sum_of_medians(), us(23));
        clock.ended(1, Instant::now());
        assert!(clock.sum_of_medians() >= us(23));
    }
}
