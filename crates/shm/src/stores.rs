//! How a rank writes what others read last: through the caches, or past them.
//!
//! A line that another core has read must be taken from it before it can be written again. Where two cores share a cache that is
//! quick. Where they don't it took 27 ns a line on an EPYC, five times as long as to read it, and a virtual machine may be moved from
//! the one to the other at any time. Stores past the caches take nothing from anybody, but what they wrote is then read from memory, which is slower
//! than from a near cache. So each rank looks at how long its stores take, and goes the other way where they are too slow.

use crate::span::Span;
use std::time::{Duration, Instant};

/// Pieces of so many bytes tell how fast stores are.
const TELLING_BYTES: usize = 8 << 10;
/// Fewer bytes a nanosecond are worth going past the caches. Near each other's caches ranks stored 10 and more, far 2.3.
const SLOW: u128 = 4;
/// For how many pieces, before the caches are tried again.
const PIECES_PAST: u32 = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Stores {
    /// So many pieces more go past the caches.
    past: u32,
    /// How many pieces in a row were slow. One alone may have been interrupted.
    slow: u32,
}

impl Stores {
    /// Copies `from`, which others will read, to `to`, which they have read before.
    pub(crate) fn copy(&mut self, from: Span, to: Span) {
        let len = from.len();
        if len < TELLING_BYTES {
            to.copy_from(from);
        } else if self.past > 0 {
            self.past -= 1;
            to.stream_from(from);
        } else {
            let begun = Instant::now();
            to.copy_from(from);
            self.judge(len, begun.elapsed());
        }
    }

    fn judge(&mut self, len: usize, took: Duration) {
        let is_slow = (len as u128) < took.as_nanos() * SLOW;
        self.slow = if is_slow { self.slow + 1 } else { 0 };
        if self.slow >= 2 {
            self.past = PIECES_PAST;
            // Then one slow piece is enough to know that nothing has changed.
            self.slow = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_nanos(1000);
    const LONG: Duration = Duration::from_nanos(5000);

    fn after(pieces: &[Duration]) -> Stores {
        let mut stores = Stores::default();
        pieces.iter().for_each(|&took| stores.judge(16 << 10, took));
        stores
    }

    #[test]
    fn one_slow_piece_is_chance_and_two_are_not() {
        assert_eq!(after(&[QUICK, LONG, QUICK, LONG]).past, 0);
        assert_eq!(after(&[QUICK, LONG, LONG]).past, PIECES_PAST);
    }

    #[test]
    fn the_caches_are_tried_again_and_one_slow_piece_tells() {
        let (mut from, mut to) = (vec![7u8; TELLING_BYTES], vec![0u8; TELLING_BYTES]);
        // SAFETY: the vectors outlive the spans and are used through them alone until then.
        let source = unsafe { Span::new(from.as_mut_ptr(), from.len()) };
        // SAFETY: as above.
        let target = unsafe { Span::new(to.as_mut_ptr(), to.len()) };
        let mut stores = after(&[LONG, LONG]);
        for left in (0..PIECES_PAST).rev() {
            stores.copy(source, target);
            assert_eq!(stores.past, left);
        }
        assert_eq!(to, from);
        stores.judge(16 << 10, LONG);
        assert_eq!(stores.past, PIECES_PAST);
    }
}
