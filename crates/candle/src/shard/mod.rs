//! Sharded training by a graph of candle's: units, and weights that come and go with them.

mod engine;
mod saved;
mod sharded;
#[cfg(test)]
mod tests;
mod unit;
mod var_backend;
mod weights;

pub use phalanx_train::{ShardConfig, Stage};
pub use sharded::Sharded;
pub use unit::Unit;
pub use var_backend::Units;
