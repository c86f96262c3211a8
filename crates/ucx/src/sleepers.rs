//! Threads that sleep until something comes to the worker that they share.
//!
//! An event wakes whoever sleeps on the descriptor, and is gone when one of them has taken it. So a thread that takes something in wakes the others, who
//! look for themselves.

use phalanx_transport::Waker;
use std::thread::ThreadId;

#[derive(Debug, Default)]
pub(crate) struct Sleepers(Vec<(ThreadId, Waker)>);

impl Sleepers {
    /// This thread is about to sleep.
    pub(crate) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|(_, other)| other.is(waker)) {
            self.0.push((std::thread::current().id(), waker.clone()));
        }
    }

    /// Wakes all but this thread, which is awake.
    pub(crate) fn wake_others(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let me = std::thread::current().id();
        self.0.drain(..).filter(|(thread, _)| *thread != me).for_each(|(_, waker)| waker.wake());
    }
}
