//! Checkpoints of burn's modules and optimizers, made of those of [`phalanx_train`](phalanx_train::checkpoint).
//!
//! [`save_module`] adds a module to a [`State`], each parameter under its path, and [`load_module`] restores it from a [`Checkpoint`];
//! [`save_optimizer`] and [`load_optimizer`] do so with burn's record of an optimizer. The place in the data is a
//! [`SamplerState`](crate::SamplerState). [`DiLoCo`](crate::DiLoCo) saves the module and the optimizer with itself.
//!
//! Burn's optimizers know parameters by numbers that each process draws at random. Where a module was [wrapped](crate::DistributedDataParallel), all ranks
//! have those of rank 0. A checkpoint has them with the module, and all ranks that load it have them afterwards. So load the module first, and wrap it then.
//!
//! # Examples
//! A training that can be stopped and started again, on any number of ranks. Here it is started three times:
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{AdamConfig, ModuleOptimizer};
//! use burn::tensor::{Device, Tensor};
//! use phalanx::ProcessGroup;
//! use phalanx_burn::checkpoint::{self, Checkpoints, State};
//! use phalanx_burn::DistributedDataParallel;
//! use std::path::Path;
//!
//! /// Makes so many steps more, and returns how many it has made in all.
//! fn train(folder: &Path, group: &ProcessGroup, steps: u64) -> checkpoint::Result<u64> {
//!     let device = Device::default().autodiff();
//!     let mut model: Linear = LinearConfig::new(2, 1).init(&device);
//!     let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
//!     let mut step = 0;
//!     let mut checkpoints = Checkpoints::open(folder, group)?.keep(2);
//!     if let Some(found) = checkpoints.latest_good()? {
//!         checkpoint::load_module(&mut model, "model", &found)?;
//!         optimizer = checkpoint::load_optimizer(optimizer, "optimizer", &found)?;
//!         step = found.step();
//!     }
//!     let mut ddp = DistributedDataParallel::new(&mut model, group, Default::default()).unwrap();
//!     for _ in 0..steps {
//!         let x = Tensor::<2>::full([4, 2], 1.0 + step as f32, &device);
//!         let grads = ddp.backward(&model, model.forward(x).square().mean()).unwrap();
//!         model = optimizer.step(0.01, model, grads);
//!         step += 1;
//!     }
//!     let mut state = State::new();
//!     checkpoint::save_module(&model, "model", &mut state)?;
//!     checkpoint::save_optimizer(&optimizer, "optimizer", &mut state, group)?;
//!     checkpoints.save(step, state)?;
//!     Ok(step)
//! }
//!
//! # let temporary = tempfile::tempdir()?;
//! # let folder = temporary.path().to_path_buf();
//! for (ranks, expected) in [(2, 5), (3, 10), (1, 15)] {
//!     let folder = folder.clone();
//!     let steps = phalanx::on_threads(ranks, move |group| Ok(train(&folder, &group, 5).unwrap()))?;
//!     assert_eq!(steps, vec![expected; ranks]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use phalanx_train::checkpoint::{Checkpoint, Checkpoints, Error, Result, State, Stateful, TensorInfo};

use crate::names::{Named, Role, parameters, settle, with_ids, with_values};
use burn_core::module::Module;
use burn_core::tensor::Bytes;
use burn_optim::ModuleOptimizer;
use phalanx::error::OpKind;
use phalanx::{DType, ProcessGroup};
use phalanx_train::Array;
use phalanx_train::checkpoint::{copied, fits, info, read_whole};
use std::collections::BTreeMap;

/// Adds the parameters of `module` to `state`, under `prefix`, a dot, and their paths. Of those that need no gradients, as running statistics, which may
/// differ between ranks, rank 0's are saved: after [`load_module`] all ranks have these.
///
/// # Errors
/// [`Error::Tensors`] for elements that can't be saved, such as quantized ones.
///
/// # Examples
/// ```
/// use burn::module::Param;
/// use burn::tensor::{Device, Tensor};
/// use phalanx_burn::checkpoint::{Checkpoints, State, load_module, save_module};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
/// let device = Device::default();
/// let layers = [1.0, 2.0].map(|x| Param::from_tensor(Tensor::<1>::from_data([x], &device)));
/// let mut state = State::new();
/// save_module(&layers, "model", &mut state)?;
/// checkpoints.save(7, state)?;
///
/// let found = checkpoints.load(7)?;
/// assert_eq!(found.read::<f32>("model.1")?, [2.0]); // by its path
/// let mut other = [0.0; 2].map(|x| Param::from_tensor(Tensor::<1>::from_data([x], &device)));
/// load_module(&mut other, "model", &found)?;
/// assert_eq!(other[1].val().into_scalar::<f32>(), 2.0);
/// # Ok::<(), phalanx_burn::checkpoint::Error>(())
/// ```
pub fn save_module(module: &impl Module, prefix: &str, state: &mut State<'_>) -> Result<()> {
    settle(module);
    let mut ids = BTreeMap::new();
    for Named { name, id, values, role } in found(module)? {
        let (full, info) = (full(prefix, &name), info(&values));
        ids.insert(name, id);
        let copy = copied::<Array, _>(values);
        match role {
            Role::Still => state.tensor_of_rank_0(full, info, copy),
            Role::Weight | Role::Whole => state.tensor(full, info, copy),
        }
    }
    state.value(ids_of(prefix), &ids)
}

/// Gives `module` the values that [`save_module`] has saved under `prefix`, and the numbers by which optimizers know them. What else the checkpoint has is left
/// alone. One that another library has saved has no such numbers, and parameters keep theirs; [`Checkpoint::renamed`] gives its tensors the names that burn has.
///
/// # Errors
/// [`Error::Missing`] and [`Error::OtherTensor`]: the checkpoint is of another model. [`Error::Io`]. Nothing was changed then.
///
/// # Examples
/// See [`save_module`].
pub fn load_module<M: Module>(module: &mut M, prefix: &str, from: &Checkpoint) -> Result<()> {
    let saved: BTreeMap<String, u64> = match from.value(&ids_of(prefix)) {
        Err(Error::Missing { .. }) => BTreeMap::new(),
        saved => saved?,
    };
    let (mut values, mut ids) = (Vec::new(), Vec::new());
    for Named { name, id, values: mut own, .. } in found(module)? {
        let full = full(prefix, &name);
        fits(&full, info(&own), from)?;
        read_whole(&full, &mut own, from)?;
        values.push(Some(own));
        ids.push(saved.get(&name).copied().unwrap_or(id));
    }
    *module = with_ids(with_values(module.clone(), values)?, ids);
    Ok(())
}

/// Adds burn's record of an optimizer's state to `state`, as bytes under the name `prefix`: rank 0's, which it alone writes. Records of other ranks say the
/// same in another order. That is so of data-parallel training; where an optimizer is dealt out take
/// [`Sharded::save_optimizer`](crate::Sharded::save_optimizer).
///
/// # Errors
/// [`Error::Tensors`] with burn's.
///
/// # Examples
/// See the [module](self).
pub fn save_optimizer(
    optimizer: &ModuleOptimizer,
    prefix: &str,
    state: &mut State<'_>,
    group: &ProcessGroup,
) -> Result<()> {
    if group.rank() != 0 {
        return Ok(());
    }
    state.of_rank(0, |own| add_optimizer(optimizer, prefix, own))
}

/// Adds burn's record of an optimizer to what is one rank's own.
pub(crate) fn add_optimizer(optimizer: &ModuleOptimizer, name: &str, own: &mut State<'_>) -> Result<()> {
    let bytes = optimizer.into_bytes().map_err(|error| Error::Tensors(error.to_string().into()))?;
    let info = TensorInfo { dtype: DType::U8, shape: vec![bytes.len()] };
    own.tensor(name, info, move |range| Ok(bytes[range].to_vec()));
    Ok(())
}

/// `optimizer` with the state that [`save_optimizer`] has saved under `prefix`. [Load](load_module) the module as well: the two belong together.
///
/// # Errors
/// [`Error::Missing`], [`Error::Io`], and [`Error::Tensors`] for a record that burn can't read.
///
/// # Examples
/// See the [module](self).
pub fn load_optimizer(
    optimizer: ModuleOptimizer,
    prefix: &str,
    from: &Checkpoint,
) -> Result<ModuleOptimizer> {
    read_optimizer(optimizer, prefix, &from.of_rank(0))
}

/// `optimizer` with the record that one rank has saved.
pub(crate) fn read_optimizer(
    optimizer: ModuleOptimizer,
    name: &str,
    own: &Checkpoint,
) -> Result<ModuleOptimizer> {
    let bytes = Bytes::from_bytes_vec(own.read::<u8>(name)?);
    optimizer.from_bytes(bytes).map_err(|error| Error::Tensors(error.to_string().into()))
}

/// The parameters of a module that is on this rank alone.
fn found(module: &impl Module) -> Result<Vec<Named>> {
    Ok(parameters(module, OpKind::Broadcast)?)
}

fn full(prefix: &str, name: &str) -> String {
    // A module that is one parameter has a path without a name.
    if name.is_empty() { prefix.to_owned() } else { format!("{prefix}.{name}") }
}

fn ids_of(prefix: &str) -> String {
    format!("{prefix} ids")
}
