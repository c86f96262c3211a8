//! The end of a generation's groups when a rank goes on to the next.

use crate::control::job_context::JobContext;
use crate::control::notice::Notice;
use phalanx_core::{Cause, Deadline, Signature, WORLD};
use std::time::{Duration, Instant};

/// How long the arbiter may take to tell all.
const VERDICT_TIME: Duration = Duration::from_secs(1);

/// This rank will do nothing more in any group of the job. Those that lose it with the group of all ranks fail for the same cause, here
/// and on their other members, which must not wait there for a rank that is gone. Where nothing has failed, it leaves in order.
pub(super) fn fail_groups(job: &dyn JobContext, call: &Signature) {
    let groups = job.membership().groups();
    let first = groups.iter().find(|latch| latch.group() == WORLD).and_then(|latch| latch.cause().cloned());
    let others = groups.iter().filter(|latch| latch.members().len() > 1 && latch.cause().is_none());
    let Some(first) = first else {
        others.for_each(|latch| {
            let (group, members) = (latch.group(), latch.members().to_vec());
            let _ = job.control().send(Notice::LeaveGroup { group, members });
        });
        return;
    };
    let cause = match first {
        // Nobody was late in the other groups.
        Cause::TimedOut { .. } => {
            let reason = format!(
                "it has gone on to another generation, by {} at {}, after: {first}",
                call.op, call.site
            );
            Cause::Aborted { peer: job.peer(job.place().rank), reason: crate::control::limits::cut(&reason) }
        }
        first => first,
    };
    let others: Vec<_> = others.collect();
    for latch in &others {
        let (group, members) = (latch.group(), latch.members().to_vec());
        let notice = Notice::Failed { group, members, cause: cause.clone() };
        // Who insists is not doubted.
        for notice in [notice.clone(), notice] {
            let _ = job.control().send(notice);
        }
    }
    // Where the arbiter is on this rank, its word has reached the others when it is heard here.
    let deadline = Deadline::after(Instant::now(), VERDICT_TIME);
    for latch in others {
        if latch.wait(&deadline).is_none() {
            latch.raise(cause.clone(), None);
        }
    }
}
