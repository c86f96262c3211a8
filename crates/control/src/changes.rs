//! How whoever waits for something hears that it has changed.

use crate::lock::lock;
use phalanx_transport::Waker;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Changes of something that threads wait for: how many there were, and who is woken by the next.
///
/// A thread that waits asks [`seen`](Self::seen), *then* looks at what may have changed, then sleeps until there are more. What changes it is
/// visible before it is told.
#[derive(Debug, Default)]
pub struct Changes {
    count: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
}

impl Changes {
    /// How many there were. Sees all that was done before them.
    pub fn seen(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Something has changed: wakes all who listen.
    pub fn tell(&self) {
        self.count.fetch_add(1, Ordering::Release);
        lock(&self.wakers).iter().for_each(Waker::wake);
    }

    /// Wakes `waker` at every change, until [`hush`](Self::hush).
    pub fn listen(&self, waker: &Waker) {
        lock(&self.wakers).push(waker.clone());
    }

    /// Undoes [`listen`](Self::listen).
    pub fn hush(&self, waker: &Waker) {
        lock(&self.wakers).retain(|other| !other.is(waker));
    }
}
