//! A module's parameters, in the order of their names, in which reducers have them.

use crate::error::{refused, told};
use crate::values::Values;
use ferrotorch_core::{FerrotorchResult, Float, Tensor};
use ferrotorch_nn::Module;
use phalanx::ProcessGroup;
use phalanx_train::{Array, Gradients};
use std::collections::HashSet;

/// A parameter with the first of its names. Clones of a tensor are the same tensor, with the same gradient.
pub(crate) struct Named<T: Float> {
    pub(crate) name: String,
    pub(crate) tensor: Tensor<T>,
}

/// The parameters of a module by their names. One that stands at several places, as a tied weight does, is there once.
pub(crate) fn by_name<T: Float>(module: &impl Module<T>) -> Vec<Named<T>> {
    let named = module.named_parameters().into_iter();
    let mut named: Vec<_> =
        named.map(|(name, parameter)| Named { name, tensor: parameter.tensor().clone() }).collect();
    named.sort_by(|a, b| a.name.cmp(&b.name));
    let mut seen = HashSet::new();
    named.retain(|named| seen.insert(named.tensor.id()));
    named
}

impl<T: Float> Named<T> {
    /// The same for a reducer. One that is frozen now may be trained later: it has its place, and is not missed.
    pub(crate) fn parameter(&self) -> FerrotorchResult<phalanx_train::Parameter<()>> {
        let parameter = phalanx_train::Parameter::of(self.name.as_str(), &array(&self.tensor)?);
        Ok(if self.tensor.requires_grad() { parameter } else { parameter.optional() })
    }

    /// A copy of its gradient, if it has one.
    pub(crate) fn gradient(&self) -> FerrotorchResult<Option<Array>> {
        self.tensor.grad()?.map(|grad| array(&grad)).transpose()
    }
}

/// Copies of all gradients.
pub(crate) fn gradients<T: Float>(named: &[Named<T>]) -> FerrotorchResult<Gradients<Array>> {
    named.iter().map(Named::gradient).collect()
}

/// Makes these the gradients. Those of which no rank has one have none.
pub(crate) fn set_gradients<T: Float>(named: &[Named<T>], grads: Gradients<Array>) -> FerrotorchResult<()> {
    for (Named { tensor, .. }, grad) in named.iter().zip(grads) {
        tensor.set_grad(grad.map(|grad| of_array(grad)).transpose()?)?;
    }
    Ok(())
}

/// A copy of a tensor's numbers, with its shape.
pub(crate) fn array<T: Float>(tensor: &Tensor<T>) -> FerrotorchResult<Array> {
    let shaped = Array::from(Values::of(tensor)?).shaped(tensor.shape());
    shaped.map_err(|error| refused(error.to_string()))
}

/// The tensor with these numbers, which needs no gradient.
pub(crate) fn of_array<T: Float>(array: Array) -> FerrotorchResult<Tensor<T>> {
    let shape = phalanx_train::Tensor::dims(&array).to_vec();
    Values::try_from(array).map_err(|error| refused(error.to_string()))?.into_tensor(shape)
}

/// Gives parameters new values, in place: their clones have them too, as an optimizer's.
pub(crate) fn set_values<T: Float>(named: &[Named<T>], values: Vec<Array>) -> FerrotorchResult<()> {
    named.iter().zip(values).try_for_each(|(Named { tensor, .. }, values)| set(tensor, values))
}

fn set<T: Float>(tensor: &Tensor<T>, values: Array) -> FerrotorchResult<()> {
    if !tensor.is_contiguous() {
        return Err(refused(
            "a parameter whose elements lie apart cannot be changed in place; make it of a contiguous tensor",
        ));
    }
    // ferrotorch lets nobody change a leaf that needs gradients, but a detached tensor of the same memory.
    let detached = tensor.detach();
    // What is added to minus zero stays what it is, to the last bit.
    detached.fill_(T::neg_zero())?.add_(&of_array(values)?)?;
    Ok(())
}

/// Parameters as arrays: the weights as they are lent to what changes them.
pub(crate) fn lent<T: Float>(named: &[Named<T>]) -> FerrotorchResult<Vec<Array>> {
    named.iter().map(|one| array(&one.tensor)).collect()
}

/// Gives all ranks the parameters of rank `root`.
#[track_caller]
pub(crate) fn sync_model<T: Float>(
    named: &[Named<T>],
    group: &ProcessGroup,
    root: usize,
) -> FerrotorchResult<()> {
    let mut values = lent(named)?;
    let all = named.iter().map(|one| one.name.as_str()).zip(&mut values);
    phalanx_train::sync_model(all, group, root).map_err(told)?;
    set_values(named, values)
}
