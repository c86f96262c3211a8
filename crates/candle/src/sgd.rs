//! Gradient descent with momentum, which candle does not have.

use crate::clip::local;
use crate::model::weights;
use crate::sendable::Candle;
use crate::{Group, Result, Sharded};
use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use phalanx_checkpoint::{Checkpoint, State, Stateful};
use phalanx_train::SgdParams;
use phalanx_train::shard_parts::Flat;

/// Gradient descent with momentum (Nesterov's too), dampening and weight decay, by the formula of PyTorch's `SGD`; without them it is [`candle_nn::SGD`] to
/// the last bit. It has names for what it remembers: so it can be part of a [checkpoint](crate::checkpoint).
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder, VarMap};
/// use phalanx_candle::{Sgd, SgdParams};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let model = candle_nn::linear(4, 1, vb)?;
/// let mut optimizer = Sgd::new(&varmap, SgdParams { lr: 0.1, momentum: 0.9, ..Default::default() })?;
/// let loss = model.forward(&Tensor::ones((2, 4), DType::F32, &Device::Cpu)?)?.sqr()?.mean_all()?;
/// optimizer.step(&loss.backward()?)?;
/// # Ok::<(), phalanx_candle::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "SGD")]
pub struct Sgd {
    inner: phalanx_train::Sgd<Candle>,
    vars: Vec<Var>,
}

impl Sgd {
    /// Optimises the variables of `varmap` whose elements are floating-point numbers, but for buffers, such as the running statistics of batch
    /// normalisation, which have no gradients.
    ///
    /// # Cost
    /// With momentum their memory once more, from the first step on; without it nothing.
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::{Sgd, SgdParams};
    ///
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::new(&varmap, SgdParams { lr: 0.25, ..Default::default() })?;
    /// optimizer.step(&x.sum_all()?.backward()?)?;
    /// assert_eq!(x.to_vec1::<f32>()?, [0.75]);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn new(varmap: &VarMap, params: SgdParams) -> Result<Self> {
        let weights = weights(varmap);
        let tensors = Candle::all_local(weights.iter().map(|p| &p.var))?;
        let named = weights.iter().map(|p| p.name.as_str()).zip(&tensors);
        let inner = phalanx_train::Sgd::new(named, params);
        Ok(Self { inner, vars: weights.into_iter().map(|p| p.var).collect() })
    }

    /// Optimises this rank's shards of a model that is dealt out. The state is saved by the names of the weights, so it goes on with
    /// another number of ranks or another [`Stage`](crate::Stage), and with a model that is not dealt out.
    ///
    /// # Cost
    /// With momentum the shards' memory once more, from the first step on; without it nothing.
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::Module;
    /// use phalanx_candle::{Sgd, Sharded};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| candle_nn::linear(2, 1, vb))?;
    /// let mut optimizer = Sgd::sharded(&zero, Default::default())?; // of this rank's part
    /// let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// let loss = zero.forward(|model| model.forward(&x)?.sqr()?.mean_all())?;
    /// optimizer.step(&zero.backward(&loss)?)?;
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn sharded<M>(model: &Sharded<M>, params: SgdParams) -> Result<Self> {
        let vars = model.shards();
        let shards = Candle::all_local(&vars)?;
        let parts = model.engine(|engine| engine.flats().iter().map(Flat::extents).collect::<Vec<_>>());
        let inner = phalanx_train::Sgd::of_shards(shards.iter().zip(parts), params);
        Ok(Self { inner, vars })
    }

    /// Makes one step. Variables without a gradient stay as they are, and so do their velocities.
    ///
    /// # Cost
    /// One pass over variables, velocities and gradients, in place; on a GPU the operations of candle's own, with new memory.
    ///
    /// # Errors
    /// Those of candle. Some variables may have been changed then, others not.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::{Sgd, SgdParams};
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ZERO, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::new(&varmap, SgdParams { lr: 1.0, momentum: 0.5, ..Default::default() })?;
    /// for _ in 0..2 {
    ///     optimizer.step(&x.sum_all()?.backward()?)?;
    /// }
    /// assert_eq!(x.to_vec1::<f32>()?, [-2.5]); // by 1, then by 1 and half of 1
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn step(&mut self, grads: &GradStore) -> Result<()> {
        self.step_scaled(grads, 1.0)
    }

    /// As [`step`](Self::step), of gradients that are multiplied by `factor` in the same pass: in place of passes of their own that
    /// [clip](crate::clip_factor) and unscale them.
    ///
    /// # Errors
    /// As of [`step`](Self::step).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::{Sgd, clip_factor, grad_norm};
    ///
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::new(&varmap, Default::default())?;
    /// let grads = (x.sum_all()? * 3.0)?.backward()?;
    /// let norm = grad_norm(&varmap, &grads)?;
    /// optimizer.step_scaled(&grads, clip_factor(norm, 1.0)?)?; // as if the gradient were 1
    /// # assert!((x.to_vec1::<f32>()?[0] - 0.999).abs() < 2e-5);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn step_scaled(&mut self, grads: &GradStore, factor: f64) -> Result<()> {
        let mut vars = Candle::all_local(&self.vars)?;
        Ok(self.inner.step_scaled(&mut vars, &local(&self.vars, grads)?, factor)?)
    }

    /// Copies what rank `root` remembers to all ranks, bit for bit: where a group has ranks that have just come, as after
    /// [`rejoin`](phalanx::ProcessGroup::rejoin). Rates are not copied: they are the program's.
    ///
    /// Collective. Variables are compared by name first.
    ///
    /// # Cost
    /// A few small messages a rank, then one broadcast for each tensor that is remembered; those on a GPU are copied over the host.
    ///
    /// # Errors
    /// [`Error::ModelMismatch`](crate::Error::ModelMismatch) on every rank where some rank optimises other variables: nothing was changed.
    /// [`phalanx::Error::Config`] for an optimizer of shards, of which each rank has its own. Those of candle, and of
    /// [`broadcast`](phalanx::ProcessGroup::broadcast): part of it may have been copied then.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::{Sgd, sync_model};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::new(&varmap, Default::default())?;
    /// sync_model(&varmap, group, 0)?;
    /// optimizer.sync(group, 0)?; // now a step is the same on all ranks
    /// # optimizer.step(&x.sum_all()?.backward()?)?;
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync(&mut self, group: &impl Group, root: usize) -> Result<()> {
        Ok(self.inner.sync(group.host(), root)?)
    }

    /// The rates.
    ///
    /// # Examples
    /// ```
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::Sgd;
    /// assert_eq!(Sgd::new(&VarMap::new(), Default::default())?.params().lr, 1e-3);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn params(&self) -> &SgdParams {
        self.inner.params()
    }

    /// Goes on with other rates.
    ///
    /// # Examples
    /// ```
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::{Sgd, SgdParams};
    /// let mut optimizer = Sgd::new(&VarMap::new(), Default::default())?;
    /// optimizer.set_params(SgdParams { lr: 1e-4, ..*optimizer.params() });
    /// assert_eq!(optimizer.params().lr, 1e-4);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn set_params(&mut self, params: SgdParams) {
        self.inner.set_params(params);
    }
}

/// The velocities of variables that have some. Rates are not saved: they are the program's.
impl Stateful for Sgd {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> phalanx_checkpoint::Result<()> {
        self.inner.save(prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> phalanx_checkpoint::Result<()> {
        self.inner.load(prefix, from)
    }
}
