//! Checkpoints of a `VarStore`, made of those of [`phalanx_train`](phalanx_train::checkpoint).
//!
//! [`save_vars`] adds a store's variables to a [`State`], each under its name, and [`load_vars`] restores them from a [`Checkpoint`], on any number of ranks.
//! The place in the data is a [`SamplerState`](crate::SamplerState). Files are in the format of safetensors, so what another library has saved under the same
//! names can be loaded too.
//!
//! What tch's optimizers remember is not saved: tch gives nobody access to it. Optimizers of [`Sharded`](crate::Sharded) are [`Stateful`].

pub use phalanx_train::checkpoint::{Checkpoint, Checkpoints, Error, Result, State, Stateful, TensorInfo};

use crate::torch::Torch;
use crate::variables::{Variable, named, variables};
use phalanx::error::OpKind;
use phalanx_train::checkpoint::{copied, info, load_tensors};
use tch::nn::VarStore;

/// Adds the variables of `store` to `state`, under `prefix`, a dot, and their names. Of those that are not trained, as running statistics, which may differ
/// between ranks, rank 0's are saved: after [`load_vars`] all ranks have these.
///
/// # Errors
/// [`Error::Tensors`] for variables that are not on the CPU, or have elements that can't be saved.
///
/// # Examples
/// ```
/// use phalanx_tch::checkpoint::{Checkpoints, State, load_vars, save_vars};
/// use tch::{Device, nn};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
/// let store = nn::VarStore::new(Device::Cpu);
/// store.root().ones("bias", &[2]);
/// let mut state = State::new();
/// save_vars(&store, "model", &mut state)?;
/// checkpoints.save(7, state)?;
///
/// let other = nn::VarStore::new(Device::Cpu);
/// let bias = other.root().zeros("bias", &[2]);
/// load_vars(&other, "model", &checkpoints.load(7)?)?;
/// assert_eq!(f64::try_from(bias.sum(None)).unwrap(), 2.0);
/// # Ok::<(), phalanx_tch::checkpoint::Error>(())
/// ```
pub fn save_vars(store: &VarStore, prefix: &str, state: &mut State<'_>) -> Result<()> {
    for Variable { name, tensor, is_trainable } in variables(store) {
        let tensor = Torch::of(OpKind::Gather, tensor)?;
        let (full, info) = (format!("{prefix}.{name}"), info(&tensor));
        let copy = copied::<Torch, _>(tensor);
        if is_trainable {
            state.tensor(full, info, copy);
        } else {
            state.tensor_of_rank_0(full, info, copy);
        }
    }
    Ok(())
}

/// Gives the variables of `store` the values that were saved under `prefix`, in place: layers that were built with them see it. What else the checkpoint
/// has is left alone.
///
/// # Errors
/// [`Error::Missing`] and [`Error::OtherTensor`]: the checkpoint is of another model, and nothing was changed. [`Error::Io`], after which some
/// variables may have been changed.
///
/// # Examples
/// See [`save_vars`].
pub fn load_vars(store: &VarStore, prefix: &str, from: &Checkpoint) -> Result<()> {
    let all = variables(store);
    let mut all = named(&all, OpKind::Scatter)?;
    load_tensors(all.iter_mut().map(|(name, tensor)| (*name, tensor)), prefix, from)
}
