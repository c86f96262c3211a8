//! Data-parallel training: every rank has the whole model and a part of each batch.

use crate::backward::{BackwardGradients, average};
use crate::group::{Ranks, Reach};
use crate::model::{self, Parameter, parameters};
use crate::var_backend::{Copy, GradientListener, VarBackend};
use crate::{DdpConfig, Group, Overlap, Result, Share, sync_model, verify_parameters};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use phalanx::error::OpKind;
use phalanx::{CallSite, ProcessGroup};
use phalanx_compress::{CommHook, Traffic};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keeps the copies of a model on all ranks equal: same weights at the start, same gradients at each step.
///
/// Give the resulting gradients to any optimizer that is deterministic, and the weights stay bit-equal.
///
/// Construction and every `backward` are collective: each rank calls them in the same order. Variables that took no part in a rank's
/// loss count as zeros there; those that no rank used have no gradient afterwards, so optimizers leave them alone, and nothing is
/// sent for them. The first step names these in a warning, for some operations of candle [lose gradients](DdpConfig::missing_gradients) without a word.
///
/// There are two ways to make one. [`new`](Self::new) takes the variables of any model, and sends their gradients after the backward
/// pass. [`build`](Self::build) makes the model, too, and can send them while it runs: see [`Overlap`]. The results have the same bits.
///
/// Gradients are averaged in their own memory: other tensors that share it see the change. They travel in buckets, which are
/// [allocated](ProcessGroup::alloc) once: planned at the first step, in the order in which rank 0's backward pass completes their gradients.
///
/// What the forward pass itself changes, such as the running means of batch normalisation, stays each rank's own;
/// [`sync_buffers`](Self::sync_buffers) makes it equal again.
pub struct DistributedDataParallel<M = ()> {
    model: M,
    copies: Vec<Copy>,
    varmap: VarMap,
    pub(crate) group: Ranks,
    config: DdpConfig,
    listener: Arc<GradientListener>,
}

impl<M> fmt::Debug for DistributedDataParallel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedDataParallel")
            .field("group", &self.group)
            .field("config", &self.config)
            .field("gradients", &self.listener.get())
            .finish_non_exhaustive()
    }
}

impl DistributedDataParallel {
    /// Makes the variables of `varmap` equal to those of rank 0 and prepares to average their gradients, after each backward pass.
    ///
    /// Build the model first: variables added to `varmap` later are not seen.
    ///
    /// # Cost
    /// One broadcast of the model, and memory for the largest bucket.
    ///
    /// # Errors
    /// As of [`sync_model`]; [`phalanx::Error::Misuse`] for [`Overlap::On`], which only [`build`](Self::build) can do.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::DistributedDataParallel;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let varmap = VarMap::new();
    /// let ranks = candle_nn::Init::Const(group.rank() as f64);
    /// let x = varmap.get(1, "x", ranks, DType::F32, &Device::Cpu)?; // different on each rank
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
    /// assert_eq!(x.to_vec1::<f32>()?, [0.0]); // rank 0's
    /// # ddp.verify_parameters()?;
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new(varmap: &VarMap, group: &impl Group, config: DdpConfig) -> Result<Self> {
        if config.overlap == Overlap::On {
            let what = "gradients of a model that is there already can't be overlapped: let `build` make it";
            return Err(phalanx::Error::misuse(OpKind::AllReduce, what).into());
        }
        Self::wrap((), BTreeMap::new(), Arc::default(), false, varmap, Ranks::of(group), config)
    }
}

impl<M> DistributedDataParallel<M> {
    /// Makes a model whose gradients can be averaged while the backward pass still runs, with equal weights on all ranks.
    ///
    /// `model` gets its variables from the `VarBuilder` that it is given, as from candle's own. They stand in `varmap`, for optimizers
    /// and files. Where gradients overlap, the model itself has copies of them, which [`forward`](Self::forward)
    /// makes what the variables are.
    ///
    /// `dtype` is what the model computes in. With 16 bits the variables are kept in f32 nevertheless: gradients are computed and
    /// sent in 16 bits, and added to weights of 32. See [`LossScaler`](crate::LossScaler), too.
    ///
    /// # Cost
    /// One broadcast of the model, a copy of it if gradients overlap or have 16 bits, and, if they overlap, memory for
    /// all gradients.
    ///
    /// # Errors
    /// Those of `model` and of [`sync_model`].
    ///
    /// # Examples
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{Module, Optimizer, SGD, VarMap};
    /// use phalanx::ProcessGroup;
    /// use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap};
    ///
    /// fn train(group: &ProcessGroup) -> phalanx_candle::Result<()> {
    ///     let varmap = VarMap::new();
    ///     let config = DdpConfig::default().overlap(Overlap::On);
    ///     let ddp = DistributedDataParallel::build(&varmap, DType::F32, group, config, |vb| {
    ///         candle_nn::linear(2, 1, vb)
    ///     })?;
    ///     let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
    ///     let x = Tensor::full(1.0 + group.rank() as f32, (4, 2), &Device::Cpu)?;
    ///     for _ in 0..3 {
    ///         let loss = ddp.forward(|model| model.forward(&x)?.sqr()?.mean_all())?;
    ///         let grads = ddp.backward(&loss)?; // sent on the way
    ///         optimizer.step(&grads)?;
    ///     }
    ///     ddp.verify_parameters()
    /// }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || train(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn build(
        varmap: &VarMap,
        dtype: DType,
        group: &impl Group,
        config: DdpConfig,
        model: impl FnOnce(VarBuilder<'static>) -> candle_core::Result<M>,
    ) -> Result<Self> {
        Self::build_on(&Device::Cpu, varmap, dtype, group, config, model)
    }

    /// As [`build`](Self::build), with the variables on `device`, which the group reaches. On a GPU [`Overlap::Auto`] is on: sending is no work of
    /// the cores there.
    ///
    /// # Errors
    /// As of [`build`](Self::build).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::DistributedDataParallel;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let varmap = VarMap::new();
    /// let device = Device::Cpu; // or the GPU of a `HybridGroup`
    /// let config = Default::default();
    /// let ddp = DistributedDataParallel::build_on(&device, &varmap, DType::F32, group, config, |vb| {
    ///     candle_nn::linear(2, 1, vb)
    /// })?;
    /// ddp.verify_parameters()?;
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn build_on(
        device: &Device,
        varmap: &VarMap,
        dtype: DType,
        group: &impl Group,
        config: DdpConfig,
        model: impl FnOnce(VarBuilder<'static>) -> candle_core::Result<M>,
    ) -> Result<Self> {
        let ranks = Ranks::of(group);
        Reach::of(&ranks, OpKind::AllReduce, device)?;
        let overlap = match config.overlap {
            Overlap::Auto if !device.is_cpu() => Overlap::On,
            overlap => overlap,
        };
        let overlap = overlap.choose(ranks.host())?;
        let (listener, copies) = (Arc::<GradientListener>::default(), Arc::<Mutex<_>>::default());
        let backend = VarBackend {
            varmap: varmap.clone(),
            overlap,
            listener: listener.clone(),
            copies: Arc::clone(&copies),
        };
        let model = model(backend.var_builder(dtype, device))?;
        let copies = std::mem::take(&mut *copies.lock().unwrap_or_else(PoisonError::into_inner));
        Self::wrap(model, copies, listener, overlap, varmap, ranks, config)
    }

    #[track_caller]
    fn wrap(
        model: M,
        copies: BTreeMap<String, Copy>,
        listener: Arc<GradientListener>,
        overlap: bool,
        varmap: &VarMap,
        group: Ranks,
        config: DdpConfig,
    ) -> Result<Self> {
        sync_model(varmap, &group, 0)?;
        let wire = |p: &Parameter| copies.get(&p.name).map_or(p.var.dtype(), |copy| copy.tensor.dtype());
        let gradients =
            BackwardGradients::new(parameters(varmap), wire, config, overlap, &group, listener.uses.clone())?;
        listener.set(gradients);
        let copies = copies.into_values().collect();
        Ok(Self { model, copies, varmap: varmap.clone(), group, config, listener })
    }

    /// Has `hook` add up the gradients of 32 bits instead of an all_reduce: in fewer bytes, for networks that are slower than the
    /// processors. All ranks pass the same kind. It may leave something out; the bits are the same on all ranks nevertheless.
    ///
    /// Gradients are sent after the backward pass then. Those of other types travel as they are.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::{DistributedDataParallel, compress::Int8};
    ///
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1000, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let ddp = DistributedDataParallel::new(&varmap, &group, Default::default())?.with_hook(Int8::new());
    /// let grads = ddp.backward(&x.sqr()?.sum_all()?)?;
    /// let exact = (&x * 2.0)?;
    /// assert!((grads.get(&x).unwrap() - &exact)?.abs()?.max_all()?.to_scalar::<f32>()? < 0.02);
    /// assert!(ddp.traffic().unwrap().ratio() > 3.0);
    /// # Ok(()) }); });
    /// ```
    #[doc(alias = "register_comm_hook")]
    #[must_use]
    pub fn with_hook(self, hook: impl CommHook + 'static) -> Self {
        self.gradients().set_hook(Box::new(hook));
        self
    }

    /// The bytes that the hook has sent until now, if there is one.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::DistributedDataParallel;
    /// use phalanx_candle::compress::Cast;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?.with_hook(Cast::bf16());
    /// ddp.backward(&x.sum_all()?)?;
    /// assert_eq!(ddp.traffic().expect("there is a hook").ratio(), 2.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn traffic(&self) -> Option<Traffic> {
        self.gradients().traffic()
    }

    /// Whether gradients are sent while the backward pass still runs.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let config = DdpConfig::default().overlap(Overlap::On);
    /// let ddp = DistributedDataParallel::build(&VarMap::new(), DType::F32, group, config, |vb| {
    ///     candle_nn::linear(2, 1, vb)
    /// })?;
    /// assert!(ddp.overlaps());
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn overlaps(&self) -> bool {
        self.gradients().overlaps()
    }

    /// Has `work` done with the model, whose weights are what the variables are now. All use of the model goes through here, to
    /// evaluate it too, so it never computes with weights of the step before. Don't update the variables within, and
    /// keep no clone of the model.
    ///
    /// # Cost
    /// If gradients overlap or have 16 bits: one copy of the weights, at the speed of memory.
    ///
    /// # Errors
    /// Those of `work`.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_core::Tensor;
    /// use candle_nn::Module;
    /// # use phalanx_candle::DistributedDataParallel;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let build = |vb| candle_nn::linear(2, 1, vb);
    /// let ddp = DistributedDataParallel::build(&VarMap::new(), DType::F32, group, Default::default(), build)?;
    /// let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// let y = ddp.forward(|model| model.forward(&x))?;
    /// assert_eq!(y.dims(), [4, 1]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn forward<R>(&self, work: impl FnOnce(&M) -> candle_core::Result<R>) -> Result<R> {
        self.copies.iter().try_for_each(Copy::refresh)?;
        Ok(work(&self.model)?)
    }

    /// Gradients of the mean of all ranks' losses: what one process would have found for the global batch, if each
    /// rank's loss is a mean over equally many samples.
    ///
    /// # Cost
    /// One all_reduce a bucket and one of 4 bytes a variable, and some more: who has which gradients, and what share. If gradients overlap, they are in flight while
    /// the backward pass runs.
    ///
    /// # Determinism
    /// Same bits on every rank. From run to run on ranks of one host that share memory, and elsewhere where the algorithms are the
    /// same: see [reproducibility](ProcessGroup#reproducibility).
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce), and those of candle's backward pass: before anything is sent, or, where gradients
    /// overlap, together with the end of the group, whose other ranks wait for the rest. [`Error::NoGradient`](crate::Error::NoGradient) if
    /// [`DdpConfig::missing_gradients`] asks for it.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::DistributedDataParallel;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
    /// let loss = (&x * group.rank() as f64)?.sum_all()?; // its gradient is 0 on rank 0, and 1 on rank 1
    /// let grads = ddp.backward(&loss)?;
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [0.5]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward(&self, loss: &Tensor) -> Result<GradStore> {
        self.backward_share(loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples.
    ///
    /// A rank without any samples has no loss; it passes an empty store to
    /// [`sync_gradients`](Self::sync_gradients) instead.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); [`Error::ShareMismatch`](crate::Error::ShareMismatch) on all ranks for shares that do not add up to the
    /// whole, and [`phalanx::Error::Misuse`] for one of more than it.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::DistributedDataParallel;
    /// use phalanx_candle::Share;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
    /// let loss = (&x * group.rank() as f64)?.sum_all()?;
    /// let samples = [3, 1][group.rank()];
    /// let grads = ddp.backward_share(&loss, Share::new(samples, 4))?;
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [0.25]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward_share(&self, loss: &Tensor, share: Share) -> Result<GradStore> {
        // Candle makes some of the calls, and passes no call site on.
        let group = &self.group.host().with_call_site(CallSite::caller());
        self.gradients().begin(share, loss)?;
        let mut grads = match loss.backward() {
            Ok(grads) => grads,
            Err(error) => {
                self.gradients().give_up(&format!("its backward pass failed: {error}"));
                return Err(self.listener.take_error().unwrap_or_else(|| error.into()));
            }
        };
        self.gradients().finish(&mut grads)?;
        self.sync_buffers_after_step(group)?;
        Ok(grads)
    }

    /// Keeps the gradients of `loss` for the next [`backward`](Self::backward) or [`sync_gradients`](Self::sync_gradients), which
    /// adds its own to them and sends the sum: accumulation over several batches with communication in the last alone. Nothing
    /// is sent here. Divide the losses by the number of batches if the mean over them is wanted.
    ///
    /// The share of the step that sends the sum weighs all of it: with [`backward_share`](Self::backward_share) each of the batches counts as the last one does, and if
    /// that has no samples on this rank, none counts. Where batches are uneven, give each loss its own weight by [`Share::weigh`], with the samples of all batches and
    /// ranks as the whole, and end with [`backward`](Self::backward), or, without samples, with [`sync_gradients`](Self::sync_gradients) and [`Share::EQUAL`].
    ///
    /// With a step that fails what was accumulated for it is gone, all of it.
    ///
    /// # Errors
    /// Those of candle's backward pass, after which what was accumulated before is still there, and those of adding up, after which nothing is.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::DistributedDataParallel;
    /// # let group = &phalanx::threads(1)[0];
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
    /// ddp.accumulate(&(&x * 2.0)?.sum_all()?)?;
    /// ddp.accumulate(&(&x * 3.0)?.sum_all()?)?;
    /// let grads = ddp.backward(&(&x * 5.0)?.sum_all()?)?;
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [10.0]);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    #[doc(alias = "no_sync")]
    pub fn accumulate(&self, loss: &Tensor) -> Result<()> {
        self.gradients().collect();
        let outcome = loss.backward();
        let mut gradients = self.gradients();
        let reported = gradients.collected();
        gradients.keep(reported, outcome?)
    }

    /// Replaces this rank's gradients by those of the global batch.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share). After an error of the group some gradients may be averaged, others not.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::DistributedDataParallel;
    /// use candle_core::backprop::GradStore;
    /// use phalanx_candle::Share;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
    /// let mut grads = match group.rank() {
    ///     0 => x.sum_all()?.backward()?,
    ///     _ => GradStore::default(), // no samples
    /// };
    /// ddp.sync_gradients(&mut grads, Share::new([4, 0][group.rank()], 4))?;
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [1.0]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync_gradients(&self, grads: &mut GradStore, share: Share) -> Result<()> {
        let group = &self.group.host().with_call_site(CallSite::caller());
        self.gradients().reduce(grads, share)?;
        self.sync_buffers_after_step(group)
    }

    /// For a rank that has no more batches while others have: takes part in one of their steps without gradients of its own. Call
    /// it until it returns `None`, when no rank has batches any more.
    ///
    /// The gradients are those that the others have, of the mean over those that still have batches; an optimizer that is given them
    /// keeps its state and the weights equal to theirs.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce): a timeout if the others don't call `backward`, or `join` in their turn.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Optimizer, SGD, VarMap};
    /// # use phalanx_candle::DistributedDataParallel;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ZERO, DType::F32, &Device::Cpu)?;
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
    /// let mut optimizer = SGD::new(varmap.all_vars(), 1.0)?;
    /// for _ in 0..[3, 5][group.rank()] {
    ///     optimizer.step(&ddp.backward(&x.sum_all()?)?)?;
    /// }
    /// while let Some(grads) = ddp.join()? {
    ///     optimizer.step(&grads)?;
    /// }
    /// assert_eq!(x.to_vec1::<f32>()?, [-5.0]); // on both
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn join(&self) -> Result<Option<GradStore>> {
        let group = &self.group.host().with_call_site(CallSite::caller());
        let joined = self.gradients().join()?;
        if joined.is_some() {
            self.sync_buffers_after_step(group)?;
        }
        Ok(joined)
    }

    #[track_caller]
    fn sync_buffers_after_step(&self, group: &ProcessGroup) -> Result<()> {
        if self.config.broadcast_buffers { model::sync_buffers(&self.varmap, group, 0) } else { Ok(()) }
    }

    /// Makes the buffers what they are on rank `root`: what the forward pass itself changes, which is every variable whose name ends in
    /// `running_mean` or `running_var`, as candle's batch normalisation calls them. Collective. Before an evaluation is a good
    /// moment; [`DdpConfig::broadcast_buffers`] does it after each step.
    ///
    /// # Cost
    /// One broadcast of all of them together.
    ///
    /// # Errors
    /// Those of [`broadcast`](ProcessGroup::broadcast).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{ModuleT, VarBuilder, VarMap};
    /// # use phalanx_candle::DistributedDataParallel;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// let norm = candle_nn::batch_norm(1, 1e-5, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
    /// norm.forward_t(&Tensor::full(1.0 + group.rank() as f32, (4, 1), &Device::Cpu)?, true)?;
    /// ddp.sync_buffers(0)?;
    /// assert_eq!(norm.running_mean().to_vec1::<f32>()?, [0.1]); // a tenth of rank 0's batch
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync_buffers(&self, root: usize) -> Result<()> {
        model::sync_buffers(&self.varmap, self.group.host(), root)
    }

    pub(crate) fn gradients(&self) -> MutexGuard<'_, BackwardGradients> {
        self.listener.get().expect("it was there when this was made")
    }

    /// Makes sure that all ranks hold the same weights, bit for bit: [`verify_parameters`] for the model that was wrapped,
    /// with what was added to it since. Once an epoch is cheap, and tells on which rank a run went astray before the
    /// accuracy does.
    ///
    /// # Errors
    /// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, and the others of [`verify_parameters`].
    ///
    /// # Examples
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use phalanx::threads;
    /// use phalanx_candle::DistributedDataParallel;
    ///
    /// std::thread::scope(|s| {
    ///     for group in threads(3) {
    ///         s.spawn(move || {
    ///             let varmap = VarMap::new();
    ///             let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    ///             candle_nn::linear(4, 2, vb.pp("head")).unwrap();
    ///             let ddp = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap();
    ///             ddp.verify_parameters().unwrap();
    ///
    ///             if group.rank() == 2 {
    ///                 let mut data = varmap.data().lock().unwrap();
    ///                 let weight = data.get_mut("head.weight").unwrap();
    ///                 weight.set(&weight.zeros_like().unwrap()).unwrap(); // a bug, or a flipped bit
    ///             }
    ///             let error = ddp.verify_parameters().unwrap_err().to_string();
    ///             assert!(error.starts_with("parameter `head."), "{error}"); // … differs between ranks:
    ///             assert!(error.ends_with(" on rank 2"), "{error}");
    ///         });
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn verify_parameters(&self) -> Result<()> {
        verify_parameters(&self.varmap, &self.group)
    }
}

/// Averages the gradients in `grads` over the group, for the variables of `varmap`: one step of
/// [`DistributedDataParallel`] without its state.
///
/// Collective. The models must be equal on all ranks, which is not checked at each call: see [`sync_model`].
///
/// # Errors
/// Those of [`all_reduce`](ProcessGroup::all_reduce); after one some gradients may be averaged, others not.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::VarMap;
/// use phalanx_candle::sync_gradients;
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
/// # let varmap = VarMap::new();
/// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
/// let mut grads = (&x * group.rank() as f64)?.sum_all()?.backward()?;
/// sync_gradients(&varmap, &mut grads, group)?;
/// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [0.5]);
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn sync_gradients(varmap: &VarMap, grads: &mut GradStore, group: &impl Group) -> Result<()> {
    average(parameters(varmap), grads, group)
}
