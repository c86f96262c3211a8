//! What the crate promises, on ranks that are threads over every transport.

mod checkpoints;
mod collectives;
mod common;
mod conformance;
mod diloco;
mod learner;
mod mixed_precision;
mod other_libraries;
mod sharded;
mod training;
