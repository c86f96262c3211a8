//! Losses that are large enough for gradients of 16 bits.

use crate::Result;
use crate::clip::{vars, with_gradients};
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use serde::{Deserialize, Serialize};

/// Scales losses, so that small gradients are not lost in 16 bits, and skips the steps for which that was too much.
///
/// An overflow on one rank is one in the reduced gradients of all: so all ranks skip the same steps, and have the same
/// scale, without asking each other. A checkpoint keeps it as a value: `state.value("scaler", &scaler)`.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, Optimizer, SGD, VarMap};
/// use phalanx::ProcessGroup;
/// use phalanx_candle::{DistributedDataParallel, LossScaler};
///
/// fn train(group: &ProcessGroup) -> phalanx_candle::Result<()> {
///     let varmap = VarMap::new();
///     let ddp = DistributedDataParallel::build(&varmap, DType::F16, group, Default::default(), |vb| {
///         candle_nn::linear(2, 1, vb)
///     })?;
///     let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?; // of f32
///     let mut scaler = LossScaler::new(65536.0)?;
///     let x = Tensor::ones((4, 2), DType::F16, &Device::Cpu)?;
///     for _ in 0..5 {
///         let loss = ddp.forward(|model| model.forward(&x)?.to_dtype(DType::F32)?.sqr()?.mean_all())?;
///         let mut grads = ddp.backward(&scaler.scale(&loss)?)?;
///         if scaler.unscale(&varmap, &mut grads)? {
///             optimizer.step(&grads)?;
///         }
///     }
///     ddp.verify_parameters()
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || train(&group).unwrap()); });
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossScaler(phalanx_train::LossScaler);

impl LossScaler {
    /// Begins with this scale: 65536 is usual, and 1 for bf16, whose range is that of f32.
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for a scale below 2⁻¹⁴ or above 2¹²⁶, and for what is not a number.
    ///
    /// # Examples
    /// ```
    /// use phalanx_candle::LossScaler;
    ///
    /// assert_eq!(LossScaler::new(65536.0)?.factor(), 65536.0);
    /// assert!(LossScaler::new(0.0).is_err());
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn new(scale: f64) -> Result<Self> {
        Ok(Self(phalanx_train::LossScaler::new(scale)?))
    }

    /// The factor by which losses are multiplied now.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_candle::LossScaler::new(1024.0)?.factor(), 1024.0);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn factor(&self) -> f64 {
        self.0.factor()
    }

    /// The loss to call [`backward`](crate::DistributedDataParallel::backward) with: in f32, or the scaled loss overflows itself.
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// # Examples
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use phalanx_candle::LossScaler;
    ///
    /// let loss = Tensor::new(0.5f32, &Device::Cpu)?;
    /// assert_eq!(LossScaler::new(1024.0)?.scale(&loss)?.to_scalar::<f32>()?, 512.0);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        Ok((loss * self.factor())?)
    }

    /// Makes reduced gradients those of the loss that was scaled. False if one of them is infinite or not a number: skip the step; the next
    /// loss is scaled by half as much. After 2000 steps without that, by twice as much.
    ///
    /// The scale stays between 2⁻¹⁴ and 2¹²⁶. Overflows at the least are not for the scale to mend: each is a warning of `tracing`.
    ///
    /// Not collective; the same on all ranks if the gradients are.
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::LossScaler;
    ///
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// let mut grads = scaler.scale(&(&x * 3.0)?.sum_all()?)?.backward()?;
    /// assert!(scaler.unscale(&varmap, &mut grads)?);
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [3.0]);
    ///
    /// let mut grads = (&x * f64::INFINITY)?.sum_all()?.backward()?;
    /// assert!(!scaler.unscale(&varmap, &mut grads)?); // skip the step
    /// assert_eq!(scaler.factor(), 512.0);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn unscale(&mut self, varmap: &VarMap, grads: &mut GradStore) -> Result<bool> {
        with_gradients(&vars(varmap), grads, |grads| self.0.unscale(grads))
    }

    /// Unscales this rank's part of all gradients, and says whether they are finite.
    pub(crate) fn divide(&self, vars: &[Var], grads: &mut GradStore) -> Result<bool> {
        with_gradients(vars, grads, |grads| self.0.divide(grads))
    }

    /// Takes note of whether the gradients of a step were finite, as all ranks do, and returns that: for a program that unscales them
    /// [in the optimizer's pass](crate::grad_norm) in place of [`unscale`](Self::unscale). The scale is halved if they were not, and doubled after 2000 steps in which
    /// they were.
    ///
    /// # Examples
    /// ```
    /// use phalanx_candle::LossScaler;
    ///
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// assert!(!scaler.settle(f64::NAN.is_finite())); // skip the step
    /// assert_eq!(scaler.factor(), 512.0);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn settle(&mut self, finite: bool) -> bool {
        self.0.settle(finite)
    }
}
