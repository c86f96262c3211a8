//! How the receiving end copies what another process lends, and waits for the lender's last chunk.

use crate::loan::Copies;
use crate::other_process::Process;
use crate::span::Span;
use phalanx_transport::Patience;
use std::io::Result;
use std::ops::Range;
use std::time::Duration;

/// How often a lender's last chunk is waited for awake: so long it takes where nothing is wrong.
const LOOKS_AWAKE: u32 = 20_000;
/// The time between two looks after those.
const PAUSE: Duration = Duration::from_millis(1);
/// For how many pauses a lender that is in the middle of a chunk may go on when it is waited for in vain. Those in which this process was stopped too do not count.
const LAST_PAUSES: u32 = 1000;

/// Copies what another process lends to a place of this one.
pub(crate) struct Reading<'a> {
    peer: usize,
    process: &'a Process,
    place: Span,
    patience: Option<&'a dyn Patience>,
    looks: u32,
    pauses: u32,
    /// Of the pauses, those since it is known that the wait is in vain.
    in_vain: u32,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(
        peer: usize,
        process: &'a Process,
        place: Span,
        patience: Option<&'a dyn Patience>,
    ) -> Self {
        Self { peer, process, place, patience, looks: 0, pauses: 0, in_vain: 0 }
    }

    fn is_in_vain(&self) -> bool {
        self.in_vain > 0 || self.patience.is_none_or(|patience| patience.is_over(self.pauses * PAUSE))
    }
}

impl Copies for Reading<'_> {
    type Error = std::io::Error;

    fn read(&mut self, addr: u64, range: Range<usize>) -> Result<()> {
        self.process.read(addr, self.place.part(range))
    }

    /// A lender whose process is stopped in the middle of a chunk may go on, so it is waited for as long as the operation goes on. When that has failed, its memory must be its caller's
    /// again, which it can't be before the chunk is written, or the lender has ended: so then the lender is ended, if it has not gone on in the meantime.
    fn waits(&mut self) -> bool {
        if self.looks < LOOKS_AWAKE {
            self.looks += 1;
            std::hint::spin_loop();
            return false;
        }
        if self.is_in_vain() {
            self.in_vain = self.in_vain.saturating_add(1);
            if self.in_vain == LAST_PAUSES {
                // Being stopped keeps no process from being ended.
                self.process.end_its_copy(self.peer);
            }
        }
        self.pauses = self.pauses.saturating_add(1);
        std::thread::sleep(PAUSE);
        self.process.has_ended()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tests::sleeper::Sleeper;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Over when the test says so.
    #[derive(Debug, Default)]
    struct Said(AtomicBool);

    impl Patience for Said {
        fn is_over(&self, _waited: Duration) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// Over after a while.
    #[derive(Debug)]
    struct Limit(Duration);

    impl Patience for Limit {
        fn is_over(&self, waited: Duration) -> bool {
            waited >= self.0
        }
    }

    /// Waits for a lender that never goes on, until it has ended, or so many looks and pauses; returns whether it has.
    fn wait(lender: &Sleeper, patience: &dyn Patience, times: u32) -> bool {
        let process = Process::open(lender.0.id()).unwrap();
        // SAFETY: no byte is used.
        let place = unsafe { Span::new(std::ptr::NonNull::dangling().as_ptr(), 0) };
        let mut reading = Reading::new(1, &process, place, Some(patience));
        (0..times).any(|_| reading.waits())
    }

    #[test]
    fn a_lender_is_waited_for_as_long_as_the_operation_goes_on() {
        let mut lender = Sleeper::start();
        assert!(!wait(&lender, &Said::default(), LOOKS_AWAKE + 2 * LAST_PAUSES));
        assert!(lender.lives(), "the operation goes on");
    }

    #[test]
    fn a_lender_is_ended_if_it_does_not_go_on_soon_after_the_operation_has_failed() {
        let mut lender = Sleeper::start();
        let failed = Said(AtomicBool::new(true));
        assert!(!wait(&lender, &failed, LOOKS_AWAKE + LAST_PAUSES / 2));
        assert!(lender.lives(), "it may still go on");
        assert!(wait(&lender, &failed, LOOKS_AWAKE + 2 * LAST_PAUSES));
        assert!(!lender.lives());
    }

    #[test]
    fn the_time_that_a_wait_has_lasted_is_what_patience_is_told() {
        let lender = Sleeper::start();
        assert!(!wait(&lender, &Limit(Duration::from_secs(1)), LOOKS_AWAKE + 2 * LAST_PAUSES - 1));
        assert!(wait(&lender, &Limit(Duration::from_secs(1)), LOOKS_AWAKE + 3 * LAST_PAUSES));
    }
}
