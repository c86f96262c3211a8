//! What the examples have in common and phalanx has no part in.

pub mod plot;
pub mod progress;
mod weights;

pub use weights::checksum;
