//! A rank's line to the arbiter, as those see it that have something to tell.

use crate::notice::Notice;
use phalanx_core::Result;

/// A rank's line to the arbiter.
pub trait Control: Send + Sync + std::fmt::Debug {
    /// Sends a notice. Verdicts come back through the [`Membership`](crate::membership::Membership).
    ///
    /// # Errors
    /// The arbiter cannot be reached any more.
    fn send(&self, notice: Notice) -> Result<()>;
}
