//! Stochastic gradient descent with momentum, which candle does not have.
//!
//! Its step is linear in the gradient. Adam would divide small gradients by their size, and so enlarge
//! the rounding differences between numbers of ranks that this example is about to compare.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};
use candle_nn::VarMap;

/// How much of the last step is carried into the next.
const MOMENTUM: f64 = 0.9;

/// Moves variables against their gradients.
#[derive(Debug)]
pub struct Sgd {
    /// Variables with their velocities.
    state: Vec<(Var, Tensor)>,
    learning_rate: f64,
}

impl Sgd {
    /// Optimises all variables of `varmap`.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(varmap: &VarMap, learning_rate: f64) -> Result<Self> {
        let state = varmap.all_vars().into_iter().map(|var| Ok((var.clone(), var.zeros_like()?)));
        Ok(Self { state: state.collect::<Result<_>>()?, learning_rate })
    }

    /// One step; variables without a gradient stay as they are.
    ///
    /// # Errors
    /// Those of candle.
    pub fn step(&mut self, grads: &GradStore) -> Result<()> {
        for (var, velocity) in &mut self.state {
            let Some(grad) = grads.get(var) else { continue };
            // Detached: otherwise each step would keep the graphs of all steps before it.
            *velocity = ((&*velocity * MOMENTUM)? + grad)?.detach();
            var.set(&var.as_detached_tensor().sub(&(&*velocity * self.learning_rate)?)?)?;
        }
        Ok(())
    }
}
