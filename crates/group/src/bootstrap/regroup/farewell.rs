//! The end of a generation's groups when a rank goes on to the next.

use crate::control::failure_latch::FailureLatch;
use crate::control::job_context::JobContext;
use crate::control::notice::Notice;
use phalanx_core::{Cause, Deadline, Signature, WORLD};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the arbiter may take to tell all.
const VERDICT_TIME: Duration = Duration::from_secs(1);

/// A rank's farewell to the groups of its generation: it does nothing more in any of them.
#[derive(Debug)]
pub(crate) struct Farewell {
    /// Groups that fail with the group of all ranks, and for what.
    failing: Vec<(Arc<FailureLatch>, Cause)>,
    deadline: Deadline,
}

impl Farewell {
    /// Tells the arbiter. The groups that lose this rank with the group of all ranks fail for the same cause, here
    /// and on their other members, which must not wait there for a rank that is gone. Where nothing has failed, it leaves in order.
    pub(crate) fn say(job: &dyn JobContext, call: &Signature, now: Instant) -> Self {
        // Where the arbiter is on this rank, its word has reached the others when it is heard here.
        let deadline = Deadline::after(now, VERDICT_TIME);
        let groups = job.membership().groups();
        let first =
            groups.iter().find(|latch| latch.group() == WORLD).and_then(|latch| latch.cause().cloned());
        let others = groups.into_iter().filter(|latch| latch.members().len() > 1 && latch.cause().is_none());
        let Some(first) = first else {
            others.for_each(|latch| drop(job.control().send(latch.farewell())));
            return Self { failing: Vec::new(), deadline };
        };
        let cause = match first {
            // Nobody was late in the other groups.
            Cause::TimedOut { .. } => {
                let reason = format!(
                    "it has gone on to another generation, by {} at {}, after: {first}",
                    call.op, call.site
                );
                Cause::Aborted {
                    peer: job.peer(job.place().rank),
                    reason: crate::control::limits::cut(&reason),
                }
            }
            first => first,
        };
        let failing: Vec<_> = others.map(|latch| (latch, cause.clone())).collect();
        for (latch, cause) in &failing {
            let (group, members) = (latch.group(), latch.members().to_vec());
            let notice = Notice::Failed { group, members, cause: cause.clone() };
            // Who insists is not doubted.
            for notice in [notice.clone(), notice] {
                let _ = job.control().send(notice);
            }
        }
        Self { failing, deadline }
    }

    /// Waits for the arbiter's word on them. Those of which it says nothing fail all the same.
    pub(crate) fn wait(&self) {
        for (latch, cause) in &self.failing {
            if latch.wait(&self.deadline).is_none() {
                latch.raise(cause.clone(), None);
            }
        }
    }

    /// As [`wait`](Self::wait), without waiting: when to look again, while the arbiter still has time.
    #[cfg(test)]
    pub(crate) fn poll(&self, now: Instant) -> Result<(), Instant> {
        if !self.deadline.has_passed(now) && self.failing.iter().any(|(latch, _)| latch.cause().is_none()) {
            return Err(self.deadline.until(now));
        }
        self.wait();
        Ok(())
    }
}
