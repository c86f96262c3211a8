//! A simulated process as its control plane sees it.

use super::network::Net;
use crate::control::changes::Changes;
use crate::control::runtime::Runtime;
use phalanx_trace::Now;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The process as its control plane sees it.
#[derive(Debug)]
pub(super) struct SimRuntime {
    net: Net,
    /// When the process slept last, and for how long: nothing happens in the network meanwhile.
    slept: Mutex<(Instant, Duration)>,
}

impl SimRuntime {
    pub(super) fn new(net: &Net) -> Self {
        let slept = Mutex::new((net.lock().now, Duration::ZERO));
        Self { net: net.clone(), slept }
    }
}

impl Runtime for SimRuntime {
    fn now(&self) -> Instant {
        let now = self.net.lock().now;
        let (at, slept) = *self.slept.lock().unwrap_or_else(PoisonError::into_inner);
        if at == now { now + slept } else { now }
    }

    /// A caller that sleeps here keeps the one thread from the others, so it hears nothing from them: its time is over.
    fn sleep(&self, _changes: &Changes, _seen: u64, limit: Duration) {
        let now = self.net.lock().now;
        let slept = self.now().saturating_duration_since(now) + limit;
        *self.slept.lock().unwrap_or_else(PoisonError::into_inner) = (now, slept);
    }

    fn trace_time(&self) -> Now {
        Now { at: 0, epoch: 0 }
    }

    /// It has one thread, which does nothing while it waits.
    fn stands_still(&self) -> bool {
        true
    }
}
