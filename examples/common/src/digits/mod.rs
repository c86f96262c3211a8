//! What the programs that learn the digits have in common, whatever library they train with.

pub mod cli;
pub mod images;
pub mod plot;
pub mod progress;
pub mod report;
pub mod start;
