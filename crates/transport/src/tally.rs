//! How much has moved on the links of a group, for whoever wants to know whether anything can still be on its way.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one [`Wire`](crate::Wire), which alone writes them.
#[derive(Debug)]
pub struct Tally {
    begun: Box<[AtomicU64]>,
    arrived: Box<[AtomicU64]>,
    bytes: AtomicU64,
}

impl Tally {
    pub(crate) fn new(peers: usize) -> Self {
        let zeros = || (0..peers).map(|_| AtomicU64::default()).collect();
        Self { begun: zeros(), arrived: zeros(), bytes: AtomicU64::default() }
    }

    /// Point-to-point messages to `peer` of which a part was sent.
    pub fn begun(&self, peer: usize) -> u64 {
        self.begun[peer].load(Ordering::Acquire)
    }

    /// Point-to-point messages from `peer` of which a part has come, whether anybody wanted them or not.
    pub fn arrived(&self, peer: usize) -> u64 {
        self.arrived[peer].load(Ordering::Acquire)
    }

    /// Bytes that were sent or received.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Peers, and this rank.
    pub fn peers(&self) -> usize {
        self.begun.len()
    }

    pub(crate) fn message_begins(&self, peer: usize) {
        add(&self.begun[peer], 1);
    }

    pub(crate) fn message_arrives(&self, peer: usize) {
        add(&self.arrived[peer], 1);
    }

    pub(crate) fn moved(&self, bytes: usize) {
        add(&self.bytes, bytes as u64);
    }
}

/// Only one thread at a time writes.
fn add(count: &AtomicU64, n: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
}
