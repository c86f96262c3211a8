//! The network: two convolutions and a linear layer, 6,090 weights.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Linear, Module, VarBuilder, VarMap};
use examples_common::digits::start::{self, Weight};
use std::sync::PoisonError;

/// The type of weights and images.
///
/// In f32 the order in which gradients are added up shows: a rounding difference makes a max-pool choose another pixel, and
/// the final losses of one and of four ranks are apart by up to 2e-3 of their value. In f64 they agree in all nine digits printed,
/// and a step takes 1.4 times as long.
pub const DTYPE: DType = DType::F64;

/// A small convolutional network for 8 × 8 images of ten kinds.
#[derive(Debug)]
pub struct Cnn {
    near: Conv2d,
    far: Conv2d,
    classes: Linear,
}

impl Cnn {
    /// Builds the network in `varmap`, with initial weights that depend on `seed` alone.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(varmap: &VarMap, seed: u64) -> Result<Self> {
        Self::of(varmap, DTYPE, seed)
    }

    /// The same on another device.
    ///
    /// # Errors
    /// Those of candle.
    pub fn on(device: &Device, varmap: &VarMap, seed: u64) -> Result<Self> {
        Self::with(varmap, DTYPE, device, seed)
    }

    /// The same with weights of another type, in which it computes.
    ///
    /// # Errors
    /// Those of candle.
    pub fn of(varmap: &VarMap, dtype: DType, seed: u64) -> Result<Self> {
        Self::with(varmap, dtype, &Device::Cpu, seed)
    }

    fn with(varmap: &VarMap, dtype: DType, device: &Device, seed: u64) -> Result<Self> {
        let vb = VarBuilder::from_varmap(varmap, dtype, device);
        let same_size = Conv2dConfig { padding: 1, ..Default::default() };
        let model = Self {
            near: candle_nn::conv2d(1, 16, 3, same_size, vb.pp("near"))?,
            far: candle_nn::conv2d(16, 32, 3, same_size, vb.pp("far"))?,
            classes: candle_nn::linear(2 * 2 * 32, 10, vb.pp("classes"))?,
        };
        initialise(varmap, seed)?;
        Ok(model)
    }

    /// Mean cross entropy over a batch, which is brought to where the weights are, and how many of its images are recognised.
    ///
    /// # Errors
    /// Those of candle.
    pub fn evaluate(&self, images: &Tensor, labels: &Tensor) -> Result<(Tensor, usize)> {
        let device = self.classes.weight().device();
        let (images, labels) = (&images.to_device(device)?, &labels.to_device(device)?);
        let logits = self.forward(images)?;
        let right = logits.argmax(D::Minus1)?.eq(labels)?.to_dtype(DType::U32)?.sum_all()?;
        Ok((candle_nn::loss::cross_entropy(&logits, labels)?, right.to_scalar::<u32>()? as usize))
    }
}

impl Module for Cnn {
    /// `[n, 1, 8, 8]` to `[n, 10]`.
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let images = images.to_dtype(self.classes.weight().dtype())?;
        let near = max_pool(&self.near.forward(&images)?.relu()?)?;
        let far = max_pool(&self.far.forward(&near)?.relu()?)?;
        self.classes.forward(&far.flatten_from(1)?)
    }
}

/// The largest of every 2 × 2 pixels. candle 0.11's own `max_pool2d` passes back a quarter of the gradient.
fn max_pool(images: &Tensor) -> Result<Tensor> {
    let (n, channels, height, width) = images.dims4()?;
    let rows = images.reshape((n, channels, height / 2, 2, width))?;
    let larger = rows.get_on_dim(3, 0)?.maximum(&rows.get_on_dim(3, 1)?)?;
    let columns = larger.reshape((n, channels, height / 2, width / 2, 2))?;
    columns.get_on_dim(4, 0)?.maximum(&columns.get_on_dim(4, 1)?)
}

/// Sets the weights with which all programs of the digits begin.
fn initialise(varmap: &VarMap, seed: u64) -> Result<()> {
    let variables = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    for Weight { name, dims, values } in start::weights(seed) {
        let var = variables.get(name).ok_or_else(|| candle_core::Error::msg(format!("no {name}")))?;
        let values = Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(var.dtype())?;
        var.set(&values.to_device(var.device())?)?;
    }
    Ok(())
}
