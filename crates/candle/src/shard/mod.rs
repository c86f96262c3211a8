//! Optimizer state, gradients and weights that are dealt out over the ranks.

mod config;
mod engine;
mod flat;
mod gradients;
mod saved;
mod sharded;
mod step_sums;
#[cfg(test)]
mod tests;
mod unit;
mod var_backend;
mod weights;

pub use config::{ShardConfig, Stage};
pub(crate) use saved::Extent;
pub use sharded::Sharded;
pub use unit::Unit;
pub use var_backend::Units;
