//! Checkpoints of tensors of any library: [`phalanx_checkpoint`], which knows no tensors, with what it needs to know of these.
//!
//! [`save_tensors`] adds a model to a [`State`], and [`load_tensors`] restores it from a [`Checkpoint`]. [`AdamW`](crate::AdamW) and
//! [`Sgd`](crate::Sgd) are [`Stateful`]. The place in the data is a [`SamplerState`](crate::SamplerState). All are saved under the names that the program
//! gives its weights: what one library's ranks have saved another's load, where the names are the same.
//!
//! # Examples
//! ```
//! use phalanx::ProcessGroup;
//! use phalanx_train::checkpoint::{Checkpoints, State, load_tensors, save_tensors};
//! use phalanx_train::{Array, Result, Sgd, SgdParams};
//! use std::path::Path;
//!
//! /// Trains for as many steps, from where the last one has ended.
//! fn train(folder: &Path, group: &ProcessGroup, steps: u64) -> Result<Array> {
//!     let mut weights = [Array::from(vec![0f32; 2])];
//!     let params = SgdParams { lr: 0.5, momentum: 0.5, ..Default::default() };
//!     let mut optimizer = Sgd::new([("weight", &weights[0])], params);
//!     let mut checkpoints = Checkpoints::open(folder, group)?;
//!     let mut step = 0;
//!     if let Some(found) = checkpoints.latest_good()? {
//!         load_tensors([("weight", &mut weights[0])], "model", &found)?;
//!         found.restore("optimizer", &mut optimizer)?;
//!         step = found.step();
//!     }
//!     for _ in 0..steps {
//!         optimizer.step(&mut weights, &[Some(Array::from(vec![2f32, -2.0]))])?;
//!         step += 1;
//!     }
//!     let mut state = State::new();
//!     save_tensors([("weight", &weights[0])], "model", &mut state);
//!     state.add("optimizer", &optimizer)?;
//!     checkpoints.save(step, state)?;
//!     let [weight] = weights;
//!     Ok(weight)
//! }
//!
//! # let temporary = std::env::temp_dir().join(format!("phalanx-train-checkpoint-{}", std::process::id()));
//! # let folder = temporary.as_path();
//! for (ranks, expected) in [(2, -1.0f32), (3, -2.5)] {
//!     std::thread::scope(|s| {
//!         for group in phalanx::threads(ranks) {
//!             s.spawn(move || {
//!                 let weight = train(folder, &group, 1).unwrap(); // one step a day
//!                 assert_eq!(weight, Array::from(vec![expected, -expected]));
//!             });
//!         }
//!     });
//! }
//! # std::fs::remove_dir_all(folder).unwrap();
//! ```

mod extent;
mod fit;

#[doc(hidden)]
pub use extent::Extent;
#[doc(hidden)]
pub use fit::{fits, read_whole};
pub(crate) use fit::{has, read_part};
pub use phalanx_checkpoint::{Checkpoint, Checkpoints, Error, Result, State, Stateful, TensorInfo};

use crate::Tensor;
use std::borrow::Borrow;
use std::ops::Range;

/// Adds tensors to `state`, under `prefix`, a dot, and their names. All ranks have the same; for what each rank has for itself there is
/// [`State::of_rank`].
///
/// # Examples
/// ```
/// use phalanx_train::Array;
/// use phalanx_train::checkpoint::{Checkpoints, State, save_tensors};
///
/// # let temporary = std::env::temp_dir().join(format!("phalanx-train-save-{}", std::process::id()));
/// # let folder = temporary.as_path();
/// let bias = Array::from(vec![1f32, 1.0]);
/// let mut checkpoints = Checkpoints::open(folder, &phalanx::threads(1)[0])?;
/// let mut state = State::new();
/// save_tensors([("bias", &bias)], "model", &mut state);
/// checkpoints.save(7, state)?;
/// assert_eq!(checkpoints.load(7)?.read::<f32>("model.bias")?, [1.0, 1.0]);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), phalanx_train::checkpoint::Error>(())
/// ```
pub fn save_tensors<'a, 'n, T: Tensor>(
    tensors: impl IntoIterator<Item = (&'n str, &'a T)>,
    prefix: &str,
    state: &mut State<'a>,
) {
    for (name, tensor) in tensors {
        add(state, format!("{prefix}.{name}"), tensor);
    }
}

/// Gives tensors the values that were saved under `prefix`, in place. What else the checkpoint has is left alone.
///
/// # Errors
/// [`Error::Missing`] and [`Error::OtherTensor`]: the checkpoint is of another model, and nothing was changed. [`Error::Io`], and the library's as
/// [`Error::Tensors`], after which some may have been changed.
///
/// # Examples
/// ```
/// use phalanx_train::Array;
/// use phalanx_train::checkpoint::{Checkpoints, State, load_tensors};
///
/// # let temporary = std::env::temp_dir().join(format!("phalanx-train-load-{}", std::process::id()));
/// # let folder = temporary.as_path();
/// # let mut checkpoints = Checkpoints::open(folder, &phalanx::threads(1)[0])?;
/// # let mut state = State::new();
/// # state.slice("model.bias", &[2], &[1f32, 2.0]);
/// # checkpoints.save(7, state)?;
/// let mut bias = Array::from(vec![0f32; 2]);
/// load_tensors([("bias", &mut bias)], "model", &checkpoints.load(7)?)?;
/// assert_eq!(bias, Array::from(vec![1f32, 2.0]));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), phalanx_train::checkpoint::Error>(())
/// ```
pub fn load_tensors<'m, 'n, T: Tensor>(
    tensors: impl IntoIterator<Item = (&'n str, &'m mut T)>,
    prefix: &str,
    from: &Checkpoint,
) -> Result<()> {
    let named = tensors.into_iter().map(|(name, tensor)| (format!("{prefix}.{name}"), tensor));
    let mut named: Vec<_> = named.collect();
    named.iter().try_for_each(|(name, tensor)| fits(name, info(*tensor), from))?;
    named.iter_mut().try_for_each(|(name, tensor)| read_whole(name, *tensor, from))
}

/// Type and shape as a checkpoint knows them.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, checkpoint::info};
///
/// let weight = Array::from(vec![0f32; 6]).shaped(&[2, 3])?;
/// assert_eq!(info(&weight).to_string(), "f32 [2, 3]");
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub fn info<T: Tensor>(tensor: &T) -> TensorInfo {
    TensorInfo { dtype: tensor.dtype(), shape: tensor.dims().to_vec() }
}

/// What [`State::tensor`] and its sisters ask for: a function that copies ranges of a tensor's elements when it is asked to. A tensor may be lent, or be
/// given away.
///
/// # Examples
/// ```
/// use phalanx_train::Array;
/// use phalanx_train::checkpoint::{State, copied, info};
///
/// let mean = Array::from(vec![0.5f32]); // of this rank's samples
/// let mut state = State::new();
/// state.tensor_of_rank_0("norm.mean", info(&mean), copied::<Array, _>(&mean));
/// ```
pub fn copied<'a, T: Tensor, B: Borrow<T> + 'a>(
    tensor: B,
) -> impl Fn(Range<usize>) -> Result<Vec<u8>> + use<'a, T, B> {
    move |range| tensor.borrow().read_range(range).map_err(Error::from)
}

pub(crate) fn add<'a, T: Tensor>(state: &mut State<'a>, name: String, tensor: &'a T) {
    state.tensor(name, info(tensor), copied::<T, _>(tensor));
}
