//! AdamW whose state can be saved, and, later, dealt out: the one of candle keeps its moments to itself.

use crate::clip::local;
use crate::model::weights;
use crate::sendable::Candle;
use crate::{Group, Result, Sharded};
use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::{ParamsAdamW, VarMap};
use phalanx_checkpoint::{Checkpoint, State, Stateful};
use phalanx_train::AdamWParams;
use phalanx_train::shard_parts::Flat;

/// AdamW (Loshchilov and Hutter, 2019), to the last bit that of [`candle_nn::AdamW`], with names for what it remembers: so it
/// can be part of a [checkpoint](crate::checkpoint).
///
/// It computes in the type of the weights. In f16 the usual `eps` of 1e-8 is zero, so a weight whose gradients are zero becomes NaN, and one whose
/// gradients are so small that f16 loses their squares (those below 5e-3 in the first step) infinite, as in PyTorch: a warning of `tracing` says so when
/// it is made. Keep weights in f32, as [`DistributedDataParallel::build`](crate::DistributedDataParallel::build) does for models of 16 bits; an `eps`
/// of 1e-4 at least avoids NaN.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{Module, VarBuilder, VarMap};
/// use phalanx_candle::AdamW;
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let model = candle_nn::linear(4, 1, vb)?;
/// let mut optimizer = AdamW::new(&varmap, Default::default())?;
/// let loss = model.forward(&candle_core::Tensor::ones((2, 4), DType::F32, &Device::Cpu)?)?.sqr()?.mean_all()?;
/// optimizer.step(&loss.backward()?)?;
/// # Ok::<(), phalanx_candle::Error>(())
/// ```
#[derive(Debug)]
pub struct AdamW {
    inner: phalanx_train::AdamW<Candle>,
    vars: Vec<Var>,
    params: ParamsAdamW,
}

impl AdamW {
    /// Optimises the variables of `varmap` whose elements are floating-point numbers, but for buffers, such as the running statistics of batch
    /// normalisation, which have no gradients.
    ///
    /// # Cost
    /// Twice their memory.
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::ParamsAdamW;
    /// use phalanx_candle::AdamW;
    ///
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let params = ParamsAdamW { lr: 0.1, ..Default::default() };
    /// let mut optimizer = AdamW::new(&varmap, params)?;
    /// optimizer.step(&x.sum_all()?.backward()?)?;
    /// assert!(x.to_vec1::<f32>()?[0] < 0.91);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn new(varmap: &VarMap, params: ParamsAdamW) -> Result<Self> {
        let weights = weights(varmap);
        let tensors = Candle::all_local(weights.iter().map(|p| &p.var))?;
        let named = weights.iter().map(|p| p.name.as_str()).zip(&tensors);
        let inner = phalanx_train::AdamW::new(named, rates(&params))?;
        Ok(Self { inner, vars: weights.into_iter().map(|p| p.var).collect(), params })
    }

    /// Optimises this rank's shards of a model that is dealt out. The state is saved by the names of the weights, so it goes on with
    /// another number of ranks or another [`Stage`](crate::Stage), and with a model that is not dealt out.
    ///
    /// # Cost
    /// Twice the shards' memory.
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::Module;
    /// use phalanx_candle::{AdamW, Sharded};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| candle_nn::linear(2, 1, vb))?;
    /// let mut optimizer = AdamW::sharded(&zero, Default::default())?; // of this rank's part
    /// let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// let loss = zero.forward(|model| model.forward(&x)?.sqr()?.mean_all())?;
    /// optimizer.step(&zero.backward(&loss)?)?;
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn sharded<M>(model: &Sharded<M>, params: ParamsAdamW) -> Result<Self> {
        let vars = model.shards();
        let shards = Candle::all_local(&vars)?;
        let parts = model.engine(|engine| engine.flats().iter().map(Flat::extents).collect::<Vec<_>>());
        let inner = phalanx_train::AdamW::of_shards(shards.iter().zip(parts), rates(&params))?;
        Ok(Self { inner, vars, params })
    }

    /// Makes one step. Variables without a gradient stay as they are, and so do their moments.
    ///
    /// # Cost
    /// One pass over variables, moments and gradients, in place; on a GPU the operations of candle's own, with new memory for moments.
    ///
    /// # Errors
    /// Those of candle. Some variables may have been changed then, others not.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::AdamW;
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::new(&varmap, Default::default())?;
    /// let before = x.to_vec1::<f32>()?;
    /// let grads = x.sqr()?.sum_all()?.backward()?;
    /// optimizer.step(&grads)?;
    /// assert!(x.to_vec1::<f32>()? < before);
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
    /// use phalanx_candle::{AdamW, clip_factor, grad_norm};
    ///
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::new(&varmap, Default::default())?;
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
    /// use phalanx_candle::{AdamW, sync_model};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::new(&varmap, Default::default())?;
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

    /// Rates and decay.
    ///
    /// # Examples
    /// ```
    /// # use candle_nn::VarMap;
    /// # use phalanx_candle::AdamW;
    /// let optimizer = AdamW::new(&VarMap::new(), Default::default())?;
    /// assert_eq!(optimizer.params().beta1, 0.9);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }

    /// Goes on with other rates and decay.
    ///
    /// # Examples
    /// ```
    /// # use candle_nn::{ParamsAdamW, VarMap};
    /// # use phalanx_candle::AdamW;
    /// let mut optimizer = AdamW::new(&VarMap::new(), Default::default())?;
    /// let lr = optimizer.params().lr / 10.0;
    /// optimizer.set_params(ParamsAdamW { lr, ..optimizer.params().clone() });
    /// assert_eq!(optimizer.params().lr, 1e-4);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn set_params(&mut self, params: ParamsAdamW) {
        self.inner.set_params(rates(&params));
        self.params = params;
    }
}

fn rates(params: &ParamsAdamW) -> AdamWParams {
    let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = *params;
    AdamWParams { lr, beta1, beta2, eps, weight_decay }
}

/// Moments and number of steps. Rates are not saved: they are the program's.
impl Stateful for AdamW {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> phalanx_checkpoint::Result<()> {
        self.inner.save(prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> phalanx_checkpoint::Result<()> {
        self.inner.load(prefix, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor, Var};
    use candle_nn::Optimizer;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    fn bits(tensor: &Tensor) -> Vec<u64> {
        let wide: Vec<f64> = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
        wide.into_iter().map(f64::to_bits).collect()
    }

    #[test]
    fn an_eps_that_f16_has_not_is_told_because_it_spoils_weights() {
        for (dtype, eps, lost) in [
            (DType::F16, 1e-8, true),
            (DType::F16, 1e-4, false),
            (DType::BF16, 1e-8, false),
            (DType::F32, 1e-8, false),
        ] {
            let varmap = VarMap::new();
            let var = Var::ones(3, dtype, &Device::Cpu).unwrap();
            varmap.data().lock().unwrap().insert("w".into(), var.clone());
            let mut adamw = AdamW::new(&varmap, ParamsAdamW { eps, ..Default::default() }).unwrap();
            let mut grads = GradStore::default();
            let grad = Tensor::new(&[0.0f32, -0.0, 5e-3], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            grads.insert(&var, grad);
            adamw.step(&grads).unwrap();
            let found = var.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
            assert!(found.iter().all(|x| x.is_finite() != lost), "{dtype:?}, {eps}: {found:?}");
        }
    }

    #[test]
    fn every_bit_is_that_of_candle() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut numbers = |dtype: DType, scale: f64| {
            // Zeros of both signs, and every size of number.
            let number = |i: usize, random: &mut ChaCha8Rng| match i % 9 {
                0 => 0.0,
                1 => -0.0,
                _ => {
                    ((random.next_u32() as f64 / f64::from(u32::MAX)) - 0.5)
                        * scale
                        * 10f64.powi((i % 7) as i32 - 5)
                }
            };
            let numbers: Vec<f64> = (0..600).map(|i| number(i, &mut random)).collect();
            Tensor::from_vec(numbers, (20, 30), &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
        };
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let weights = numbers(dtype, 1.0);
            let (ours, theirs) = (Var::from_tensor(&weights).unwrap(), Var::from_tensor(&weights).unwrap());
            let varmap = VarMap::new();
            varmap.data().lock().unwrap().insert("w".into(), ours.clone());
            let params = ParamsAdamW { lr: 0.02, weight_decay: 0.1, ..Default::default() };
            let mut our = AdamW::new(&varmap, params.clone()).unwrap();
            let mut their = candle_nn::AdamW::new(vec![theirs.clone()], params).unwrap();
            for step in 0..20 {
                let grad = numbers(dtype, 3.0);
                // In another layout than the variable's, now and then.
                let grad =
                    if step % 3 == 0 { grad.t().unwrap().contiguous().unwrap().t().unwrap() } else { grad };
                let (mut grads, mut their_grads) = (GradStore::default(), GradStore::default());
                grads.insert(&ours, grad.clone());
                their_grads.insert(&theirs, grad);
                if step == 7 {
                    (grads, their_grads) = (GradStore::default(), GradStore::default());
                }
                our.step(&grads).unwrap();
                their.step(&their_grads).unwrap();
                assert_eq!(bits(&ours), bits(&theirs), "{dtype:?}, step {step}");
            }
            assert_ne!(bits(&ours), bits(&weights));
        }
    }
}
