//! Distributed training for Rust: collectives, process groups and data-parallel training.
