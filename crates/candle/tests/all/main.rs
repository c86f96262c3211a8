//! All tests of the adapter but those of GPUs: one program, since each links candle.

mod checkpoint;
mod common;
mod conformance;
mod diloco;
#[cfg(target_os = "linux")]
mod endings;
mod graph;
mod hooks;
mod layers;
mod model;
mod overlap;
mod parallel;
mod semantics;
mod sgd;
mod shard;
mod sync_batch_norm;
mod tensor;
mod units;
mod verify;
