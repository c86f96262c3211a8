//! Optimizer state, gradients and weights that are dealt out over the ranks.

mod account;
mod config;
mod engine;
mod flat;
mod gradients;
mod handout;
mod saved;
mod sharded;
#[cfg(test)]
mod tests;
mod unit;
mod weights;

pub use config::{ShardConfig, Stage};
pub use handout::Units;
pub(crate) use saved::Extent;
pub use sharded::Sharded;
pub use unit::Unit;
