//! Leases: how a rank that gives up can be sure that nobody writes its memory any more.
//!
//! The fastest large reductions store results straight into the buffers of the others. Should one of these return with an
//! error meanwhile (its deadline has passed, a third rank has died), its buffer is its caller's again. So a rank writes foreign memory only
//! under a lease, chunk by chunk, and no lease is given once the team is closed. Who closes it waits until the leases
//! that were out have been returned, or their holders have ended.
//!
//! Reading needs no lease: nothing breaks if the memory is another's meanwhile. But who has read looks afterwards whether the team was
//! open, or else it would take for a gift what the giver's caller has put there since.

use crate::sync::{AtomicU32, Ordering, fence};

/// Whether a team still works together, or what a rank lends is still its own. Zero: it does, and is; otherwise one more than the rank that closed it first.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Closed(pub(crate) AtomicU32);

/// Whether one rank is writing memory of the others. Zero: it is not.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Lease(pub(crate) AtomicU32);

impl Closed {
    /// No lease is given any more: `rank` gives up.
    pub(crate) fn close(&self, rank: usize) {
        // To have read, before the fence, that another closed it is as good as to close it.
        let _ = self.0.compare_exchange(0, rank as u32 + 1, Ordering::Relaxed, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The rank that gave up first, as the memory says. Any process of the team may have written that.
    pub(crate) fn closed_by(&self) -> Option<usize> {
        (self.0.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether what was just read of another's memory is what that rank gave. It is not if the rank gave up before and has put
    /// something else there.
    ///
    /// A rank that gives up closes the team before its memory is its caller's again. Pairs with the fence in `close`: who has read any of what
    /// was written after that sees here that the team is closed.
    pub(crate) fn was_open(&self) -> bool {
        fence(Ordering::Acquire);
        !self.is_closed()
    }
}

impl Lease {
    /// Performs `write`, unless the team is closed: then `None`.
    pub(crate) fn hold<R>(&self, team: &Closed, write: impl FnOnce() -> R) -> Option<R> {
        self.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `close`: either we see that the team is closed, or the closer sees the lease.
        fence(Ordering::SeqCst);
        let _held = Held(self);
        (!team.is_closed()).then(write)
    }

    /// Whether it is out.
    pub(crate) fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// Returns the lease when it ends, also if the writer panics: who waits for that would wait for ever.
struct Held<'l>(&'l Lease);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_panics_returns_its_lease() {
        let (team, lease) = (Closed(AtomicU32::new(0)), Lease(AtomicU32::new(0)));
        let write = || lease.hold(&team, || panic!("on purpose"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
        assert!(!lease.is_held());
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// One writes the other's buffer under a lease; the other closes the team and then uses its buffer: loom's cell
    /// panics if both are at it at once.
    #[test]
    fn nobody_writes_after_the_closer_has_waited() {
        loom::model(|| {
            let team = Arc::new((Closed(AtomicU32::new(0)), Lease(AtomicU32::new(0)), UnsafeCell::new(0)));
            let writer = team.clone();
            let writer = thread::spawn(move || {
                let (closed, lease, buffer) = &*writer;
                for _ in 0..2 {
                    // SAFETY: loom checks what is claimed here.
                    lease.hold(closed, || buffer.with_mut(|b| unsafe { *b += 1 }));
                }
            });
            let (closed, lease, buffer) = &*team;
            closed.close(1);
            while lease.is_held() {
                thread::yield_now();
            }
            // SAFETY: loom checks what is claimed here.
            buffer.with_mut(|b| unsafe { *b += 1 });
            writer.join().unwrap();
        });
    }

    /// As above, where another rank may have closed the team first: then the one that uses its buffer has only read that.
    #[test]
    fn nobody_writes_after_a_second_closer_has_waited() {
        loom::model(|| {
            let team = Arc::new((Closed(AtomicU32::new(0)), Lease(AtomicU32::new(0)), UnsafeCell::new(0)));
            let (writer, first) = (team.clone(), team.clone());
            let writer = thread::spawn(move || {
                let (closed, lease, buffer) = &*writer;
                // SAFETY: loom checks what is claimed here.
                lease.hold(closed, || buffer.with_mut(|b| unsafe { *b += 1 }));
            });
            let first = thread::spawn(move || first.0.close(2));
            let (closed, lease, buffer) = &*team;
            closed.close(1);
            while lease.is_held() {
                thread::yield_now();
            }
            // SAFETY: loom checks what is claimed here.
            buffer.with_mut(|b| unsafe { *b += 1 });
            first.join().unwrap();
            writer.join().unwrap();
            assert!(matches!(closed.closed_by(), Some(1 | 2)));
        });
    }

    /// One reads the other's buffer without a lease; the other closes the team and writes something else there.
    #[test]
    fn who_reads_what_was_written_later_knows_it() {
        loom::model(|| {
            let team = Arc::new((Closed(AtomicU32::new(0)), [0, 1].map(|_| AtomicU32::new(1))));
            let reader = team.clone();
            let reader = thread::spawn(move || {
                let (closed, buffer) = &*reader;
                let read = [0, 1].map(|i: usize| buffer[i].load(Ordering::Relaxed));
                assert!(read == [1, 1] || !closed.was_open(), "{read:?}");
            });
            let (closed, buffer) = &*team;
            closed.close(1);
            buffer.iter().for_each(|word| word.store(2, Ordering::Relaxed));
            reader.join().unwrap();
        });
    }
}
