//! A word in shared memory that threads of any process can sleep on.

use crate::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// A number that only rises, and wraps around. Zero at first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    model: system::Model,
}

impl Futex {
    /// Sees all that was done before the last [`bump`](Self::bump) it counts.
    pub(crate) fn value(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Raises it, and wakes all who wait for that.
    pub(crate) fn bump(&self) {
        self.word.fetch_add(1, Ordering::Release);
        system::wake(self);
    }

    /// Sleeps while it is `value`, and not longer than `limit`. May wake for no reason.
    pub(crate) fn wait(&self, value: u32, limit: Duration) {
        system::wait(self, value, limit);
    }
}

#[cfg(not(loom))]
mod system {
    use super::Futex;
    use rustix::thread::futex::{self, Flags};
    use std::time::Duration;

    /// Shared, not private: the word lies in memory of several processes.
    const SHARED: Flags = Flags::empty();

    pub(super) fn wake(futex: &Futex) {
        // It cannot fail on a mapped, aligned word.
        let _ = futex::wake(&futex.word, SHARED, i32::MAX as u32);
    }

    pub(super) fn wait(futex: &Futex, value: u32, limit: Duration) {
        let limit =
            futex::Timespec { tv_sec: limit.as_secs().min(1 << 30) as _, tv_nsec: limit.subsec_nanos() as _ };
        // Woken, timed out, interrupted, or the word has changed: the caller looks again in any case.
        let _ = futex::wait(&futex.word, SHARED, value, Some(&limit));
    }
}

/// What the kernel promises of a futex, for loom: to compare and to fall asleep is one step.
#[cfg(loom)]
mod system {
    use super::Futex;
    #[cfg(test)]
    use crate::sync::AtomicU32;
    use crate::sync::Ordering;
    use loom::sync::{Condvar, Mutex};
    use std::time::Duration;

    #[derive(Debug)]
    pub(super) struct Model {
        lock: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        #[cfg(test)]
        pub(crate) fn new() -> Self {
            let model = Model { lock: Mutex::new(()), woken: Condvar::new() };
            Self { word: AtomicU32::new(0), model }
        }
    }

    pub(super) fn wake(futex: &Futex) {
        let _lock = futex.model.lock.lock().unwrap();
        futex.model.woken.notify_all();
    }

    /// Without a limit: a wake-up that is lost must show as a deadlock.
    pub(super) fn wait(futex: &Futex, value: u32, _limit: Duration) {
        let lock = futex.model.lock.lock().unwrap();
        if futex.word.load(Ordering::Relaxed) == value {
            drop(futex.model.woken.wait(lock).unwrap());
        }
    }
}
