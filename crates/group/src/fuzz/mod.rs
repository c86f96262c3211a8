//! Targets for a fuzzer: what this crate promises about bytes that others may have sent or written. Each takes any input
//! and panics where a promise is broken.

mod control;
mod operations;
mod prices;
mod traces;

pub use control::control;
pub use operations::operations;
pub use prices::prices;
pub use traces::traces;
