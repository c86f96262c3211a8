//! A module's parameters, in the order of their names, in which reducers have them.

use crate::error::{of_tensors, refused};
use crate::values::Values;
use ferrotorch_core::{FerrotorchResult, Float, Tensor};
use ferrotorch_nn::{Module, Parameter};
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

/// Gives the parameters of `module` new values, as many as [`by_name`] finds. Each is another tensor afterwards, which an optimizer does not know.
pub(crate) fn set_values<T: Float>(
    module: &mut impl Module<T>,
    named: &[Named<T>],
    values: Vec<Array>,
) -> phalanx_train::Result<()> {
    let tensors: FerrotorchResult<Vec<Tensor<T>>> = values.into_iter().map(of_array).collect();
    let new: Vec<(_, Parameter<T>)> = named
        .iter()
        .zip(tensors.map_err(of_tensors)?)
        .map(|(Named { tensor, .. }, values)| {
            let mut parameter = Parameter::new(values);
            parameter.set_requires_grad(tensor.requires_grad());
            (tensor.id(), parameter)
        })
        .collect();
    for parameter in module.parameters_mut() {
        let id = parameter.tensor().id();
        if let Some((_, value)) = new.iter().find(|(known, _)| *known == id) {
            *parameter = value.clone();
        }
    }
    Ok(())
}
