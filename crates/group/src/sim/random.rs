//! Where everything undecided in a run comes from: a stream of numbers, fixed by the seed (splitmix64).

use std::ops::Range;
use std::time::Duration;

/// A generator of random numbers from one seed.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A stream of its own, so that what is drawn from one does not shift the other.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.bits())
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// True `times` in `of`.
    pub(super) fn chance(&mut self, times: usize, of: usize) -> bool {
        self.below(of) < times
    }

    pub(super) fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }

    pub(super) fn micros(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(range.start + self.bits() % (range.end - range.start))
    }

    pub(super) fn millis(&mut self, range: Range<u64>) -> Duration {
        self.micros(range.start * 1000..range.end * 1000)
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.bits() as u8)
    }
}

/// Spreads every bit over all others.
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
