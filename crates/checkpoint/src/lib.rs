//! Checkpoints of distributed training: sharded, atomic, verified, and for any number of ranks.
//!
//! Each rank gives its [`State`]: tensors by name, and small values. [`Checkpoints::save`] writes them, each rank its part, as one
//! [safetensors](https://docs.rs/safetensors) file a rank with a manifest beside them. [`Checkpoints::latest_good`] finds the newest
//! checkpoint that is whole, on another number of ranks too, and each rank reads of that [`Checkpoint`] what it needs.
//!
//! What is on the disk: `docs/reference/checkpoint.md` in the repository describes it, and what happens when ranks are killed.
//!
//! This crate knows names, element types, shapes, bytes and ranks, and no library of tensors: `phalanx-candle` is the adapter
//! for candle.

mod checkpoint;
mod checkpoints;
mod error;
mod file;
mod folder;
mod layout;
mod lock;
mod manifest;
mod saving;
mod state;
mod stateful;
mod tensor_info;
mod value;

pub use checkpoint::Checkpoint;
pub use checkpoints::Checkpoints;
pub use error::{Error, Result};
pub use state::State;
pub use stateful::Stateful;
pub use tensor_info::TensorInfo;
