//! Stochastic gradient descent with momentum, which candle does not have.
//!
//! Its step is linear in the gradient. Adam would divide small gradients by their size, and so enlarge
//! the rounding differences between numbers of ranks that this example is about to compare.

use candle_core::backprop::GradStore;
use candle_core::{Result, Var};
use candle_nn::VarMap;
use phalanx_candle::checkpoint::{self, Checkpoint, State, Stateful, load_vars, save_vars};
use std::sync::PoisonError;

/// How much of the last step is carried into the next.
const MOMENTUM: f64 = 0.9;

/// Moves variables against their gradients.
#[derive(Debug)]
pub struct Sgd {
    /// Variables with their names and velocities.
    state: Vec<(String, Var, Var)>,
    learning_rate: f64,
}

impl Sgd {
    /// Optimises all variables of `varmap`.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(varmap: &VarMap, learning_rate: f64) -> Result<Self> {
        let variables = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
        let state = variables
            .iter()
            .map(|(name, var)| Ok((name.clone(), var.clone(), Var::from_tensor(&var.zeros_like()?)?)));
        Ok(Self { state: state.collect::<Result<_>>()?, learning_rate })
    }

    /// The velocities that go from step to step, under the names of the variables: a rank that goes on from another's weights
    /// needs this too.
    pub fn velocities(&self) -> VarMap {
        let velocities = VarMap::new();
        let named = self.state.iter().map(|(name, _, velocity)| (name.clone(), velocity.clone()));
        velocities.data().lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        velocities
    }

    /// One step; variables without a gradient stay as they are.
    ///
    /// # Errors
    /// Those of candle.
    pub fn step(&mut self, grads: &GradStore) -> Result<()> {
        for (_, var, velocity) in &self.state {
            let Some(grad) = grads.get(var) else { continue };
            velocity.set(&((velocity.as_detached_tensor() * MOMENTUM)? + grad)?)?;
            let change = (velocity.as_detached_tensor() * self.learning_rate)?;
            var.set(&var.as_detached_tensor().sub(&change)?)?;
        }
        Ok(())
    }
}

impl Stateful for Sgd {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> checkpoint::Result<()> {
        save_vars(&self.velocities(), prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> checkpoint::Result<()> {
        load_vars(&self.velocities(), prefix, from)
    }
}
