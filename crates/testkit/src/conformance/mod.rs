//! Suites of tests that every implementation of a trait must pass. One joins with one line of macro.

pub mod group;
pub mod store;
pub mod train;
pub mod transport;
