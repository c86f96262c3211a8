//! Targets for a fuzzer: what this crate promises about bytes that others may have sent or written. Each takes any input
//! and panics where a promise is broken.

mod config;
mod files;
mod launchers;
mod store;

pub use config::config;
pub use files::files;
pub use launchers::{meeting, tasks};
pub use store::store;
