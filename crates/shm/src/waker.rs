//! How ranks that sleep on shared memory learn that something they wait for has happened.

use crate::futex::Futex;
use crate::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// One rank's waker. Others sleep on it until that rank has published what they wait for.
///
/// An event count: who waits registers, *then* looks again, then sleeps; who publishes stores, *then* looks for sleepers.
/// With a fence between the two steps on both sides, either the sleeper sees the store or the publisher sees the sleeper.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Waker {
    /// How often it has woken.
    wakes: Futex,
    sleepers: AtomicU32,
}

impl Waker {
    /// Wakes all sleepers, who find whatever this thread has stored before. Costs a fence while nobody sleeps.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.wakes.bump();
        }
    }

    /// Sleeps until it is woken, unless `ready` holds already, and not longer than `limit`. May wake for no reason.
    pub(crate) fn sleep(&self, ready: impl Fn() -> bool, limit: Duration) {
        let wakes = self.wakes.value();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            self.wakes.wait(wakes, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn waker() -> Waker {
        Waker { wakes: Futex::new(), sleepers: AtomicU32::new(0) }
    }

    /// One publishes twice, the others wait for the second: nobody sleeps for ever.
    fn no_wake_up_is_lost(waiters: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new((waker(), AtomicU32::new(0)));
            let waiting: Vec<_> = (0..waiters)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let (waker, flag) = &*shared;
                        while flag.load(Ordering::Acquire) < 2 {
                            waker.sleep(|| flag.load(Ordering::Acquire) >= 2, Duration::ZERO);
                        }
                    })
                })
                .collect();
            let (waker, flag) = &*shared;
            for value in 1..=2 {
                flag.store(value, Ordering::Release);
                waker.wake();
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
