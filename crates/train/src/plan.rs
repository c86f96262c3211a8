//! The parameters of a training, and the plan of the buckets in which their gradients travel.

use crate::Result;
use crate::bucket_plan::{Bucket, Item, plan};
use phalanx::error::OpKind;
use phalanx::{DType, Error};
use std::ops::Range;
use std::sync::Arc;

/// The gradients of all parameters, by their index; `None` where there is none.
pub type Gradients<T> = Vec<Option<T>>;

/// A weight of the model that has gradients: what is known of it, not its values. `D` is the [`Device`](crate::Tensor::Device) of the library.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter<D> {
    /// The name, for errors and for the order of a model.
    pub name: String,
    /// The element type of its gradients.
    pub dtype: DType,
    /// The dimensions.
    pub dims: Vec<usize>,
    /// The device that holds it.
    pub device: D,
    /// The element type of its gradients while they travel.
    pub wire: DType,
    /// Whether it is fine that no rank has a gradient for it.
    pub optional: bool,
}

impl<D> Parameter<D> {
    /// Expects no gradient: it is frozen, or the forward pass itself changes it, as the running statistics of batch normalisation. What
    /// [`MissingGradients`](crate::MissingGradients) says is not about it then. If a gradient comes nevertheless it is one as any other.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Sends its gradients as `dtype`.
    #[must_use]
    pub fn wire(self, dtype: DType) -> Self {
        Self { wire: dtype, ..self }
    }

    fn item(&self) -> Item {
        Item { dtype: self.wire, elements: self.dims.iter().product() }
    }
}

/// Refuses lists of parameters whose order may differ between ranks, and what can't be reduced.
pub(crate) fn check<D>(parameters: &[Parameter<D>]) -> Result<()> {
    let misuse = |what: String| Err(Error::misuse(OpKind::AllReduce, what).into());
    if let Some(pair) = parameters.windows(2).find(|pair| pair[0].name >= pair[1].name) {
        return misuse(format!(
            "`{}` comes before `{}`: pass parameters in the order of their names, which all ranks have alike, each once",
            pair[0].name, pair[1].name
        ));
    }
    match parameters.iter().find(|p| !p.dtype.is_float() || !p.wire.is_float()) {
        Some(p) => misuse(format!(
            "`{}` cannot have gradients: it is {}, and they would travel as {}; pass only parameters that are floats",
            p.name, p.dtype, p.wire
        )),
        None => Ok(()),
    }
}

/// Which gradients travel together, and where: the same on all ranks.
#[derive(Debug)]
pub struct Plan<D> {
    parameters: Arc<[Parameter<D>]>,
    buckets: Vec<Bucket>,
    homes: Vec<(usize, Range<usize>)>,
}

impl<D> Plan<D> {
    /// As [`plan`](crate::bucket_plan::plan) deals the gradients, which are ready in `order`.
    pub(crate) fn new(parameters: &Arc<[Parameter<D>]>, order: &[usize], cap_bytes: usize) -> Self {
        let items: Vec<_> = parameters.iter().map(Parameter::item).collect();
        let buckets = plan(&items, order, cap_bytes);
        let mut homes = vec![(0, 0..0); items.len()];
        for (at, bucket) in buckets.iter().enumerate() {
            let mut end = 0;
            for &member in &bucket.members {
                let start = end;
                end += items[member].bytes();
                homes[member] = (at, start..end);
            }
        }
        Self { parameters: parameters.clone(), buckets, homes }
    }

    /// The parameters, in name order.
    pub fn parameters(&self) -> &[Parameter<D>] {
        &self.parameters
    }

    /// The buckets, in the order in which they are sent.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The bucket of a parameter's gradients, and their bytes in there.
    pub fn home(&self, parameter: usize) -> (usize, Range<usize>) {
        self.homes[parameter].clone()
    }
}
