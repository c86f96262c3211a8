//! A lock for what is nearly always free.

use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::time::Duration;

/// How often a thread that finds it held gives its core away before it sleeps.
const YIELDS: u32 = 100;
/// How long it then sleeps between two attempts, and what the system adds: 50 µs on Linux.
const NAP: Duration = Duration::from_micros(20);

/// A lock that takes one atomic exchange where nobody else wants it, and is given back by a plain store.
///
/// The lock of the standard library takes a second exchange to give itself back, since somebody may sleep for it. An exchange waits until everything that was stored before can be
/// seen by others: where that is a line that another core waits for, it takes as long as the smallest operations. The price is that a thread that finds this
/// lock held is not woken: it gives its core away some times, and then sleeps for some microseconds again and again. Which of several gets it is chance.
///
/// A panic of the thread that holds it gives it back, as if it had been dropped.
#[derive(Debug)]
pub(crate) struct QuickMutex<T>(SpinMutex<T>);

/// What a [`QuickMutex`] guards, as long as a thread has it.
pub(crate) type QuickGuard<'m, T> = SpinMutexGuard<'m, T>;

impl<T> QuickMutex<T> {
    /// A lock that is free.
    pub(crate) fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    /// Takes it if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<QuickGuard<'_, T>> {
        self.0.try_lock()
    }

    /// Waits until it is free, and takes it. A thread that has it already waits for ever.
    #[inline]
    pub(crate) fn lock(&self) -> QuickGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> QuickGuard<'_, T> {
        for _ in 0..YIELDS {
            std::thread::yield_now();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        loop {
            std::thread::sleep(NAP);
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }

    /// The value, where nobody else can have the lock.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_it_at_a_time() {
        let count = QuickMutex::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..1000 {
                        let mut count = count.lock();
                        let before = *count;
                        std::hint::black_box(&mut *count);
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 4000);
    }

    #[test]
    fn who_has_it_for_long_is_waited_for_and_who_panics_gives_it_back() {
        let lock = QuickMutex::new(0);
        std::thread::scope(|threads| {
            let mut held = lock.lock();
            let other = threads.spawn(|| *lock.lock());
            // Longer than all yields.
            std::thread::sleep(Duration::from_millis(20));
            *held = 1;
            drop(held);
            assert_eq!(other.join().unwrap(), 1);
            let panics = threads.spawn(|| {
                let _held = lock.lock();
                panic!("on purpose");
            });
            assert!(panics.join().is_err());
            assert_eq!(*lock.lock(), 1);
        });
    }
}
