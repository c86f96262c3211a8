//! What was counted, by operation.

use phalanx::backend::Signature;
use phalanx::error::OpKind;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// All calls of one operation.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// How many there were.
    pub calls: u64,
    /// Of what each was called with, as all ranks agree on it.
    pub bytes: u64,
    /// How long they took from the call to the end; asynchronous ones with what was before them.
    pub time: Duration,
    /// How many took too long.
    pub slow: u64,
}

/// What the groups of this process have communicated.
#[derive(Debug)]
pub struct Counters {
    slow: Duration,
    totals: Mutex<BTreeMap<String, Totals>>,
}

impl Counters {
    pub(crate) fn new(slow: Duration) -> Self {
        Self { slow, totals: Mutex::default() }
    }

    pub(crate) fn add(&self, call: &Signature, time: Duration, rank: usize) {
        let bytes = call.count * call.dtype.map_or(1, phalanx::DType::size) as u64;
        let is_slow = time >= self.slow;
        if is_slow {
            tracing::warn!(rank, %call, ?time, "a slow call");
        }
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let of_op = totals.entry(call.op.to_string()).or_default();
        of_op.calls += 1;
        of_op.bytes += bytes;
        of_op.time += time;
        of_op.slow += u64::from(is_slow);
    }

    /// What was counted of an operation.
    pub fn of(&self, op: OpKind) -> Totals {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.get(&op.to_string()).copied().unwrap_or_default()
    }
}

impl fmt::Display for Counters {
    /// A line for each operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.iter().try_for_each(|(op, of_op)| {
            let Totals { calls, bytes, time, slow } = of_op;
            writeln!(f, "{op}: {calls} calls, {bytes} bytes, {time:.1?}, {slow} slow")
        })
    }
}
