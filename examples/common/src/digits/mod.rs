//! What the programs that learn the digits have in common, whatever library they train with.

pub mod cli;
pub mod images;
pub mod plot;
pub mod progress;
pub mod report;
pub mod start;

/// The final loss of each of these programs after `--epochs 2 --batch-size 33 --seed 5`, on any number of ranks: they do the same arithmetic, and differ in the
/// order of their sums.
pub const LOSS_AFTER_TWO_EPOCHS: f64 = 0.088019455;
