//! What the trouble of a team means for its group.

use crate::control::group_health::GroupHealth;
use phalanx_core::{Cause, Loss};
use phalanx_shm::Fault;
use std::time::Instant;

/// What the team's trouble in collective `seq` means, where the arbiter does not say.
pub(super) fn cause(health: &GroupHealth, seq: u64, fault: &Fault) -> Cause {
    if let Some(peer) = health.anybody_gone(seq, Instant::now()) {
        return Cause::Lost { peer, how: Loss::Left };
    }
    match fault {
        Fault::Mismatch { peer, seq, their_seq, theirs, method } => {
            let called =
                theirs.as_ref().map_or_else(|| "something unreadable".to_owned(), ToString::to_string);
            let here = health.members()[health.rank];
            let what = match theirs {
                Some(_) if seq == their_seq => {
                    format!(
                        "its call #{seq} ({called}) is that of rank {here}, and performed as there, by {method}, but an earlier one differed"
                    )
                }
                _ => format!(
                    "rank {here} is at #{seq}, this one at #{their_seq} ({called}): it, or an earlier call, differed"
                ),
            };
            Cause::Protocol { peer: health.peer(*peer), what }
        }
        Fault::Counts { peer, sent, expected } => {
            let what = format!("it sends {sent} bytes, where {expected} are expected here");
            Cause::Protocol { peer: health.peer(*peer), what }
        }
        Fault::Unreachable { peer, error } => {
            tracing::warn!(peer = %health.peer(*peer), %error, "its memory cannot be reached");
            Cause::Lost { peer: health.peer(*peer), how: health.unreachable() }
        }
        // Whoever gave up here has most likely done so for what ended rank 0, and the arbiter with it.
        Fault::Stopped | Fault::Closed { .. } | Fault::Failed(_) if health.arbiter_ended_after_error() => {
            Cause::Lost { peer: health.job.peer(0), how: Loss::LeftAfterError }
        }
        // What it gave up for, it says itself.
        Fault::Closed { by: Some(peer) } if *peer != health.rank => {
            let reason = "it gave up in shared memory, and the arbiter did not say why".to_owned();
            Cause::Aborted { peer: health.peer(*peer), reason }
        }
        Fault::Stopped | Fault::Closed { .. } | Fault::Failed(_) => {
            let reason = "a rank of this host gave up, and the arbiter did not say why".to_owned();
            Cause::Aborted { peer: health.peer(health.rank), reason }
        }
    }
}
