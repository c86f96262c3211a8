//! The control plane: who is here, who is lost, and what went wrong first.
//!
//! Every rank keeps one line to the [`Arbiter`](arbiter::Arbiter) on rank 0. Whoever notices trouble reports it and believes the
//! arbiter's verdict instead of its own eyes: all verdicts reach all ranks in one order, so all ranks name the
//! same first cause, even when failing ranks bring down others. On lines between processes both ends send
//! [beats](heartbeat), so that who is stopped or cut off is found as well.

pub(crate) mod arbiter;
pub(crate) mod build;
pub(crate) mod client;
pub(crate) mod error_state;
pub(crate) mod failure_latch;
pub(crate) mod failure_report;
pub(crate) mod group_health;
pub(crate) mod heartbeat;
pub(crate) mod job_context;
pub(crate) mod launcher_link;
pub(crate) mod limits;
pub(crate) mod membership;
pub(crate) mod notice;
pub(crate) mod outage;
pub(crate) mod reminder;
pub(crate) mod standstill;
pub(crate) mod terms;
pub(crate) mod waits;

use notice::Notice;
use phalanx_core::Result;

/// A rank's line to the arbiter.
pub(crate) trait Control: Send + Sync + std::fmt::Debug {
    /// Sends a notice. Verdicts come back through the [`Membership`](membership::Membership).
    ///
    /// # Errors
    /// The arbiter cannot be reached any more.
    fn send(&self, notice: Notice) -> Result<()>;
}
