//! What the examples have in common and phalanx has no part in.

pub mod plot;
pub mod progress;
mod warnings;
mod weights;

pub use warnings::show_warnings;
pub use weights::checksum;
