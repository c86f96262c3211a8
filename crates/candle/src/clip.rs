//! Gradients that are too large.

use crate::Result;
use crate::backward::put;
use crate::model::parameters;
use crate::sendable::Candle;
use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use phalanx_train::Gradients;

/// Scales the gradients of `varmap`'s variables, in place, so that the norm of all of them together is `max_norm` at most, and returns
/// what it was.
///
/// Not collective: give it reduced gradients, as [`backward`](crate::DistributedDataParallel::backward) returns them, and it
/// does the same on all ranks, to the last bit. A norm that is infinite or not a number is returned, and nothing is scaled. The norm is `max_norm` at
/// most after rounding, too: see [`phalanx_train::clip_grad_norm`].
///
/// # Cost
/// One pass over the gradients, two if they are scaled.
///
/// # Errors
/// [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number: nothing is scaled then. Those of candle. Gradients on a GPU are
/// clipped there.
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
/// # let [a, b] = grads.get(&x).unwrap().to_vec1::<f32>()?[..] else { panic!() };
/// # assert!(norm == 5.0 && (a - 0.6).abs() < 1e-6 && (b - 0.8).abs() < 1e-6);
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
pub fn clip_grad_norm(varmap: &VarMap, grads: &mut GradStore, max_norm: f64) -> Result<f64> {
    let vars = vars(varmap);
    let norm = sum_of_squares(&vars, grads)?.sqrt();
    shorten(&vars, grads, norm, max_norm)?;
    Ok(norm)
}

/// As [`phalanx_train::clip_factor`].
///
/// # Errors
/// [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number.
///
/// # Examples
/// ```
/// assert_eq!(phalanx_candle::clip_factor(0.5, 1.0)?, 1.0);
/// assert!((phalanx_candle::clip_factor(4.0, 1.0)? - 0.25).abs() < 1e-8);
/// # Ok::<(), phalanx_candle::Error>(())
/// ```
pub fn clip_factor(norm: f64, max_norm: f64) -> Result<f64> {
    Ok(phalanx_train::clip_factor(norm, max_norm)?)
}

/// The norm of the gradients of all of `varmap`'s variables together, which are left as they are: infinite or not a number if one of them is.
///
/// With [`clip_factor`](crate::clip_factor) and [`Sgd::step_scaled`](crate::Sgd::step_scaled) or [`AdamW::step_scaled`](crate::AdamW::step_scaled) it takes the
/// place of [`clip_grad_norm`], of [`LossScaler::unscale`](crate::LossScaler::unscale), or of both, and gradients are written by no pass of their own.
///
/// # Cost
/// One pass over the gradients.
///
/// # Errors
/// Those of candle.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::VarMap;
/// use phalanx_candle::{LossScaler, Sgd, clip_factor, grad_norm};
///
/// # let varmap = VarMap::new();
/// # let x = varmap.get(2, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
/// # let mut optimizer = Sgd::new(&varmap, Default::default())?;
/// let mut scaler = LossScaler::new(1024.0)?;
/// let loss = scaler.scale(&x.sum_all()?)?;
/// let grads = loss.backward()?;
/// let scale = scaler.factor();
/// let norm = grad_norm(&varmap, &grads)? / scale;
/// if scaler.settle(norm.is_finite()) {
///     optimizer.step_scaled(&grads, clip_factor(norm, 1.0)? / scale)?;
/// }
/// # assert!((norm - 2f64.sqrt()).abs() < 1e-9);
/// # Ok::<(), phalanx_candle::Error>(())
/// ```
pub fn grad_norm(varmap: &VarMap, grads: &GradStore) -> Result<f64> {
    Ok(sum_of_squares(&vars(varmap), grads)?.sqrt())
}

/// The variables in name order: sums of floats depend on it.
pub(crate) fn vars(varmap: &VarMap) -> Vec<Var> {
    parameters(varmap).into_iter().map(|parameter| parameter.var).collect()
}

/// Calls `work` with the gradients of `vars`, which it may change in place.
pub(crate) fn with_gradients<R>(
    vars: &[Var],
    grads: &mut GradStore,
    work: impl FnOnce(&mut [Option<Candle>]) -> phalanx_train::Result<R>,
) -> Result<R> {
    let mut all = local(vars, grads)?;
    let outcome = work(&mut all)?;
    put(vars, all, grads);
    Ok(outcome)
}

/// The gradients of `vars`, for work on this rank alone.
pub(crate) fn local(vars: &[Var], grads: &GradStore) -> Result<Gradients<Candle>> {
    let of = |var: &Var| grads.get(var).map(Candle::local).transpose();
    Ok(vars.iter().map(of).collect::<phalanx_train::Result<_>>()?)
}

/// The sum of the squares of all elements of the gradients of `vars`.
pub(crate) fn sum_of_squares(vars: &[Var], grads: &GradStore) -> Result<f64> {
    Ok(phalanx_train::sum_of_squares(&local(vars, grads)?)?)
}

/// Scales gradients of which all together have this norm, so that it is `max_norm` at most.
pub(crate) fn shorten(vars: &[Var], grads: &mut GradStore, norm: f64, max_norm: f64) -> Result<()> {
    with_gradients(vars, grads, |grads| phalanx_train::shorten(grads, norm, max_norm))
}
