//! The variables of a `VarStore`, in the order of their names, in which reducers have them.

use crate::Result;
use crate::error::told;
use crate::memory::dtype;
use crate::torch::Torch;
use phalanx::error::OpKind;
use std::collections::HashSet;
use tch::Tensor;
use tch::nn::VarStore;

/// A variable, which is its store's: a change in place is seen there.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
    /// One of those that optimizers change, though it may be frozen. Others are buffers: running statistics.
    pub(crate) is_trainable: bool,
}

/// All of a store's.
pub(crate) fn variables(store: &VarStore) -> Vec<Variable> {
    // The store has names for all variables, and a list, without names, of those that are trained. One of both has one address.
    let trainable: HashSet<usize> =
        store.trainable_variables().iter().map(|tensor| tensor.data_ptr().addr()).collect();
    let of_name = |(name, tensor): (String, Tensor)| Variable {
        is_trainable: tensor.requires_grad() || trainable.contains(&tensor.data_ptr().addr()),
        name,
        tensor,
    };
    let mut all: Vec<_> = store.variables().into_iter().map(of_name).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Variables as tensors that can be sent, with their names.
pub(crate) fn named<'v>(
    variables: impl IntoIterator<Item = &'v Variable>,
    op: OpKind,
) -> Result<Vec<(&'v str, Torch)>> {
    let one = |variable: &'v Variable| {
        Ok((variable.name.as_str(), Torch::of(op, variable.tensor.shallow_clone())?))
    };
    variables.into_iter().map(one).collect()
}

impl Variable {
    /// Its gradient where it lies, if it has one; a copy, if its elements lie in another order than that of its dimensions.
    pub(crate) fn gradient(&self, op: OpKind) -> Result<Option<Torch>> {
        let grad = self.tensor.f_grad().map_err(told)?;
        if !grad.defined() {
            return Ok(None);
        }
        dtype(op, &grad)?;
        let in_order = tch::no_grad(|| grad.f_contiguous()).map_err(told)?;
        Torch::of(op, in_order).map(Some)
    }

    /// Makes this the gradient: it is the one that lies there, or replaces its elements, or becomes it.
    pub(crate) fn set_gradient(&self, reduced: &Tensor) -> Result<()> {
        let mut own = self.tensor.f_grad().map_err(told)?;
        if !own.defined() {
            // tch has no way to set one. This adds ones times the elements to nothing: exactly these.
            let product = tch::with_grad(|| self.tensor.f_mul(reduced)?.f_sum(None::<tch::Kind>));
            return product.and_then(|product| product.f_backward()).map_err(told);
        }
        if own.data_ptr() != reduced.data_ptr() {
            tch::no_grad(|| own.f_copy_(reduced)).map_err(told)?;
        }
        Ok(())
    }
}
