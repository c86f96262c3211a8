//! What wakes a thread that sleeps.

#[cfg(feature = "sockets")]
use crate::self_pipe::SelfPipe;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An event count in shared memory, by which other processes can wake this one.
///
/// A sleeper reads [`wakes`](Self::wakes), *then* looks whether there is anything to do, then sleeps until the count is another. A thread that
/// wakes it has changed something before. So either the sleeper sees the change or its sleep ends at once.
pub trait WakeSource: Send + Sync + fmt::Debug {
    /// How often it was woken, modulo 2³². Sees all that was done before.
    fn wakes(&self) -> u32;

    /// Wakes all who sleep on it.
    fn wake(&self);

    /// Sleeps while it has been woken `wakes` times, and not longer than `limit`. May wake for no reason.
    fn sleep(&self, wakes: u32, limit: Duration);
}

/// Wakes the thread whose [`Wait`](crate::Wait) is on it. Cheap to clone; waking never blocks and is remembered
/// until the next sleep.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Kind>);

/// What is woken.
#[derive(Debug)]
pub(crate) enum Kind {
    #[cfg(feature = "sockets")]
    SelfPipe(SelfPipe),
    Source(Arc<dyn WakeSource>),
}

impl Waker {
    /// A waker that wakes `source`, and that `source` wakes. Each thread that sleeps on one source has a waker of its own.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::{Wait, WakeSource, Waker};
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use std::{sync::Arc, time::Duration};
    ///
    /// /// A count that is looked at again and again.
    /// #[derive(Debug, Default)]
    /// struct Count(AtomicU32);
    ///
    /// impl WakeSource for Count {
    ///     fn wakes(&self) -> u32 {
    ///         self.0.load(Ordering::SeqCst)
    ///     }
    ///
    ///     fn wake(&self) {
    ///         self.0.fetch_add(1, Ordering::SeqCst);
    ///     }
    ///
    ///     fn sleep(&self, wakes: u32, limit: Duration) {
    ///         let begun = std::time::Instant::now();
    ///         while self.wakes() == wakes && begun.elapsed() < limit {
    ///             std::thread::yield_now();
    ///         }
    ///     }
    /// }
    ///
    /// let source = Arc::new(Count::default());
    /// let mut wait = Wait::on(Waker::at(source.clone()));
    /// source.wake(); // as a peer does when bytes can move
    /// wait.sleep(Duration::from_secs(3600)); // returns at once
    /// ```
    pub fn at(source: Arc<dyn WakeSource>) -> Self {
        Self(Arc::new(Kind::Source(source)))
    }

    /// Wakes the sleeper now, or at its next attempt to sleep.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::{Wait, Waker};
    ///
    /// let waker = Waker::new()?;
    /// let mut wait = Wait::on(waker.clone());
    /// std::thread::spawn(move || waker.wake());
    /// wait.sleep(std::time::Duration::from_secs(3600)); // until the other thread wakes it
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wake(&self) {
        match &*self.0 {
            #[cfg(feature = "sockets")]
            Kind::SelfPipe(waker) => waker.wake(),
            Kind::Source(source) => source.wake(),
        }
    }

    /// Whether both handles wake one sleeper.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::Waker;
    ///
    /// let waker = Waker::new()?;
    /// assert!(waker.clone().is(&waker));
    /// assert!(!Waker::new()?.is(&waker));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(feature = "sockets")]
impl Waker {
    /// One that has not been woken.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::{Wait, Waker};
    ///
    /// let waker = Waker::new()?;
    /// Wait::on(waker.clone()).sleep(std::time::Duration::from_millis(1)); // nobody wakes it
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(Arc::new(Kind::SelfPipe(SelfPipe::new()?))))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }
}
