//! AdamW whose state can be saved, and, later, dealt out: the one of candle keeps its moments to itself.

use crate::checkpoint::{copied, fits, info, read_whole};
use crate::element::{Shared, bytes_mut, read};
use crate::model::{Parameter, is_buffer, parameters};
use crate::shard::Extent;
use crate::{Result, Sharded};
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use candle_nn::{ParamsAdamW, VarMap};
use half::{bf16, f16};
use phalanx_checkpoint::{Checkpoint, State, Stateful};

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
    slots: Vec<Slot>,
    steps: u64,
    params: ParamsAdamW,
}

/// A variable, and running means of its gradient and of the square of that.
#[derive(Debug)]
struct Slot {
    var: Var,
    of: Of,
    first: Tensor,
    second: Tensor,
}

/// Which part of the model a variable is.
#[derive(Debug)]
enum Of {
    /// The weight of this name; all ranks have it alike.
    Weight(String),
    /// This rank's parts of weights.
    Parts(Vec<Extent>),
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
        // What `sharded` deals out, too: so the one loads what the other has saved.
        let is_weight = |p: &Parameter| p.var.dtype().is_float() && !is_buffer(&p.name);
        let weights = parameters(varmap).into_iter().filter(is_weight);
        Self::of(weights.map(|p| (p.var, Of::Weight(p.name))), params)
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
        let shards: Vec<_> = model.engine(|engine| {
            engine.flats.iter().map(|flat| (flat.shard.clone(), Of::Parts(flat.extents()))).collect()
        });
        Self::of(shards.into_iter(), params)
    }

    fn of(vars: impl Iterator<Item = (Var, Of)>, params: ParamsAdamW) -> Result<Self> {
        let slot = |(var, of): (Var, Of)| {
            let (first, second) = (var.zeros_like()?, var.zeros_like()?);
            Ok(Slot { var, of, first, second })
        };
        let vars: Vec<_> = vars.collect();
        if vars.iter().any(|(var, _)| is_lost(var.dtype(), params.eps)) {
            tracing::warn!(
                eps = params.eps,
                "AdamW's eps is zero in f16: weights of f16 whose gradients are zero or small become NaN or infinite; keep them in f32, or take an eps of 1e-4 at least"
            );
        }
        let vars = vars.into_iter();
        Ok(Self { slots: vars.map(slot).collect::<Result<_>>()?, steps: 0, params })
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
        self.steps += 1;
        let rates = Rates::at_step(self.steps, &self.params);
        for Slot { var, of, first, second } in &mut self.slots {
            let Some(grad) = grads.get(var) else { continue };
            if !var.device().is_cpu() {
                (*first, *second) = update_on_device(&rates, var, first, second, grad)?;
                continue;
            }
            match var.dtype() {
                DType::F32 => update::<f32>(&rates, var, first, second, grad)?,
                DType::F64 => update::<f64>(&rates, var, first, second, grad)?,
                DType::F16 => update::<f16>(&rates, var, first, second, grad)?,
                DType::BF16 => update::<bf16>(&rates, var, first, second, grad)?,
                other => {
                    let name = match of {
                        Of::Weight(name) => format!("`{name}`"),
                        Of::Parts(_) => "a shard".into(),
                    };
                    let what = format!("AdamW can't optimise {name}: its elements are {}", other.as_str());
                    return Err(candle_core::Error::Msg(what).into());
                }
            }
        }
        Ok(())
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
        self.params = params;
    }

    /// The moments, each with what goes before its names.
    fn moments(&self, prefix: &str) -> impl Iterator<Item = (String, &Tensor, &Of)> {
        self.slots.iter().flat_map(move |Slot { of, first, second, .. }| {
            [(format!("{prefix}.first_moment"), first, of), (format!("{prefix}.second_moment"), second, of)]
        })
    }
}

/// Moments and number of steps. Rates are not saved: they are the program's.
impl Stateful for AdamW {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> phalanx_checkpoint::Result<()> {
        for (prefix, moment, of) in self.moments(prefix) {
            match of {
                Of::Weight(name) => state.tensor(format!("{prefix}.{name}"), info(moment)?, copied(moment)),
                Of::Parts(extents) => extents.iter().try_for_each(|e| e.save(&prefix, moment, state))?,
            }
        }
        state.value(format!("{prefix}.steps"), &self.steps)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> phalanx_checkpoint::Result<()> {
        let steps = from.value(&format!("{prefix}.steps"))?;
        for (prefix, moment, of) in self.moments(prefix) {
            match of {
                Of::Weight(name) => fits(&format!("{prefix}.{name}"), info(moment)?, from)?,
                Of::Parts(extents) => extents.iter().try_for_each(|e| e.fits(&prefix, moment, from))?,
            }
        }
        for (prefix, moment, of) in self.moments(prefix) {
            match of {
                Of::Weight(name) => read_whole(&format!("{prefix}.{name}"), moment, from)?,
                Of::Parts(extents) => extents.iter().try_for_each(|e| e.load(&prefix, moment, from))?,
            }
        }
        self.steps = steps;
        Ok(())
    }
}

/// Whether nothing is left of this `eps` among numbers of a type, though it is not zero.
fn is_lost(dtype: DType, eps: f64) -> bool {
    dtype == DType::F16 && eps != 0.0 && f16::from_f64(eps) == f16::ZERO
}

/// The numbers of one step.
struct Rates {
    learning: f64,
    decay: f64,
    first: f64,
    second: f64,
    /// The factor that makes up for first moments that began as zero.
    first_scale: f64,
    second_scale: f64,
    eps: f64,
}

impl Rates {
    fn at_step(step: u64, params: &ParamsAdamW) -> Self {
        let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = *params;
        // As candle does it: the exponent has 31 bits.
        let scale = |beta: f64| 1.0 / (1.0 - beta.powi(step as i32));
        Self {
            learning: lr,
            decay: lr * weight_decay,
            first: beta1,
            second: beta2,
            first_scale: scale(beta1),
            second_scale: scale(beta2),
            eps,
        }
    }
}

/// The element types that have roots.
trait Float: Shared {
    fn root(self) -> Self;
}

macro_rules! floats {
    ($($t:ty: $root:expr),*) => { $(
        impl Float for $t {
            fn root(self) -> Self {
                $root(self)
            }
        }
    )* };
}

floats!(
    f32: f32::sqrt, f64: f64::sqrt,
    f16: |x: f16| f16::from_f32(x.to_f32().sqrt()),
    bf16: |x: bf16| bf16::from_f32(x.to_f32().sqrt())
);

fn update<T: Float>(
    rates: &Rates,
    var: &Tensor,
    first: &Tensor,
    second: &Tensor,
    grad: &Tensor,
) -> candle_core::Result<()> {
    read::<T, _>(grad, |grad| {
        bytes_mut(var, |var| {
            bytes_mut(first, |first| {
                bytes_mut(second, |second| {
                    let cast = bytemuck::cast_slice_mut::<u8, T>;
                    update_run(rates, cast(var), cast(first), cast(second), grad);
                })
            })
        })
    })???
}

/// The step in candle's own operations. Returns the moments.
fn update_on_device(
    rates: &Rates,
    var: &Var,
    first: &Tensor,
    second: &Tensor,
    grad: &Tensor,
) -> candle_core::Result<(Tensor, Tensor)> {
    let first = ((first * rates.first)? + (grad * (1.0 - rates.first))?)?;
    let second = ((second * rates.second)? + (grad.sqr()? * (1.0 - rates.second))?)?;
    let slope = (&first * rates.first_scale)?;
    let size = ((&second * rates.second_scale)?.sqrt()? + rates.eps)?;
    let kept = (var.as_detached_tensor() * (1.0 - rates.decay))?;
    var.set(&(kept - ((slope / size)? * rates.learning)?)?)?;
    Ok((first, second))
}

/// The step on a run of elements: any part of the whole gives the same bits.
///
/// Each line is one of candle's operations with its rounding; a product there is `x * a + 0`, which makes zeros positive.
fn update_run<T: Float>(rates: &Rates, var: &mut [T], first: &mut [T], second: &mut [T], grad: &[T]) {
    let of = T::from_f64;
    let (zero, one) = (of(0.0), of(1.0));
    let (keep_first, keep_second) = (of(rates.first), of(rates.second));
    let (new_first, new_second) = (of(1.0 - rates.first), of(1.0 - rates.second));
    let (first_scale, second_scale) = (of(rates.first_scale), of(rates.second_scale));
    let (keep, learning, eps) = (of(1.0 - rates.decay), of(rates.learning), of(rates.eps));
    let moments = first.iter_mut().zip(second);
    for ((var, (first, second)), &grad) in var.iter_mut().zip(moments).zip(grad) {
        *first = (*first * keep_first + zero) + (grad * new_first + zero);
        *second = (*second * keep_second + zero) + (grad * grad * new_second + zero);
        let slope = *first * first_scale + zero;
        let size = (*second * second_scale + zero).root() * one + eps;
        *var = (*var * keep + zero) - (slope / size * learning + zero);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};
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
            assert_eq!(is_lost(dtype, eps), lost);
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
