//! A bell in shared memory: how ranks that sleep learn that something they wait for has happened.

use crate::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// One rank's bell. Others sleep on it until that rank has published what they wait for.
///
/// An event count: who waits registers, *then* looks again, then sleeps; who publishes stores, *then* looks for sleepers.
/// With a fence between the two steps on both sides, either the sleeper sees the store or the publisher sees the sleeper.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Bell {
    /// How often it has rung; the word that sleepers sleep on.
    rung: AtomicU32,
    sleepers: AtomicU32,
    #[cfg(loom)]
    futex: futex::Model,
}

impl Bell {
    /// Wakes all sleepers, who find whatever this thread has stored before. Costs a fence while nobody sleeps.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.rung.fetch_add(1, Ordering::Release);
            futex::wake(self);
        }
    }

    /// Sleeps until the bell rings, unless `ready` holds already, and not longer than `limit`. May wake for no reason.
    pub(crate) fn sleep(&self, ready: impl Fn() -> bool, limit: Duration) {
        let rung = self.rung.load(Ordering::Acquire);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            futex::wait(self, rung, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
mod futex {
    use super::Bell;
    use rustix::thread::futex::{self, Flags};
    use std::time::Duration;

    /// Shared, not private: the word lies in memory of several processes.
    const SHARED: Flags = Flags::empty();

    pub(super) fn wake(bell: &Bell) {
        // It cannot fail on a mapped, aligned word.
        let _ = futex::wake(&bell.rung, SHARED, i32::MAX as u32);
    }

    pub(super) fn wait(bell: &Bell, rung: u32, limit: Duration) {
        let limit =
            futex::Timespec { tv_sec: limit.as_secs().min(1 << 30) as _, tv_nsec: limit.subsec_nanos() as _ };
        // Woken, timed out, interrupted, or the word has changed: the caller looks again in any case.
        let _ = futex::wait(&bell.rung, SHARED, rung, Some(&limit));
    }
}

/// What the kernel promises of a futex, for loom: to compare and to fall asleep is one step.
#[cfg(loom)]
mod futex {
    use super::Bell;
    use crate::sync::Ordering;
    use loom::sync::{Condvar, Mutex};
    use std::time::Duration;

    #[derive(Debug)]
    pub(super) struct Model {
        lock: Mutex<()>,
        woken: Condvar,
    }

    impl Model {
        pub(super) fn new() -> Self {
            Self { lock: Mutex::new(()), woken: Condvar::new() }
        }
    }

    pub(super) fn wake(bell: &Bell) {
        let _lock = bell.futex.lock.lock().unwrap();
        bell.futex.woken.notify_all();
    }

    /// Without a limit: a wake-up that is lost must show as a deadlock.
    pub(super) fn wait(bell: &Bell, rung: u32, _limit: Duration) {
        let lock = bell.futex.lock.lock().unwrap();
        if bell.rung.load(Ordering::Relaxed) == rung {
            drop(bell.futex.woken.wait(lock).unwrap());
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn bell() -> Bell {
        Bell { rung: AtomicU32::new(0), sleepers: AtomicU32::new(0), futex: futex::Model::new() }
    }

    /// One publishes twice, the others wait for the second: nobody sleeps for ever.
    fn no_wake_up_is_lost(waiters: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new((bell(), AtomicU32::new(0)));
            let waiting: Vec<_> = (0..waiters)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let (bell, flag) = &*shared;
                        while flag.load(Ordering::Acquire) < 2 {
                            bell.sleep(|| flag.load(Ordering::Acquire) >= 2, Duration::ZERO);
                        }
                    })
                })
                .collect();
            let (bell, flag) = &*shared;
            for value in 1..=2 {
                flag.store(value, Ordering::Release);
                bell.ring();
            }
            waiting.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn no_wake_up_is_lost_with_one_sleeper() {
        no_wake_up_is_lost(1);
    }

    #[test]
    fn no_wake_up_is_lost_with_two_sleepers() {
        no_wake_up_is_lost(2);
    }
}
