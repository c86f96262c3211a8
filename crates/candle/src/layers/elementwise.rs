//! Activations.

use super::operation::{is_ours, map, map_back, read_both, tensor};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

/// What is positive, and zero elsewhere: [`Tensor::relu`] in one pass forward and one backward.
///
/// The gradient at zero is zero, as in PyTorch; candle's is one.
///
/// # Errors
/// Those of candle.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(&[-1f32, 0.0, 2.0], &Device::Cpu)?;
/// assert_eq!(phalanx_candle::layers::relu(&x)?.to_vec1::<f32>()?, [0.0, 0.0, 2.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn relu(x: &Tensor) -> Result<Tensor> {
    if is_ours(x) { x.contiguous()?.apply_op1(Map::<Relu>::default()) } else { x.relu() }
}

/// The Gaussian error linear unit, by its approximation with a hyperbolic tangent: [`Tensor::gelu`] in one pass forward and one backward.
///
/// # Errors
/// Those of candle.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(&[-1f32, 0.0, 2.0], &Device::Cpu)?;
/// let difference = (phalanx_candle::layers::gelu(&x)? - x.gelu()?)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(difference < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    if is_ours(x) { x.contiguous()?.apply_op1(Map::<Gelu>::default()) } else { x.gelu() }
}

/// A function of each number.
trait Function: Send + Sync + Default + 'static {
    const NAME: &'static str;
    fn at(x: f32) -> f32;
    /// The gradient of the argument, for one of the outcome.
    fn back(x: f32, grad: f32) -> f32;
}

#[derive(Default)]
struct Map<F>(F);

#[derive(Default)]
struct Relu;

impl Function for Relu {
    const NAME: &'static str = "phalanx-relu";

    #[inline(always)]
    fn at(x: f32) -> f32 {
        if x <= 0.0 { 0.0 } else { x }
    }

    #[inline(always)]
    fn back(x: f32, grad: f32) -> f32 {
        if x <= 0.0 { 0.0 } else { grad }
    }
}

#[derive(Default)]
struct Gelu;

const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;

/// Twice the argument of the hyperbolic tangent: `(1 + tanh(u)) / 2` is the sigmoid of `2 u`.
#[inline(always)]
fn inner(x: f32) -> f32 {
    TWICE_SQRT_2_OVER_PI * x * (1.0 + 0.044_715 * x * x)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

impl Function for Gelu {
    const NAME: &'static str = "phalanx-gelu";

    #[inline(always)]
    fn at(x: f32) -> f32 {
        x * sigmoid(inner(x))
    }

    #[inline(always)]
    fn back(x: f32, grad: f32) -> f32 {
        // Beyond these it is 0 or 1, and the square of a number must not be infinite.
        let x = x.clamp(-20.0, 20.0);
        let part = sigmoid(inner(x));
        let slope = TWICE_SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044_715 * x * x);
        grad * part * (1.0 + x * (1.0 - part) * slope)
    }
}

/// The exponential, within two units of the last place, infinite from 88 up; without a branch, so that a loop of these is one of vectors.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Added to a number it rounds this to the nearest integer, which stands in the last bits then.
    const ROUNDS: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;
    const MOST: f32 = 88.0;
    let within = x.clamp(LEAST, MOST);
    let rounded = within * std::f32::consts::LOG2_E + ROUNDS;
    let power = rounded - ROUNDS;
    // ln 2 in two parts, the first with few digits: its products are exact.
    let rest = within - power * 0.693_359_4 - power * -2.121_944_4e-4;
    let mut sum = 1.987_569_1e-4;
    for factor in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        sum = sum * rest + factor;
    }
    let fraction = sum * rest * rest + rest + 1.0;
    let scale = f32::from_bits(rounded.to_bits().wrapping_shl(23).wrapping_add(0x3f80_0000));
    let within = if x > MOST { f32::INFINITY } else { fraction * scale };
    if x < LEAST { 0.0 } else { within }
}

impl<F: Function> CustomOp1 for Map<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let all = storage.as_slice::<f32>()?;
        let outcome = match layout.contiguous_offsets() {
            Some((start, end)) => map(&all[start..end], F::at),
            None => bail!("{} takes numbers in row-major order", F::NAME),
        };
        Ok((CpuStorage::F32(outcome), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let outcome = read_both(x, grad, |x, grad| map_back(x, grad, F::back))?;
        Ok(Some(tensor(outcome, x.shape())?))
    }
}
