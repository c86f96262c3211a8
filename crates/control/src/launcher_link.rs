//! The interface to the launcher: what a rank tells it, and learns from it.

use phalanx_core::{Cause, Loss};

/// The launcher, as the control plane knows it.
pub trait LauncherLink: Send + Sync + std::fmt::Debug {
    /// A group has failed. Never fails or waits.
    fn report(&self, cause: &Cause);

    /// How the process of a rank has ended, if the launcher has said so. It speaks of the processes on its own host.
    fn exit_of(&self, rank: usize) -> Option<Loss>;
}
