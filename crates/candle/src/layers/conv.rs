//! The convolution of images.

use super::operation::{fold, is_ours, plain, product, tensor};
use super::patches::Patches;
use super::weight::{Outcome, UsedWeight, Weight};
use crate::element::read;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};
use candle_nn::{Conv2dConfig, Init, Module, VarBuilder};
use pulp::Arch;
use rayon::prelude::*;
use std::fmt;

/// [`candle_nn::Conv2d`] as one operation, made of products of matrices forward and backward. With groups it is candle's.
///
/// # Shape
/// `[n, from, height, width]` in, `[n, to, …]` out.
///
/// # Cost
/// One image's patches at a time for each thread: its numbers as often as the kernel has some.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder, VarMap};
/// use phalanx_candle::layers;
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let layer = layers::conv2d(3, 8, 5, Default::default(), vb.pp("layer"))?;
/// let same = candle_nn::conv2d(3, 8, 5, Default::default(), vb.pp("layer"))?; // the same variables
/// let x = Tensor::ones((2, 3, 9, 9), DType::F32, &Device::Cpu)?;
/// let difference = (layer.forward(&x)? - same.forward(&x)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(difference < 1e-5);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Conv2d {
    weight: Weight,
    bias: Option<Tensor>,
    config: Conv2dConfig,
}

impl fmt::Debug for Conv2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conv2d")
            .field("weight", &self.weight.tensor)
            .field("bias", &self.bias)
            .field("config", &self.config)
            .finish()
    }
}

/// A layer with a bias, with the variables of [`candle_nn::conv2d`].
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
/// let layer = layers::conv2d(1, 4, 3, Default::default(), vb)?;
/// let y = layer.forward(&Tensor::ones((2, 1, 8, 8), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [2, 4, 6, 6]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn conv2d(
    from: usize,
    to: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: VarBuilder<'_>,
) -> Result<Conv2d> {
    let layer = conv2d_no_bias(from, to, kernel_size, config, vb.clone())?;
    let bound = 1.0 / (from as f64).sqrt();
    let bias = vb.get_with_hints(to, "bias", Init::Uniform { lo: -bound, up: bound })?;
    Ok(Conv2d { bias: Some(bias), ..layer })
}

/// A layer without a bias, with the variable of [`candle_nn::conv2d_no_bias`].
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
/// let layer = layers::conv2d_no_bias(1, 4, 3, Default::default(), vb)?;
/// let y = layer.forward(&Tensor::zeros((2, 1, 8, 8), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.sum_all()?.to_scalar::<f32>()?, 0.0);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn conv2d_no_bias(
    from: usize,
    to: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: VarBuilder<'_>,
) -> Result<Conv2d> {
    let shape = (to, from / config.groups.max(1), kernel_size, kernel_size);
    let weight = if config.groups == 1 { Weight::get(shape, &vb)? } else { Weight::of_graph(shape, &vb)? };
    Ok(Conv2d { weight, bias: None, config })
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Self { weight, bias, config } = self;
        if !is_ours(x) || !is_ours(&weight.tensor) || config.groups != 1 {
            return candle_nn::Conv2d::new(weight.tensor.clone(), bias.clone(), *config).forward(x);
        }
        let (&[images, channels, height, width], &[to, from, rows, columns]) =
            (x.dims(), weight.tensor.dims())
        else {
            bail!("a convolution takes images, [n, channels, height, width], not {:?}", x.shape())
        };
        let patches = Patches::new(channels, [height, width], [rows, columns], config);
        let Some(patches) = patches.filter(|_| channels == from) else {
            bail!("a convolution with weights of {:?} got {:?}", weight.tensor.shape(), x.shape())
        };
        let input = plain(x)?;
        let weight = weight.used()?;
        let matrix = weight.tensor.reshape((to, patches.depth()))?;
        let forward = |input: &[f32], bias: Option<&[f32]>| -> Result<Vec<f32>> {
            let mut outcome = vec![0f32; images * to * patches.count()];
            let all = outcome.par_chunks_mut(to * patches.count()).zip(input.par_chunks(patches.numbers()));
            all.try_for_each(|(outcome, image)| {
                let taken = tensor(patches.take(image), (patches.depth(), patches.count()))?;
                let product = product(&matrix, &taken)?;
                let rows =
                    outcome.chunks_exact_mut(patches.count()).zip(product.chunks_exact(patches.count()));
                for (at, (outcome, product)) in rows.enumerate() {
                    let bias = bias.map_or(0.0, |bias| bias[at]);
                    outcome.iter_mut().zip(product).for_each(|(y, x)| *y = x + bias);
                }
                Ok::<_, candle_core::Error>(())
            })?;
            Ok(outcome)
        };
        let outcome = read::<f32, _>(&input, |input| match bias {
            Some(bias) => read::<f32, _>(bias, |bias| forward(input, Some(bias)))?,
            None => forward(input, None),
        })??;
        let dims = vec![images, to, patches.outcome[0], patches.outcome[1]];
        let outcome = Outcome::new(outcome, dims);
        let argument = weight.argument.clone();
        let operation = Operation { input, matrix, patches, weight, wants_input: x.track_op(), outcome };
        match bias {
            Some(bias) => x.apply_op3(&argument, bias, operation),
            None => x.apply_op2(&argument, operation),
        }
    }
}

struct Operation {
    input: Tensor,
    /// The kernels, one a row.
    matrix: Tensor,
    patches: Patches,
    weight: UsedWeight,
    /// Whether what comes before depends on a variable.
    wants_input: bool,
    outcome: Outcome,
}

/// What one image says: the gradients of the kernels and of the image.
type OfImage = (Vec<f32>, Option<Vec<f32>>);

impl Operation {
    fn of_image(&self, image: &[f32], grad: &[f32]) -> Result<OfImage> {
        let Self { patches, matrix, .. } = self;
        let shape = (patches.depth(), patches.count());
        let grad = tensor(grad.to_vec(), (matrix.dim(0)?, patches.count()))?;
        let of_kernels = product(&grad, &tensor(patches.take(image), shape)?.t()?)?;
        if !self.wants_input {
            return Ok((of_kernels, None));
        }
        let of_patches = product(&matrix.t()?, &grad)?;
        let mut of_image = vec![0f32; patches.numbers()];
        patches.add(&of_patches, &mut of_image);
        Ok((of_kernels, Some(of_image)))
    }

    /// The gradients of the input and of the weights' argument.
    fn backward(&self, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let per_image = self.matrix.dim(0)? * self.patches.count();
        let all: Vec<OfImage> = read::<f32, _>(&self.input, |input| {
            read::<f32, _>(grad, |grad| {
                let images = input.par_chunks(self.patches.numbers()).zip(grad.par_chunks(per_image));
                images.map(|(image, grad)| self.of_image(image, grad)).collect::<Result<_>>()
            })
        })???;
        let mut of_kernels = vec![0f32; self.matrix.elem_count()];
        let mut of_input = Vec::with_capacity(if self.wants_input { self.input.elem_count() } else { 0 });
        for (kernels, image) in all {
            of_kernels.iter_mut().zip(kernels).for_each(|(sum, g)| *sum += g);
            of_input.extend(image.into_iter().flatten());
        }
        let of_weight = self.weight.give(tensor(of_kernels, self.weight.tensor.shape())?)?;
        let of_input = self.wants_input.then(|| tensor(of_input, self.input.shape())).transpose()?;
        Ok((of_input, Some(of_weight)))
    }
}

impl CustomOp2 for Operation {
    fn name(&self) -> &'static str {
        "phalanx-conv2d"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.outcome.take()
    }

    fn bwd(
        &self,
        _x: &Tensor,
        _weight: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.backward(grad)
    }
}

impl CustomOp3 for Operation {
    fn name(&self) -> &'static str {
        "phalanx-conv2d"
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
        _x: &Tensor,
        _weight: &Tensor,
        bias: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut sums = vec![0f32; bias.elem_count()];
        let per_channel = self.patches.count().max(1);
        read::<f32, _>(grad, |grad| {
            for (at, channel) in grad.chunks_exact(per_channel).enumerate() {
                let all = sums.len();
                sums[at % all] += Arch::new().dispatch(|| fold(channel, 0.0, |a, b| a + b));
            }
        })?;
        let (of_input, of_weight) = self.backward(grad)?;
        Ok((of_input, of_weight, Some(tensor(sums, bias.shape())?)))
    }
}
