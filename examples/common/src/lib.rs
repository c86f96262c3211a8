//! What the examples have in common and phalanx has no part in.

pub mod digits;
pub mod plot;
pub mod progress;
mod warnings;
mod weights;

pub use warnings::show_warnings;
#[cfg(feature = "candle")]
pub use weights::checksum;
pub use weights::checksum_of;
