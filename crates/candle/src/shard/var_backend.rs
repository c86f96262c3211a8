//! Weights as a sharded model gets them while it is built.

use crate::Result;
use crate::Stage;
use crate::element::replace;
use crate::model::is_buffer;
use crate::sendable::Candle;
use crate::shard::engine::{EngineHandle, Weight};
use crate::shard::unit::{Unit, UnitWeights};
use crate::shard::weights::{ModelWeights, shard};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Device, Shape, Storage, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use phalanx::ProcessGroup;
use phalanx_train::model::{Entry, compare};
use phalanx_train::shard_parts::{Flat, cut};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Makes units of parts of a model: see [`unit`](Self::unit).
#[derive(Debug)]
pub struct Units {
    stage: Stage,
    cap_bytes: usize,
    group: ProcessGroup,
    handle: Arc<EngineHandle>,
    pub(crate) builder: Arc<ModelBuilder>,
}

/// The weights and buffers that the model has taken so far.
pub(crate) struct ModelBuilder {
    pub(crate) buffers: VarMap,
    handle: Arc<EngineHandle>,
    /// A variable that all weights depend on: candle computes gradients only of what depends on one.
    root: Var,
    state: Mutex<State>,
}

/// A weight that belongs to no flat yet.
type Taken = phalanx_train::shard_parts::Taken<Candle>;

#[derive(Debug, Default)]
struct State {
    flats: Vec<Flat<Candle>>,
    /// All that were taken.
    weights: ModelWeights,
    /// Outside of units.
    loose: Vec<Taken>,
    /// Inside of the unit that is being made.
    unit: Option<Open>,
    /// Units that have been begun.
    units: usize,
    /// Weights by name, and the unit that has them.
    known: HashMap<String, (Tensor, Option<usize>)>,
    is_closed: bool,
}

/// A unit that is being made.
#[derive(Debug)]
struct Open {
    number: usize,
    name: String,
    taken: Vec<Taken>,
}

impl fmt::Debug for ModelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelBuilder").field("state", &self.state).finish_non_exhaustive()
    }
}

impl ModelBuilder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Units {
    pub(crate) fn new(
        stage: Stage,
        cap_bytes: usize,
        group: &ProcessGroup,
        handle: &Arc<EngineHandle>,
    ) -> Result<Self> {
        let root = Var::zeros((), DType::F32, &Device::Cpu)?;
        let state = Mutex::default();
        let builder = Arc::new(ModelBuilder { buffers: VarMap::new(), handle: handle.clone(), root, state });
        Ok(Self { stage, cap_bytes, group: group.clone(), handle: handle.clone(), builder })
    }

    pub(crate) fn var_builder(&self, dtype: DType) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(VarBackend(self.builder.clone())), dtype, Device::Cpu)
    }

    /// Makes a unit of what `part` makes: the weights that it takes from its `VarBuilder`, which is `vb`, come and go together. A layer is a good
    /// unit: large enough to be sent by itself, and small enough for two of them to be in memory at once.
    ///
    /// Weights that belong to no unit stay. So do those that several parts of the model have in common: take them first, outside of
    /// units.
    ///
    /// # Cost
    /// With [`Stage::Weights`](crate::Stage::Weights): what rank 0 begins with is dealt out, and the whole is let go. So while a model is
    /// built one unit's weights are in memory at a time.
    ///
    /// # Errors
    /// Those of `part`. [`Error::ModelMismatch`](crate::Error::ModelMismatch) if ranks make different units. Candle's, with the name, for a unit in
    /// another unit, a weight that two units take, and weights of two types in one unit.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::DType;
    /// # use candle_core::{Device, Tensor};
    /// use candle_nn::Module;
    /// use phalanx_candle::{ShardConfig, Sharded, Stage};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let config = ShardConfig::default().stage(Stage::Weights);
    /// let zero = Sharded::build(DType::F32, group, config, |units, vb| {
    ///     let layer = |i| units.unit(vb.pp(i), |vb| candle_nn::linear(2, 2, vb));
    ///     Ok([layer(0)?, layer(1)?])
    /// })?;
    /// let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// let y = zero.forward(|[first, second]| second.forward(&first.forward(&x)?))?;
    /// assert_eq!(y.dims(), [4, 2]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn unit<'v, M>(
        &self,
        vb: VarBuilder<'v>,
        part: impl FnOnce(VarBuilder<'v>) -> candle_core::Result<M>,
    ) -> candle_core::Result<Unit<M>> {
        if self.stage < Stage::Weights {
            return Ok(Unit::new(part(vb)?, None));
        }
        let name = vb.prefix();
        {
            let mut state = self.builder.state();
            if let Some(Open { name: outer, .. }) = &state.unit {
                candle_core::bail!(
                    "the unit `{name}` is made inside of the unit `{outer}`: make them side by side"
                )
            }
            state.units += 1;
            state.unit = Some(Open { number: state.units, name: name.clone(), taken: Vec::new() });
        }
        let part = part(vb);
        let Open { taken, .. } = self.builder.state().unit.take().expect("only this function changes it");
        let part = part?;
        if let Some(other) = taken.iter().find(|one| one.dtype != taken[0].dtype) {
            let (ours, theirs) = (taken[0].dtype, other.dtype);
            candle_core::bail!(
                "the unit `{name}` has weights of {ours:?} and, with `{}`, of {theirs:?}: a unit has one type",
                other.name
            )
        }
        let flat = self.handle.reported(self.deal(name, taken, false))?;
        Ok(Unit::new(part, flat.map(|flat| UnitWeights { handle: self.handle.clone(), flat })))
    }

    /// The model is built.
    pub(crate) fn close(&self) -> Result<(Vec<Flat<Candle>>, ModelWeights)> {
        let loose = std::mem::take(&mut self.builder.state().loose);
        self.agree(&loose)?;
        for (at, taken) in cut(loose, self.cap_bytes).into_iter().enumerate() {
            self.make(format!("bucket {at}"), taken, true)?;
        }
        let mut state = self.builder.state();
        state.is_closed = true;
        state.known.clear();
        Ok((std::mem::take(&mut state.flats), std::mem::take(&mut state.weights)))
    }

    /// Makes sure that all ranks have taken the same.
    fn agree(&self, taken: &[Taken]) -> Result<()> {
        let entry = |one: &Taken| Entry::new(&*one.name, one.dtype, &one.dims);
        Ok(compare(taken.iter().map(entry).collect(), &self.group, 0)?)
    }

    fn deal(&self, name: String, taken: Vec<Taken>, stays: bool) -> Result<Option<usize>> {
        self.agree(&taken)?;
        if taken.is_empty() {
            return Ok(None);
        }
        self.make(name, taken, stays).map(Some)
    }

    fn make(&self, name: String, taken: Vec<Taken>, stays: bool) -> Result<usize> {
        let flat = Flat::new::<Candle, _>(name, taken, stays, &self.group, shard)?;
        let mut state = self.builder.state();
        if !stays {
            flat.release(&mut state.weights)?;
        }
        state.flats.push(flat);
        Ok(state.flats.len() - 1)
    }
}

/// The backend of the `VarBuilder` that the model gets.
struct VarBackend(Arc<ModelBuilder>);

impl SimpleBackend for VarBackend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let builder = &self.0;
        if is_buffer(name) || !dtype.is_float() {
            // The forward pass changes it, or nothing does: each rank has its own.
            return builder.buffers.get(shape, name, init, dtype, device);
        }
        let mut state = builder.state();
        let unit = state.unit.as_ref().map(|unit| unit.number);
        if state.is_closed || !device.is_cpu() {
            candle_core::bail!(
                "`{name}` can't be taken: weights are taken on the CPU, while the model is built"
            )
        }
        if let Some((tensor, owner)) = state.known.get(name) {
            if owner.is_some() && *owner != unit {
                candle_core::bail!(
                    "`{name}` belongs to a unit and is taken elsewhere, too: take it first outside of units"
                )
            }
            if (tensor.shape(), tensor.dtype()) != (&shape, dtype) {
                candle_core::bail!(
                    "`{name}` is taken as {dtype:?} {shape:?} here and as {:?} {:?} elsewhere",
                    tensor.dtype(),
                    tensor.shape()
                )
            }
            return Ok(tensor.clone());
        }
        let var = init.var(shape.clone(), kept(dtype), device)?;
        let weight = Weight { shape, dtype, handle: Arc::downgrade(&builder.handle) };
        let tensor = builder.root.apply_op1(weight)?;
        let initial = if dtype == kept(dtype) {
            replace(&tensor, replace(&var, CpuStorage::F4(Vec::new()))?)?;
            tensor.clone()
        } else {
            replace(&tensor, converted(&var, dtype)?)?;
            var.into_inner()
        };
        let [weight, initial] =
            [&tensor, &initial].map(|tensor| Candle::local(tensor).map_err(candle_core::Error::wrap));
        let (weight, initial) = (weight?, initial?);
        state.known.insert(name.to_owned(), (tensor.clone(), unit));
        let index = state.weights.0.len();
        let (dims, dtype) = (tensor.dims().to_vec(), weight.dtype);
        let taken = Taken { name: name.to_owned(), dims, dtype, index, initial };
        state.weights.0.push(weight);
        let State { loose, unit, .. } = &mut *state;
        unit.as_mut().map_or(loose, |unit| &mut unit.taken).push(taken);
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        match self.0.state().known.get(name) {
            Some((tensor, _)) => Ok(tensor.clone()),
            None => candle_core::bail!(
                "`{name}` is taken without a shape for the first time; take it with its shape first"
            ),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.state().known.contains_key(name)
    }
}

fn converted(var: &Tensor, dtype: DType) -> candle_core::Result<CpuStorage> {
    match &*var.storage_and_layout().0 {
        Storage::Cpu(storage) => storage.to_dtype(var.layout(), dtype),
        _ => unreachable!("it was made on the CPU"),
    }
}

/// The type in which weights of this type are kept.
fn kept(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}
