//! The linear layer.

use super::operation::{is_ours, plain, product, tensor};
use super::weight::{Outcome, UsedWeight, Weight};
use crate::element::read;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};
use candle_nn::{Init, Module, VarBuilder};
use std::fmt;

/// [`candle_nn::Linear`] as one operation: a product of matrices and a bias.
///
/// # Shape
/// `[…, from]` in, `[…, to]` out.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder, VarMap};
/// use phalanx_candle::layers;
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let layer = layers::linear(4, 2, vb.pp("layer"))?;
/// let same = candle_nn::linear(4, 2, vb.pp("layer"))?; // the same variables
/// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
/// let difference = (layer.forward(&x)? - same.forward(&x)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(difference < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linear").field("weight", &self.weight.tensor).field("bias", &self.bias).finish()
    }
}

/// A layer with a bias, with the variables of [`candle_nn::linear`](candle_nn::linear()).
///
/// # Errors
/// Those of `vb`.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Module, VarBuilder, VarMap};
/// use phalanx_candle::layers;
///
/// # let varmap = VarMap::new();
/// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let layer = layers::linear(4, 2, vb)?;
/// let y = layer.forward(&Tensor::ones((3, 4), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [3, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn linear(from: usize, to: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    let layer = linear_no_bias(from, to, vb.clone())?;
    let bound = 1.0 / (from as f64).sqrt();
    let bias = vb.get_with_hints(to, "bias", Init::Uniform { lo: -bound, up: bound })?;
    Ok(Linear { bias: Some(bias), ..layer })
}

/// A layer without a bias, with the variable of [`candle_nn::linear_no_bias`].
///
/// # Errors
/// Those of `vb`.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Module, VarBuilder, VarMap};
/// use phalanx_candle::layers;
///
/// # let varmap = VarMap::new();
/// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let layer = layers::linear_no_bias(4, 2, vb)?;
/// let y = layer.forward(&Tensor::zeros((3, 4), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.0; 2]; 3]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn linear_no_bias(from: usize, to: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    Ok(Linear { weight: Weight::get((to, from), &vb)?, bias: None })
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weight = &self.weight.tensor;
        if !is_ours(x) || !is_ours(weight) {
            return candle_nn::Linear::new(weight.clone(), self.bias.clone()).forward(x);
        }
        let (&[.., width], &[to, from]) = (x.dims(), weight.dims()) else {
            bail!("a linear layer takes rows of numbers, not {:?}", x.shape())
        };
        if width != from {
            bail!("a linear layer with weights of {:?} got rows of {width} numbers", weight.shape())
        }
        let rows = plain(x)?.reshape(((), from))?;
        let weight = self.weight.used()?;
        let mut outcome = product(&rows, &weight.tensor.t()?)?;
        if let Some(bias) = &self.bias {
            read::<f32, _>(bias, |bias| {
                for row in outcome.chunks_exact_mut(to) {
                    row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
            })?;
        }
        let mut dims = x.dims().to_vec();
        dims[x.rank() - 1] = to;
        let argument = weight.argument.clone();
        let outcome = Outcome::new(outcome, dims);
        let operation = Operation { rows, weight, wants_input: x.track_op(), outcome };
        match &self.bias {
            Some(bias) => x.apply_op3(&argument, bias, operation),
            None => x.apply_op2(&argument, operation),
        }
    }
}

struct Operation {
    rows: Tensor,
    weight: UsedWeight,
    /// Whether what comes before depends on a variable.
    wants_input: bool,
    outcome: Outcome,
}

impl Operation {
    /// The gradients of the input and of the weights' argument, for those of the rows that come out.
    fn backward(&self, x: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let weight = &self.weight.tensor;
        let of_input = match self.wants_input {
            true => Some(tensor(product(grad, weight)?, x.shape())?),
            false => None,
        };
        let of_weight = tensor(product(&grad.t()?, &self.rows)?, weight.shape())?;
        Ok((of_input, Some(self.weight.give(of_weight)?)))
    }

    fn rows_of(&self, grad: &Tensor) -> Result<Tensor> {
        plain(grad)?.reshape(((), self.weight.tensor.dim(0)?))
    }
}

impl CustomOp2 for Operation {
    fn name(&self) -> &'static str {
        "phalanx-linear"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.outcome.take()
    }

    fn bwd(
        &self,
        x: &Tensor,
        _weight: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.backward(x, &self.rows_of(grad)?)
    }
}

impl CustomOp3 for Operation {
    fn name(&self) -> &'static str {
        "phalanx-linear"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.outcome.take()
    }

    fn bwd(
        &self,
        x: &Tensor,
        _weight: &Tensor,
        bias: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = self.rows_of(grad)?;
        let (of_input, of_weight) = self.backward(x, &grad)?;
        let mut sums = vec![0f32; bias.elem_count()];
        read::<f32, _>(&grad, |grad| {
            for row in grad.chunks_exact(sums.len().max(1)) {
                sums.iter_mut().zip(row).for_each(|(sum, g)| *sum += g);
            }
        })?;
        Ok((of_input, of_weight, Some(tensor(sums, bias.shape())?)))
    }
}
