//! What the distributed program and the plain one have in common, so that comparing them means something.

pub mod cli;
pub mod data;
pub mod model;
pub mod optimizer;
pub mod plot;
pub mod progress;
pub mod report;
