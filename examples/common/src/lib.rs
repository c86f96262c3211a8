//! What the examples and benchmarks have in common.

pub mod digits;
pub mod plot;
pub mod progress;
#[cfg(feature = "steps")]
pub mod steps;
mod warnings;
mod weights;

pub use warnings::show_warnings;
#[cfg(feature = "candle")]
pub use weights::checksum;
pub use weights::checksum_of;
