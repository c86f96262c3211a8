//! What the handles of a hub and the thread that looks after it share.

use crate::hub::Hub;
use phalanx_transport::Waker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the handles and the attendant share.
pub(crate) struct Shared {
    /// There until the attendant ends it.
    hub: Mutex<Option<Box<Hub>>>,
    /// How often a thread of the program has used the hub.
    uses: AtomicU64,
    is_over: AtomicBool,
    is_attendant_asleep: AtomicBool,
    attendant: Waker,
}

impl Shared {
    pub(crate) fn new(hub: Hub, attendant: Waker) -> Self {
        Self {
            hub: Mutex::new(Some(Box::new(hub))),
            uses: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_attendant_asleep: AtomicBool::new(false),
            attendant,
        }
    }

    /// A thread of the program is about to use the hub.
    pub(crate) fn count_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// There is something to do for the attendant, once the program has turned away. Called with the hub locked.
    pub(crate) fn wake_attendant(&self) {
        if self.is_attendant_asleep.swap(false, Ordering::Relaxed) {
            self.attendant.wake();
        }
    }

    /// Nobody has links any more.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.attendant.wake();
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Box<Hub>>> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often threads of the program have used the hub so far.
    pub(crate) fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Called with the hub locked: whoever has it next knows.
    pub(crate) fn attendant_sleeps(&self) {
        self.is_attendant_asleep.store(true, Ordering::Relaxed);
    }

    pub(crate) fn attendant_is_awake(&self) {
        self.is_attendant_asleep.store(false, Ordering::Relaxed);
    }
}
