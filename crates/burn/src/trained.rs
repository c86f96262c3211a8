//! The weights of a module that are trained, by their places in a list: those that need gradients, in the module's order.

use crate::arrays::array;
use crate::elements::shared;
use crate::names::{Named, Role, with_values};
use crate::{Error, Result};
use burn_core::module::{Module, ModuleVisitor, Param, ParamId};
use burn_core::tensor::{DType as Burns, Device, Int, Tensor};
use burn_optim::GradientsParams;
use phalanx::error::OpKind;
use phalanx::{DType, ProcessGroup};
use phalanx_train::model::{Entry, compare};
use phalanx_train::{Array, Gradients, Tensor as _, Weights};
use std::collections::HashSet;

/// The parameters of a module, as they were when it was wrapped, and which of them are weights that are trained.
#[derive(Debug)]
pub(crate) struct Trained {
    /// The operation in which weights travel, for errors.
    op: OpKind,
    all: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    name: String,
    dtype: DType,
    dims: Vec<usize>,
    is_trained: bool,
}

impl Trained {
    /// Those of a module's [`parameters`](crate::names::parameters). Collective: makes sure that all ranks train the same weights.
    #[track_caller]
    pub(crate) fn of(found: &[Named], op: OpKind, group: &ProcessGroup) -> Result<Self> {
        let known = |Named { name, values, role, .. }: &Named| Known {
            name: name.clone(),
            dtype: values.dtype(),
            dims: values.dims().to_vec(),
            is_trained: *role == Role::Weight,
        };
        let all: Vec<Known> = found.iter().map(known).collect();
        let trained = all.iter().filter(|known| known.is_trained);
        let entries: Vec<_> =
            trained.map(|known| Entry::new(known.name.as_str(), known.dtype, &known.dims)).collect();
        let is_empty = entries.is_empty();
        compare(entries, group, 0)?;
        if is_empty {
            let what = "the model has no weights that need gradients; make it on a device with `autodiff()`, and do not freeze all of it";
            return Err(phalanx::Error::misuse(op, what).into());
        }
        Ok(Self { op, all })
    }

    /// The weights of `module`, which are copied to the host when somebody asks for them.
    pub(crate) fn lent(&self, module: &impl Module) -> Result<Lent> {
        let mut walk = Walk { known: self, at: 0, seen: HashSet::new(), weights: Vec::new(), failure: None };
        module.visit(&mut walk);
        if walk.at < self.all.len() {
            walk.fail(format!("the model has {} parameters, and the one that was wrapped has more", walk.at));
        }
        match walk.failure {
            Some(failure) => Err(failure),
            None => Ok(Lent {
                op: self.op,
                trained: self.all.iter().map(|known| known.is_trained).collect(),
                values: walk.weights.iter().map(|_| None).collect(),
                weights: walk.weights,
            }),
        }
    }
}

/// The weights of a module, of which some are on the host.
pub(crate) struct Lent {
    op: OpKind,
    /// Of each parameter, in the module's order, whether it is one of the weights.
    trained: Vec<bool>,
    weights: Vec<Box<dyn Weight>>,
    values: Vec<Option<Array>>,
}

impl Lent {
    /// The device of the first weight.
    pub(crate) fn device(&self) -> Option<Device> {
        self.weights.first().map(|weight| weight.device())
    }

    /// Whether there is a gradient for a weight.
    pub(crate) fn has_gradient(&self, index: usize, grads: &GradientsParams) -> bool {
        self.weights[index].has_gradient(grads)
    }

    /// Takes the gradients of all weights.
    pub(crate) fn take_gradients(&self, mut grads: GradientsParams) -> Result<Gradients<Array>> {
        self.weights.iter().map(|weight| weight.take_gradient(self.op, &mut grads)).collect()
    }

    /// `module`, whose weights these are, with what was made of them.
    pub(crate) fn returned<M: Module>(self, module: M) -> Result<M> {
        if self.values.iter().all(Option::is_none) {
            return Ok(module);
        }
        let mut values = self.values.into_iter();
        let of_all =
            self.trained.into_iter().map(|is_trained| if is_trained { values.next()? } else { None });
        with_values(module, of_all.collect())
    }
}

/// A weight that nobody needs is not copied.
impl Weights<Array> for Lent {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
        let values = match &mut self.values[index] {
            Some(values) => values,
            none => none.insert(self.weights[index].values(self.op)?),
        };
        work(values)
    }
}

/// A parameter of floats, of whatever number of dimensions.
trait Weight {
    fn device(&self) -> Device;
    fn values(&self, op: OpKind) -> Result<Array>;
    fn has_gradient(&self, grads: &GradientsParams) -> bool;
    fn take_gradient(&self, op: OpKind, grads: &mut GradientsParams) -> Result<Option<Array>>;
}

impl<const D: usize> Weight for Param<Tensor<D>> {
    fn device(&self) -> Device {
        self.val().device()
    }

    fn values(&self, op: OpKind) -> Result<Array> {
        array(op, self.val())
    }

    fn has_gradient(&self, grads: &GradientsParams) -> bool {
        grads.get::<D>(self.id).is_some()
    }

    fn take_gradient(&self, op: OpKind, grads: &mut GradientsParams) -> Result<Option<Array>> {
        grads.remove::<D>(self.id).map(|grad| array(op, grad)).transpose()
    }
}

/// Finds the weights of a module, and makes sure that it is like the one that was wrapped.
struct Walk<'a> {
    known: &'a Trained,
    at: usize,
    seen: HashSet<ParamId>,
    weights: Vec<Box<dyn Weight>>,
    failure: Option<Error>,
}

impl Walk<'_> {
    fn fail(&mut self, what: String) {
        let op = self.known.op;
        self.failure.get_or_insert_with(|| {
            phalanx::Error::misuse(op, format!("{what}; wrap the model that is trained")).into()
        });
    }

    /// Whether the next parameter, which is this, is a weight. A parameter that is trained now and was not before is refused.
    fn next(&mut self, dtype: Burns, dims: &[usize], is_trained: bool) -> bool {
        let Some(known) = self.known.all.get(self.at) else {
            self.fail("the model has more parameters than the one that was wrapped".to_owned());
            return false;
        };
        self.at += 1;
        if (shared(dtype), dims) != (Some(known.dtype), &known.dims[..]) {
            let found = shared(dtype).map_or_else(|| format!("{dtype:?}"), |dtype| dtype.to_string());
            let Known { name, dtype, dims: before, .. } = known;
            self.fail(format!(
                "`{name}` is {found} {dims:?}, and was {dtype} {before:?} when it was wrapped"
            ));
            return false;
        }
        if is_trained && !known.is_trained {
            self.fail(format!("`{}` needs gradients, and did not when it was wrapped", known.name));
        }
        known.is_trained
    }
}

impl ModuleVisitor for Walk<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let is_first = self.seen.insert(param.id);
        if self.next(value.dtype(), &value.dims(), is_first && value.is_require_grad()) {
            self.weights.push(Box::new(param.clone()));
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let value = param.val();
        self.next(value.dtype(), &value.dims(), false);
    }
}
