//! Data-parallel training: every rank has the whole model and a part of each batch.

use crate::error::told;
use crate::torch::Torch;
use crate::variables::{Variable, variables};
use crate::{DdpConfig, Gradients, Overlap, Result, Share, sync_model};
use phalanx::ProcessGroup;
use phalanx::error::OpKind;
use phalanx_train::Reducer;
use phalanx_train::compress::{CommHook, Traffic};
use tch::Tensor;
use tch::nn::{self, OptimizerConfig, VarStore};

/// Keeps the copies of a model on all ranks equal: same weights at the start, same gradients at each step.
///
/// Gradients stay where libtorch has them, at the variables, so any optimizer of tch's works with them. One that is deterministic keeps the weights bit-equal.
///
/// Construction and every call that sends are collective: each rank makes them in the same order. A variable that took no part in a rank's loss counts as
/// zeros there; one that no rank used has no gradient afterwards. A step that fails leaves no gradients at all.
///
/// Gradients are sent after the backward pass: libtorch could say when each is complete, but tch passes that on to nobody.
///
/// # Examples
/// See the [crate](crate).
#[derive(Debug)]
pub struct DistributedDataParallel {
    group: ProcessGroup,
    config: DdpConfig,
    weights: Vec<Variable>,
    buffers: Vec<Variable>,
    reducer: Reducer<Torch>,
    /// It makes no step, but it is the way by which tch takes gradients away.
    eraser: nn::Optimizer,
}

impl DistributedDataParallel {
    /// Makes the variables of `store` equal to those of rank 0 and prepares to average their gradients.
    ///
    /// Build the model first: variables that are added to `store` later are not seen.
    ///
    /// # Cost
    /// One broadcast of the model, and memory for the largest bucket.
    ///
    /// # Errors
    /// As of [`sync_model`]; [`phalanx::Error::Misuse`] for [`Overlap::On`], for which tch has no hooks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::DistributedDataParallel;
    /// use tch::{Device, nn};
    ///
    /// let found = phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let x = store.root().var("x", &[1], nn::Init::Const(group.rank() as f64)); // different on each rank
    ///     let ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
    ///     ddp.verify_parameters().unwrap();
    ///     Ok(f64::try_from(x).unwrap())
    /// })?;
    /// assert_eq!(found, [0.0, 0.0]); // rank 0's
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn new(store: &VarStore, group: &ProcessGroup, config: DdpConfig) -> Result<Self> {
        if config.overlap == Overlap::On {
            let what = "tch tells nobody when a gradient is complete, so gradients can't be sent during the backward pass";
            return Err(phalanx::Error::misuse(OpKind::AllReduce, what).into());
        }
        sync_model(store, group, 0)?;
        let (weights, buffers): (Vec<_>, Vec<_>) =
            variables(store).into_iter().partition(|variable| variable.is_trainable);
        let parameters: Vec<_> = weights.iter().map(parameter).collect::<Result<_>>()?;
        let mut reducer = Reducer::new(parameters, group, config.bucket_cap_bytes, false)?;
        reducer.set_missing_gradients(config.missing_gradients);
        let eraser = nn::Sgd::default().build(store, 0.0).map_err(told)?;
        Ok(Self { group: group.clone(), config, weights, buffers, reducer, eraser })
    }

    /// Has `hook` add up the gradients of 32 bits instead of an all_reduce: in fewer bytes, for networks that are slower than the processors. All
    /// ranks pass the same kind.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::{DistributedDataParallel, compress::Cast};
    /// use tch::{Device, nn};
    ///
    /// phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let x = store.root().ones("x", &[1000]);
    ///     let ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
    ///     let mut ddp = ddp.with_hook(Cast::bf16());
    ///     ddp.backward(&x.sum(None)).unwrap();
    ///     assert_eq!(ddp.traffic().expect("there is a hook").ratio(), 2.0);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[doc(alias = "register_comm_hook")]
    #[must_use]
    pub fn with_hook(mut self, hook: impl CommHook + 'static) -> Self {
        self.reducer.set_hook(Box::new(hook));
        self
    }

    /// The bytes that the hook has sent until now, if there is one. See [`with_hook`](Self::with_hook).
    pub fn traffic(&self) -> Option<Traffic> {
        self.reducer.traffic()
    }

    /// Runs the backward pass of `loss`, and makes each variable's gradient that of the mean of all ranks' losses: what one process would have found for the
    /// global batch, if each rank's loss is a mean over equally many samples.
    ///
    /// Gradients that variables have already are part of the sum, as in libtorch: take them away with the optimizer's `zero_grad` before, and, to add
    /// up several batches, call tch's own `backward` for all but the last.
    ///
    /// # Cost
    /// One all_reduce a bucket and one of 4 bytes a variable, and some more: who has which gradients, and what share. Each gradient is copied into a bucket, and the
    /// result to where the gradient was.
    ///
    /// # Determinism
    /// Same bits on every rank. From run to run on ranks of one host that share memory, and elsewhere where the algorithms are the same: see
    /// [reproducibility](ProcessGroup#reproducibility).
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce), and of the backward pass, with which nothing is sent: the other ranks wait for this one then.
    /// [`Error::NoGradient`](crate::Error::NoGradient) if [`DdpConfig::missing_gradients`] asks for it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::DistributedDataParallel;
    /// use tch::{Device, nn};
    ///
    /// let grads = phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let x = store.root().ones("x", &[1]);
    ///     let mut ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
    ///     ddp.backward(&(&x * group.rank() as f64)).unwrap(); // a gradient of 0 on rank 0, and of 1 on rank 1
    ///     Ok(f64::try_from(x.grad()).unwrap())
    /// })?;
    /// assert_eq!(grads, [0.5, 0.5]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        self.backward_share(loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples.
    ///
    /// A rank without any samples has no loss; it calls [`sync_gradients`](Self::sync_gradients) instead.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); [`Error::ShareMismatch`](crate::Error::ShareMismatch) on all ranks for shares that do not add up to the
    /// whole, and [`phalanx::Error::Misuse`] for one of more than it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::{DistributedDataParallel, Share};
    /// use tch::{Device, nn};
    ///
    /// let grads = phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let x = store.root().ones("x", &[1]);
    ///     let mut ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
    ///     let samples = [3, 1][group.rank()];
    ///     ddp.backward_share(&(&x * group.rank() as f64), Share::new(samples, 4)).unwrap();
    ///     Ok(f64::try_from(x.grad()).unwrap())
    /// })?;
    /// assert_eq!(grads, [0.25, 0.25]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn backward_share(&mut self, loss: &Tensor, share: Share) -> Result<()> {
        loss.f_backward().map_err(told)?;
        self.sync_gradients(share)
    }

    /// Makes each variable's gradient that of the global batch: for a program that has run the backward pass itself, and for a rank that has no samples in a step.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share).
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::{DistributedDataParallel, Share};
    /// use tch::{Device, nn};
    ///
    /// let grads = phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let x = store.root().ones("x", &[1]);
    ///     let mut ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
    ///     if group.rank() == 0 {
    ///         (&x * 2.0).backward(); // rank 1 has no samples
    ///     }
    ///     ddp.sync_gradients(Share::new([4, 0][group.rank()], 4)).unwrap();
    ///     Ok(f64::try_from(x.grad()).unwrap())
    /// })?;
    /// assert_eq!(grads, [2.0, 2.0]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn sync_gradients(&mut self, share: Share) -> Result<()> {
        let reduced = match gradients(&self.weights) {
            Ok(mine) => self.reducer.reduce(mine, share),
            Err(error) => Err(error),
        };
        self.end(reduced)
    }

    /// For a rank that has no more batches while others have: takes part in one of their steps without gradients of its own. Call it until it returns
    /// false, when no rank has batches any more.
    ///
    /// The gradients are those that the others have, of the mean over those that still have batches; an optimizer that makes its step then keeps its state and
    /// the weights equal to theirs.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce): a timeout if the others don't call `backward`, or `join` in their turn.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::DistributedDataParallel;
    /// use tch::nn::OptimizerConfig;
    /// use tch::{Device, nn};
    ///
    /// let found = phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let x = store.root().zeros("x", &[1]);
    ///     let mut ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
    ///     let mut optimizer = nn::Sgd::default().build(&store, 1.0).unwrap();
    ///     for _ in 0..[3, 5][group.rank()] {
    ///         optimizer.zero_grad();
    ///         ddp.backward(&x.sum(None)).unwrap();
    ///         optimizer.step();
    ///     }
    ///     while ddp.join().unwrap() {
    ///         optimizer.step();
    ///     }
    ///     Ok(f64::try_from(x).unwrap())
    /// })?;
    /// assert_eq!(found, [-5.0, -5.0]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn join(&mut self) -> Result<bool> {
        // Those of this rank's last step are still there.
        self.eraser.zero_grad();
        match self.reducer.join() {
            Ok(None) => Ok(false),
            Ok(Some(reduced)) => self.end(Ok(reduced)).map(|()| true),
            Err(error) => Err(error),
        }
    }

    /// Ends a step: gradients are those of all ranks, or, where it failed, there are none.
    #[track_caller]
    fn end(&mut self, reduced: Result<Gradients<Torch>>) -> Result<()> {
        let reduced = reduced.and_then(|reduced| set_gradients(&self.weights, &reduced));
        if let Err(error) = reduced {
            self.reducer.forget();
            self.eraser.zero_grad();
            return Err(error);
        }
        if self.config.broadcast_buffers { self.sync_buffers(0) } else { Ok(()) }
    }

    /// Scales the gradients so that the norm of all of them together is `max_norm` at most, and returns what it was.
    ///
    /// Not collective: after [`backward`](Self::backward) it does the same on all ranks, to the last bit. A norm that is infinite or not a number is
    /// returned, and nothing is scaled. tch's `clip_grad_norm` and `clip_grad_value` may be used as well.
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number: nothing is scaled then.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::DistributedDataParallel;
    /// use tch::{Device, Tensor, nn};
    ///
    /// let group = &phalanx::threads(1)[0];
    /// let store = nn::VarStore::new(Device::Cpu);
    /// let x = store.root().ones("x", &[2]);
    /// let mut ddp = DistributedDataParallel::new(&store, group, Default::default())?;
    /// ddp.backward(&(&x * Tensor::from_slice(&[3f32, 4.0])).sum(None))?;
    /// assert_eq!(ddp.clip_grad_norm(1.0)?, 5.0);
    /// assert!((x.grad().double_value(&[0]) - 0.6).abs() < 1e-6);
    /// # Ok::<(), phalanx_tch::Error>(())
    /// ```
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<f64> {
        let mut grads = gradients(&self.weights)?;
        let norm = phalanx_train::clip_grad_norm(&mut grads, max_norm)?;
        set_gradients(&self.weights, &grads)?;
        Ok(norm)
    }

    /// Makes the buffers what they are on rank `root`: what the forward pass itself changes, such as the running statistics of batch normalisation.
    /// Collective. Before an evaluation is a good moment; [`DdpConfig::broadcast_buffers`] does it after each step.
    ///
    /// # Cost
    /// One broadcast of all of them together.
    ///
    /// # Errors
    /// Those of [`broadcast`](ProcessGroup::broadcast).
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::DistributedDataParallel;
    /// use tch::nn::{self, ModuleT};
    /// use tch::{Device, Kind, Tensor};
    ///
    /// let means = phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let norm = nn::batch_norm1d(store.root(), 1, Default::default());
    ///     let ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
    ///     norm.forward_t(&(Tensor::ones([4, 1], (Kind::Float, Device::Cpu)) * (group.rank() + 1) as f64), true);
    ///     ddp.sync_buffers(0).unwrap();
    ///     Ok(f64::try_from(&norm.running_mean).unwrap())
    /// })?;
    /// assert!(means.iter().all(|mean| (mean - 0.1).abs() < 1e-6)); // a tenth of rank 0's batch
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn sync_buffers(&self, root: usize) -> Result<()> {
        let mut buffers = crate::variables::named(&self.buffers, OpKind::Broadcast)?;
        phalanx_train::sync_buffers(buffers.iter_mut().map(|(_, tensor)| tensor), &self.group, root)
    }

    /// Makes sure that all ranks hold the same weights and buffers, bit for bit: see [`verify_parameters`](crate::verify_parameters). Once an epoch is cheap, and
    /// tells on which rank a run went astray before the accuracy does.
    ///
    /// # Errors
    /// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, and the others of [`verify_parameters`](crate::verify_parameters).
    #[track_caller]
    pub fn verify_parameters(&self) -> Result<()> {
        let all = crate::variables::named(self.weights.iter().chain(&self.buffers), OpKind::AllGather)?;
        phalanx_train::verify_parameters(all.iter().map(|(name, tensor)| (*name, tensor)), &self.group)
    }
}

/// A variable for a reducer. One that is frozen now may be trained later: it has its place, and is not missed.
fn parameter(variable: &Variable) -> Result<phalanx_train::Parameter<()>> {
    let tensor = Torch::of(OpKind::AllReduce, variable.tensor.shallow_clone())?;
    let parameter = phalanx_train::Parameter::of(variable.name.as_str(), &tensor);
    Ok(if variable.tensor.requires_grad() { parameter } else { parameter.optional() })
}

fn gradients(weights: &[Variable]) -> Result<Gradients<Torch>> {
    weights.iter().map(|weight| weight.gradient(OpKind::AllReduce)).collect()
}

fn set_gradients(weights: &[Variable], grads: &[Option<Torch>]) -> Result<()> {
    let of_both = weights.iter().zip(grads).filter_map(|(weight, grad)| Some((weight, grad.as_ref()?)));
    of_both.into_iter().try_for_each(|(weight, grad)| weight.set_gradient(grad.tensor()))
}
