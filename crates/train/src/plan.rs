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
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Parameter};
    ///
    /// let frozen = Parameter::of("embedding", &Array::from(vec![0f32; 6])).optional();
    /// assert!(frozen.optional);
    /// ```
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Sends its gradients as `dtype`.
    ///
    /// # Examples
    /// ```
    /// use phalanx::DType;
    /// use phalanx_train::{Array, Parameter};
    ///
    /// let weight = Parameter::of("weight", &Array::from(vec![0f32; 6])).wire(DType::BF16);
    /// assert_eq!((weight.dtype, weight.wire), (DType::F32, DType::BF16));
    /// ```
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
    /// The plan of gradients that are ready in `order`, in buckets of one element type and of at most `cap_bytes`. A [`Reducer`](crate::Reducer) makes its
    /// own; this is for tests of a [`Memory`](crate::memory::Memory). Parameters that `order` does not name have buckets of their own at the end.
    ///
    /// # Panics
    /// If `order` names a parameter that there is not.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Parameter, Plan};
    ///
    /// let of = |name| Parameter::of(name, &Array::from(vec![0f32; 100]));
    /// let parameters = ["1", "2", "3"].map(of);
    /// let plan = Plan::new(&parameters.into(), &[2, 1, 0], 800);
    /// let members: Vec<_> = plan.buckets().iter().map(|bucket| &bucket.members[..]).collect();
    /// assert_eq!(members, [&[2, 1][..], &[0]]); // two of 400 bytes fit into 800
    /// ```
    pub fn new(parameters: &Arc<[Parameter<D>]>, order: &[usize], cap_bytes: usize) -> Self {
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
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Plan};
    /// let parameters = ["1", "2"].map(|name| Parameter::of(name, &Array::from(vec![0f32; 100])));
    /// let plan = Plan::new(&parameters.into(), &[1, 0], 4 << 20);
    /// assert_eq!(plan.parameters()[1].name, "2");
    /// ```
    pub fn parameters(&self) -> &[Parameter<D>] {
        &self.parameters
    }

    /// The buckets, in the order in which they are sent.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Plan};
    /// let parameters = ["1", "2"].map(|name| Parameter::of(name, &Array::from(vec![0f32; 100])));
    /// let plan = Plan::new(&parameters.into(), &[1, 0], 4 << 20);
    /// assert_eq!(plan.buckets()[0].members, [1, 0]);
    /// ```
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The bucket of a parameter's gradients, and their bytes in there.
    ///
    /// # Panics
    /// If there is no such parameter.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, Parameter, Plan};
    /// let parameters = ["1", "2"].map(|name| Parameter::of(name, &Array::from(vec![0f32; 100])));
    /// let plan = Plan::new(&parameters.into(), &[1, 0], 4 << 20);
    /// assert_eq!(plan.home(1), (0, 0..400)); // it is ready first
    /// assert_eq!(plan.home(0), (0, 400..800));
    /// ```
    pub fn home(&self, parameter: usize) -> (usize, Range<usize>) {
        self.homes[parameter].clone()
    }
}
