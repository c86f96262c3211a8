//! Gradients that are too large.

use crate::Result;
use crate::element::{bytes_mut, read, with_element};
use crate::model::parameters;
use candle_core::backprop::GradStore;
use candle_core::{Var, WithDType};
use candle_nn::VarMap;

/// Scales the gradients of `varmap`'s variables, in place, so that the norm of all of them together is `max_norm` at most, and returns
/// what it was.
///
/// Not collective: give it reduced gradients, as [`backward`](crate::DistributedDataParallel::backward) returns them, and it
/// does the same on all ranks, to the last bit. A norm that is infinite or not a number is returned, and nothing is scaled.
///
/// # Cost
/// One pass over the gradients, two if they are scaled.
///
/// # Errors
/// Those of candle, for gradients that are not on the CPU.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::VarMap;
/// # use phalanx_candle::{DistributedDataParallel, clip_grad_norm};
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
/// # let varmap = VarMap::new();
/// # let x = varmap.get(2, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
/// # let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?;
/// # let loss = (&x * Tensor::new(&[3f32, 4.0], &Device::Cpu)?)?.sum_all()?;
/// let mut grads = ddp.backward(&loss)?;
/// let norm = clip_grad_norm(&varmap, &mut grads, 1.0)?;
/// # assert_eq!((norm, grads.get(&x).unwrap().to_vec1::<f32>()?), (5.0, vec![0.6, 0.8]));
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::SimulatedBackend::create_group(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
pub fn clip_grad_norm(varmap: &VarMap, grads: &mut GradStore, max_norm: f64) -> Result<f64> {
    let vars = vars(varmap);
    let norm = sum_of_squares(&vars, grads)?.sqrt();
    shorten(&vars, grads, norm, max_norm)?;
    Ok(norm)
}

/// The variables in name order: sums of floats depend on it.
pub(crate) fn vars(varmap: &VarMap) -> Vec<Var> {
    parameters(varmap).into_iter().map(|parameter| parameter.var).collect()
}

/// Of the gradients of `vars`, in f64, in which no square of an f32 overflows.
pub(crate) fn sum_of_squares(vars: &[Var], grads: &GradStore) -> Result<f64> {
    let mut sum = 0.0;
    for grad in vars.iter().filter_map(|var| grads.get(var)) {
        sum += with_element!(grad.dtype(),
            T => read::<T, _>(grad, |values| values.iter().map(|x| x.to_f64() * x.to_f64()).sum::<f64>())?,
            _ => 0.0, // no variable of such a type has a gradient
        );
    }
    Ok(sum)
}

/// Scales gradients of which all together have this norm, so that it is `max_norm` at most.
pub(crate) fn shorten(vars: &[Var], grads: &mut GradStore, norm: f64, max_norm: f64) -> Result<()> {
    if norm.is_finite() && norm > max_norm { scale(vars, grads, max_norm / norm) } else { Ok(()) }
}

/// Multiplies gradients in place, and rounds once.
pub(crate) fn scale(vars: &[Var], grads: &mut GradStore, by: f64) -> Result<()> {
    for var in vars {
        if let Some(grad) = grads.get(var) {
            let grad = grad.contiguous()?;
            bytes_mut(&grad, |bytes| crate::adapter::multiply(grad.dtype(), bytes, by))?;
            grads.insert(var, grad);
        }
    }
    Ok(())
}
