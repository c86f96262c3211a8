//! Training in which every rank keeps only a part of what all need.

use crate::clip::{shorten, sum_of_squares};
use crate::shard::engine::{Engine, EngineHandle};
use crate::shard::var_backend::Units;
use crate::{LossScaler, Result, ShardConfig, Share, Stage, model, sync_model};
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use phalanx::{CallSite, ProcessGroup, ReduceOp};
use phalanx_train::shard_parts::PassSending;
use std::fmt;
use std::sync::Arc;

/// Data-parallel training in which each rank keeps a part only of the optimizer's state, the gradients and the weights: see [`Stage`]. What
/// comes out is what [`DistributedDataParallel`](crate::DistributedDataParallel) finds.
///
/// Weights are laid end to end, and each rank has one slice of them, in variables of one dimension: its [`shards`](Self::shards). These are what an
/// optimizer is given, any that treats each number by itself, as candle's and [`AdamW`](crate::AdamW) do. [`backward`](Self::backward) returns
/// the shards' gradients.
///
/// Construction and every `forward`, `backward` and `accumulate` are collective: each rank calls them in the same order, to
/// evaluate the model too.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Linear, Module, Optimizer, VarBuilder};
/// use phalanx::ProcessGroup;
/// use phalanx_candle::{ShardConfig, Sharded, Stage, Unit, Units};
///
/// struct Model {
///     layers: Vec<Unit<Linear>>,
///     classes: Linear, // outside of units: its weights stay
/// }
///
/// fn model(units: &Units, vb: VarBuilder<'_>) -> candle_core::Result<Model> {
///     let layer = |i| units.unit(vb.pp(i), |vb| candle_nn::linear(8, 8, vb));
///     let layers = (0..3).map(layer).collect::<Result<_, _>>()?;
///     Ok(Model { layers, classes: candle_nn::linear(8, 2, vb.pp("classes"))? })
/// }
///
/// fn train(group: &ProcessGroup) -> phalanx_candle::Result<()> {
///     let config = ShardConfig::default().stage(Stage::Weights);
///     let zero = Sharded::build(DType::F32, group, config, model)?;
///     let mut optimizer = candle_nn::AdamW::new(zero.shards(), Default::default())?;
///     let x = Tensor::full(1.0 + group.rank() as f32, (4, 8), &Device::Cpu)?;
///     for _ in 0..3 {
///         let loss = zero.forward(|Model { layers, classes }| {
///             let mut x = x.clone();
///             for layer in layers {
///                 x = (&x + layer.forward(&x)?.relu()?)?;
///             }
///             classes.forward(&x)?.sqr()?.mean_all()
///         })?;
///         let grads = zero.backward(&loss)?;
///         optimizer.step(&grads)?;
///     }
///     Ok(())
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || train(&group).unwrap()); });
/// ```
#[doc(alias = "ZeRO")]
#[doc(alias = "FSDP")]
#[doc(alias = "FullyShardedDataParallel")]
pub struct Sharded<M> {
    model: M,
    pub(crate) handle: Arc<EngineHandle>,
    pub(crate) buffers: VarMap,
    pub(crate) group: ProcessGroup,
    config: ShardConfig,
}

impl<M> fmt::Debug for Sharded<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded")
            .field("group", &self.group)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl<M> Sharded<M> {
    /// Makes a model that begins with rank 0's weights, dealt out.
    ///
    /// `model` takes its weights from the `VarBuilder` that it is given, as from candle's own, and makes [`Unit`](crate::Unit)s of its parts.
    /// `dtype` is what it computes in. With 16 bits the shards are f32 nevertheless: gradients are computed and sent in 16
    /// bits, and added to weights of 32.
    ///
    /// # Cost
    /// Each weight is sent once. While the model is built rank 0 has all weights in memory, or, with [`Stage::Weights`], those of a unit and
    /// those that belong to none.
    ///
    /// # Errors
    /// Those of `model`; [`Error::ModelMismatch`](crate::Error::ModelMismatch) on every rank when some rank has built another model; those
    /// of [`scatter`](ProcessGroup::scatter).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::DType;
    /// use phalanx_candle::{ShardConfig, Sharded, Stage};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let config = ShardConfig::default().stage(Stage::Optimizer);
    /// let zero = Sharded::build(DType::F32, group, config, |_, vb| candle_nn::linear(2, 2, vb))?;
    /// assert_eq!(zero.forward(|model| Ok(model.weight().dims().to_vec()))?, [2, 2]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn build(
        dtype: DType,
        group: &ProcessGroup,
        config: ShardConfig,
        model: impl FnOnce(&Units, VarBuilder<'static>) -> candle_core::Result<M>,
    ) -> Result<Self> {
        let overlap = config.overlap.choose(group)?;
        let handle = Arc::<EngineHandle>::default();
        let here = group.with_call_site(CallSite::caller());
        let units = Units::new(config.stage, config.bucket_cap_bytes, &here, &handle)?;
        let model = model(&units, units.var_builder(dtype))
            .map_err(|error| handle.take_error().unwrap_or_else(|| error.into()))?;
        let (flats, weights) = units.close()?;
        handle.open(Engine::new(flats, weights, group, overlap, config.missing_gradients)?);
        let buffers = units.builder.buffers.clone();
        sync_model(&buffers, &here, 0)?;
        Ok(Self { model, handle, buffers, group: group.clone(), config })
    }

    pub(crate) fn engine<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        self.handle.with(work).expect("the model is built")
    }

    /// This rank's slices of the weights, for an optimizer. Whatever changes them, the next [`forward`](Self::forward) computes with what they
    /// are then.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::DType;
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| candle_nn::linear(2, 2, vb))?;
    /// let elements: usize = zero.shards().iter().map(|shard| shard.elem_count()).sum();
    /// assert_eq!(elements, 3); // half of four weights and two biases
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn shards(&self) -> Vec<Var> {
        self.engine(|engine| engine.shards.clone())
    }

    /// Has `work` done with the model, whose weights are what the shards are now. All use of the model goes through here.
    ///
    /// # Cost
    /// For weights that stay: one all_gather if any of them has changed since the last time, and a look whether. For units see
    /// [`Unit::run`](crate::Unit::run).
    ///
    /// # Errors
    /// Those of `work`, after which, if a unit has worked, the group is aborted: the other ranks wait for this one in the next unit.
    /// [`Error::UnitMismatch`](crate::Error::UnitMismatch), and those of [`all_gather`](ProcessGroup::all_gather).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::DType;
    /// # use candle_core::{Device, Tensor};
    /// # use phalanx_candle::Sharded;
    /// use candle_nn::Module;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| candle_nn::linear(2, 1, vb))?;
    /// let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// assert_eq!(zero.forward(|model| model.forward(&x))?.dims(), [4, 1]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn forward<R>(&self, work: impl FnOnce(&M) -> candle_core::Result<R>) -> Result<R> {
        let site = CallSite::caller();
        self.handle.take_error(); // of a unit whose failure `work` went on from
        self.engine(|engine| engine.begin_forward(site))?;
        let outcome = work(&self.model);
        let has_gathered = self.engine(Engine::end_forward)?;
        outcome.map_err(|error| {
            if has_gathered {
                self.group.abort(&format!("its forward pass failed: {error}"));
            }
            self.handle.take_error().unwrap_or_else(|| error.into())
        })
    }

    /// Gradients of the shards, of the mean of all ranks' losses and of those that were [accumulated](Self::accumulate).
    ///
    /// A weight that no rank has used has a gradient of zero, unless none of those that are sent with it was used either: then there is
    /// none, and an optimizer leaves them alone.
    ///
    /// # Cost
    /// One reduce_scatter for each flat of weights, an all_reduce of 8 bytes a flat, and one of 72 bytes; in the first step, of 4 bytes more a weight.
    ///
    /// # Determinism
    /// From run to run the same bits on ranks of one host that share memory, with the same world size, and elsewhere where the algorithms are
    /// the same: see [reproducibility](ProcessGroup#reproducibility).
    ///
    /// # Errors
    /// Those of [`reduce_scatter`](ProcessGroup::reduce_scatter), and those of candle's backward pass: the group is aborted then, whose
    /// other ranks wait for the rest. [`Error::NoGradient`](crate::Error::NoGradient) if [`ShardConfig::missing_gradients`] asks for it; the
    /// group is fine then.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| vb.get(2, "x"))?;
    /// let loss = zero.forward(|x| (x * group.rank() as f64)?.sum_all())?;
    /// let grads = zero.backward(&loss)?;
    /// let shard = &zero.shards()[0]; // one of two elements
    /// assert_eq!(grads.get(shard).unwrap().to_vec1::<f32>()?, [0.5]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward(&self, loss: &Tensor) -> Result<GradStore> {
        self.backward_share(loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); [`Error::ShareMismatch`](crate::Error::ShareMismatch) on all ranks for shares that do not add up to the
    /// whole, and [`phalanx::Error::Misuse`] for one of more than it.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| vb.get(2, "x"))?;
    /// use phalanx_candle::Share;
    ///
    /// let loss = zero.forward(|x| (x * group.rank() as f64)?.sum_all())?;
    /// let samples = [3, 1][group.rank()];
    /// let grads = zero.backward_share(&loss, Share::new(samples, 4))?;
    /// assert_eq!(grads.get(&zero.shards()[0]).unwrap().to_vec1::<f32>()?, [0.25]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward_share(&self, loss: &Tensor, share: Share) -> Result<GradStore> {
        let sending =
            if self.config.stage == Stage::Optimizer { PassSending::After } else { PassSending::During };
        self.pass(loss, share, (sending, true), CallSite::caller())?;
        self.engine(|engine| {
            let reduced = engine.end_step().inspect_err(|_| engine.give_up())?;
            let mut grads = GradStore::default();
            for (shard, reduced) in engine.shards.iter().zip(reduced) {
                if let Some(reduced) = reduced {
                    grads.insert(shard, reduced);
                }
            }
            Ok(grads)
        })
    }

    /// Keeps the gradients of `loss` for the next [`backward`](Self::backward), which adds its own to them. Divide the losses by the number
    /// of batches if the mean over them is wanted. Either all losses of a step have equal shares, or none: then
    /// the shares of the step are of one batch all together, or those of each loss are of a batch of its own.
    ///
    /// # Cost
    /// With [`Stage::Optimizer`] nothing is sent, and all gradients stay in memory. With the others they are reduced, as in `backward`, and each
    /// rank keeps its part.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| vb.get(2, "x"))?;
    /// use phalanx_candle::Share;
    ///
    /// let loss = |by: f64| zero.forward(|x| (x * by)?.sum_all());
    /// zero.accumulate(&loss(2.0)?, Share::EQUAL)?;
    /// let grads = zero.backward(&loss(3.0)?)?;
    /// assert_eq!(grads.get(&zero.shards()[0]).unwrap().to_vec1::<f32>()?, [5.0]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[doc(alias = "no_sync")]
    #[track_caller]
    pub fn accumulate(&self, loss: &Tensor, share: Share) -> Result<()> {
        let sending =
            if self.config.stage == Stage::Optimizer { PassSending::Not } else { PassSending::During };
        self.pass(loss, share, (sending, false), CallSite::caller())
    }

    fn pass(&self, loss: &Tensor, share: Share, sending: (PassSending, bool), site: CallSite) -> Result<()> {
        self.engine(|engine| engine.begin_backward(loss, share, sending, site))?;
        // It returns the gradients of what is no weight of ours.
        let outcome = match loss.backward() {
            Ok(_) => self.engine(Engine::end_backward),
            Err(error) => {
                self.group.abort(&format!("its backward pass failed: {error}"));
                Err(self.handle.take_error().unwrap_or_else(|| error.into()))
            }
        };
        if outcome.is_err() {
            self.engine(Engine::give_up);
        }
        outcome
    }

    /// Scales the shards' gradients, in place, so that the norm of all ranks' together is `max_norm` at most, and returns what it was: the same
    /// on all ranks. A norm that is infinite or not a number is returned, and nothing is scaled. The norm is `max_norm` at most after rounding, too, as
    /// that of [`clip_grad_norm`](crate::clip_grad_norm). Collective.
    ///
    /// # Cost
    /// One pass over this rank's gradients, two if they are scaled, and an all_reduce of one number.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce). [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number: nothing is
    /// scaled then, no other rank is left waiting, and the group is fine.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| vb.get(2, "x"))?;
    /// let loss = zero.forward(|x| (x * Tensor::new(&[3f32, 4.0], &Device::Cpu)?)?.sum_all())?;
    /// let mut grads = zero.backward(&loss)?; // 3 on rank 0, 4 on rank 1
    /// assert_eq!(zero.clip_grad_norm(&mut grads, 1.0)?, 5.0);
    /// let mine = grads.get(&zero.shards()[0]).unwrap().to_vec1::<f32>()?[0];
    /// assert!((mine - [0.6, 0.8][group.rank()]).abs() < 1e-6);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn clip_grad_norm(&self, grads: &mut GradStore, max_norm: f64) -> Result<f64> {
        let shards = self.shards();
        let mut squares = [sum_of_squares(&shards, grads)?];
        self.group.all_reduce(&mut squares, ReduceOp::Sum)?;
        let norm = squares[0].sqrt();
        shorten(&shards, grads, norm, max_norm)?;
        Ok(norm)
    }

    /// Makes gradients those of the loss that `scaler` has scaled, as [`LossScaler::unscale`]: false on all ranks if the part of one of them
    /// overflowed. Collective.
    ///
    /// # Cost
    /// Two passes over this rank's gradients, and an all_reduce of one byte.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| vb.get(2, "x"))?;
    /// use phalanx_candle::LossScaler;
    ///
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// let loss = zero.forward(|x| (x * Tensor::new(&[3f32, f32::INFINITY], &Device::Cpu)?)?.sum_all())?;
    /// let mut grads = zero.backward(&loss)?; // infinite on rank 1
    /// assert!(!zero.unscale(&mut scaler, &mut grads)?); // on both: skip the step
    /// assert_eq!(scaler.factor(), 512.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn unscale(&self, scaler: &mut LossScaler, grads: &mut GradStore) -> Result<bool> {
        let shards = self.shards();
        let mut all_finite = [u8::from(scaler.divide(&shards, grads)?)];
        self.group.all_reduce(&mut all_finite, ReduceOp::Min)?;
        Ok(scaler.settle(all_finite[0] != 0))
    }

    /// Makes the buffers what they are on rank `root`: as
    /// [`DistributedDataParallel::sync_buffers`](crate::DistributedDataParallel::sync_buffers). Every rank has all of them.
    ///
    /// # Errors
    /// Those of [`broadcast`](ProcessGroup::broadcast).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::DType;
    /// # use candle_core::{Device, Tensor};
    /// # use candle_nn::ModuleT;
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| candle_nn::batch_norm(1, 1e-5, vb))?;
    /// let x = Tensor::full(1.0 + group.rank() as f32, (4, 1), &Device::Cpu)?;
    /// zero.forward(|norm| norm.forward_t(&x, true))?;
    /// zero.sync_buffers(0)?;
    /// let mean = zero.forward(|norm| norm.running_mean().to_vec1::<f32>())?;
    /// assert_eq!(mean, [0.1]); // a tenth of rank 0's batch
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync_buffers(&self, root: usize) -> Result<()> {
        model::sync_buffers(&self.buffers, &self.group, root)
    }
}
