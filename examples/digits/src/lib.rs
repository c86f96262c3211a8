//! What the distributed program and the plain one have in common, so that comparing them means something.

pub mod data;
pub mod model;
pub mod optimizer;

pub use examples_common::digits::{cli, plot, progress, report};
