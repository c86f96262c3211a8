//! Checkpoints of modules, saved by all ranks together and loaded by any number of them: see [`phalanx_train::checkpoint`].

use crate::error::told;
use crate::parameters::{Named, array, by_name, lent, set_values};
use ferrotorch_core::{FerrotorchResult, Float};
use ferrotorch_nn::Module;
use phalanx_train::Array;
use phalanx_train::checkpoint::{copied, info, load_tensors};

pub use phalanx_train::checkpoint::{Checkpoint, Checkpoints, Error, State, Stateful};

/// Adds a module's parameters to `state`, each as `prefix.name`.
///
/// # Errors
/// A parameter that can't be read.
pub fn save_module<T: Float>(
    module: &impl Module<T>,
    prefix: &str,
    state: &mut State<'_>,
) -> FerrotorchResult<()> {
    for Named { name, tensor } in by_name(module) {
        let values = array(&tensor)?;
        state.tensor(format!("{prefix}.{name}"), info(&values), copied::<Array, _>(values));
    }
    Ok(())
}

/// Gives a module's parameters the values that [`save_module`] has saved under `prefix`, in place: an optimizer that was made of them has them too.
///
/// # Errors
/// The checkpoint is of another model, or can't be read. Nothing was changed then.
pub fn load_module<T: Float>(
    module: &mut impl Module<T>,
    prefix: &str,
    from: &Checkpoint,
) -> FerrotorchResult<()> {
    let named = by_name(module);
    let mut values = lent(&named)?;
    let all = named.iter().map(|one| one.name.as_str()).zip(&mut values);
    load_tensors(all, prefix, from).map_err(told)?;
    set_values(&named, values)
}
