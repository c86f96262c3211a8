//! Optimizer state, gradients and weights that are dealt out over the ranks.

mod config;
mod engine;
mod flat;
mod gathered;
mod gradients;
mod layout;
mod sharded;
mod step_sums;

pub use config::{ShardConfig, Stage};
pub use sharded::Sharded;

/// The parts of which an adapter with a graph makes its own sharded training.
pub mod parts {
    pub use super::engine::Engine;
    pub use super::flat::{Flat, Member, Taken, cut};
    pub use super::gathered::Pass;
    pub use super::gradients::PassSending;
    pub use super::layout::kept;
}
