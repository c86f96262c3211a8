//! Checkpoints of candle models: [`phalanx_checkpoint`], which knows no tensors, with what it needs to know of these.
//!
//! [`save_vars`] adds a [`VarMap`] to a [`State`], and [`load_vars`] restores it from a [`Checkpoint`]. [`AdamW`](crate::AdamW) is [`Stateful`]; an
//! optimizer of your own becomes it with the same two functions, on a `VarMap` of what it remembers. The place in the data is
//! a [`SamplerState`](crate::SamplerState).
//!
//! # Examples
//! A training that can be killed at any moment and started again, on any number of ranks. Here it is started three times:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, VarBuilder, VarMap};
//! use phalanx::{ProcessGroup, threads};
//! use phalanx_candle::checkpoint::{Checkpoints, State, load_vars, save_vars};
//! use phalanx_candle::{AdamW, DistributedDataParallel, DistributedSampler, Result};
//! use std::path::Path;
//!
//! /// Trains until the end, or until there is no time left for more steps.
//! fn train(folder: &Path, group: &ProcessGroup, time: usize) -> Result<f32> {
//!     let varmap = VarMap::new();
//!     let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
//!     let model = candle_nn::linear(1, 1, vb)?;
//!     let mut optimizer = AdamW::new(&varmap, Default::default())?;
//!     let sampler = DistributedSampler::new(100, 10, group.rank(), group.world_size())?.seed(7);
//!     let (mut step, mut place) = (0, sampler.start());
//!
//!     let mut checkpoints = Checkpoints::open(folder, group)?.keep(2);
//!     if let Some(found) = checkpoints.latest_good()? {
//!         load_vars(&varmap, "model", &found)?;
//!         found.restore("optimizer", &mut optimizer)?;
//!         (step, place) = (found.step(), found.value("sampler")?);
//!     }
//!     let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
//!     let until = step + time as u64;
//!     while place.epoch < 3 {
//!         let mut batches = sampler.resume(&place)?;
//!         while let Some(batch) = batches.next() {
//!             if step == until {
//!                 return Ok(model.weight().flatten_all()?.to_vec1()?[0]); // or killed
//!             }
//!             let x: Vec<f32> = batch.indices.iter().map(|&i| i as f32 / 100.0).collect();
//!             let x = Tensor::new(x, &Device::Cpu)?.unsqueeze(1)?;
//!             let loss = candle_nn::loss::mse(&model.forward(&x)?, &(&x * 3.0)?)?;
//!             optimizer.step(&ddp.backward_share(&loss, batch.share())?)?;
//!             (step, place) = (step + 1, batches.state());
//!
//!             let mut state = State::new();
//!             save_vars(&varmap, "model", &mut state)?;
//!             state.add("optimizer", &optimizer)?;
//!             state.value("sampler", &place)?;
//!             checkpoints.save_async(step, state)?; // writes while the next step is trained
//!         }
//!         place = batches.state();
//!     }
//!     checkpoints.wait()?;
//!     assert_eq!(step, 30);
//!     Ok(model.weight().flatten_all()?.to_vec1()?[0])
//! }
//!
//! # let temporary = std::env::temp_dir().join(format!("phalanx-candle-checkpoint-{}", std::process::id()));
//! # let folder = temporary.as_path();
//! for (ranks, time) in [(2, 4), (3, 20), (1, 100)] {
//!     std::thread::scope(|s| {
//!         for group in threads(ranks) {
//!             s.spawn(move || train(folder, &group, time).unwrap());
//!         }
//!     });
//! }
//! # std::fs::remove_dir_all(folder).unwrap();
//! ```

pub use phalanx_train::checkpoint::{Checkpoint, Checkpoints, Error, Result, State, Stateful, TensorInfo};

use crate::model::{Parameter, is_buffer, parameters};
use crate::sendable::Candle;
use candle_nn::VarMap;
use phalanx_train::checkpoint::{copied, info, load_tensors};

/// Adds the variables of `varmap` to `state`, under `prefix`, a dot, and their names. Of buffers, such as the running statistics of batch
/// normalisation, which may differ between ranks, rank 0's are saved: after [`load_vars`] all ranks have these.
///
/// # Errors
/// [`Error::Tensors`] for elements of a type that can't be saved.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::VarMap;
/// use phalanx_candle::checkpoint::{Checkpoints, State, save_vars};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
/// # let varmap = VarMap::new();
/// # varmap.get(2, "bias", candle_nn::init::ONE, DType::F32, &Device::Cpu).unwrap();
/// let mut state = State::new();
/// save_vars(&varmap, "model", &mut state)?;
/// checkpoints.save(7, state)?;
/// assert_eq!(checkpoints.load(7)?.read::<f32>("model.bias")?, [1.0, 1.0]);
/// # Ok::<(), phalanx_candle::checkpoint::Error>(())
/// ```
pub fn save_vars(varmap: &VarMap, prefix: &str, state: &mut State<'_>) -> Result<()> {
    for Parameter { name, var } in parameters(varmap) {
        let var = Candle::local(&var)?;
        let (full, info) = (format!("{prefix}.{name}"), info(&var));
        let copy = copied::<Candle, _>(var);
        if is_buffer(&name) {
            state.tensor_of_rank_0(full, info, copy);
        } else {
            state.tensor(full, info, copy);
        }
    }
    Ok(())
}

/// Gives the variables of `varmap` the values that [`save_vars`] has saved under `prefix`, in place: models that were built with them see
/// it. What else the checkpoint has is left alone.
///
/// # Errors
/// [`Error::Missing`] and [`Error::OtherTensor`]: the checkpoint is of another model, and nothing was changed. [`Error::Io`], after which some
/// variables may have been changed.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::VarMap;
/// use phalanx_candle::checkpoint::{Checkpoints, State, load_vars};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
/// # let mut state = State::new();
/// # state.slice("model.bias", &[2], &[1f32, 2.0]);
/// # checkpoints.save(7, state)?;
/// let varmap = VarMap::new();
/// let bias = varmap.get(2, "bias", candle_nn::init::ZERO, DType::F32, &Device::Cpu).unwrap();
/// load_vars(&varmap, "model", &checkpoints.load(7)?)?;
/// assert_eq!(bias.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
/// # Ok::<(), phalanx_candle::checkpoint::Error>(())
/// ```
pub fn load_vars(varmap: &VarMap, prefix: &str, from: &Checkpoint) -> Result<()> {
    let parameters = parameters(varmap);
    let mut vars = Candle::all_local(parameters.iter().map(|p| &p.var))?;
    load_tensors(parameters.iter().map(|p| p.name.as_str()).zip(&mut vars), prefix, from)
}
