//! The parameters of a module by their paths, as `layers.0.weight`.

use crate::arrays::{array, tensor};
use crate::{Error, Result};
use burn_core::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParameterValue};
use burn_core::tensor::{Int, Tensor};
use phalanx::error::OpKind;
use phalanx_train::Array;
use std::collections::HashSet;

/// Where a walk over a module is.
#[derive(Debug, Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn name(&self) -> String {
        self.0.join(".")
    }
}

/// A parameter of a module.
pub(crate) struct Named {
    pub(crate) name: String,
    /// Burn's number for it, by which optimizers know it: drawn at random by each rank.
    pub(crate) id: u64,
    pub(crate) values: Array,
    pub(crate) role: Role,
}

/// What a parameter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It has gradients.
    Weight,
    /// It has none: it is frozen, or the forward pass itself changes it, or it is another place of a weight that has come before.
    Still,
    /// It is of integers, and can have none.
    Whole,
}

/// The parameters of `module` in its own order, with their values: floats and integers.
pub(crate) fn parameters(module: &impl Module, op: OpKind) -> Result<Vec<Named>> {
    let mut list = List { op, path: Path::default(), seen: HashSet::new(), found: Vec::new(), failure: None };
    module.visit(&mut list);
    list.failure.map_or(Ok(list.found), Err)
}

struct List {
    op: OpKind,
    path: Path,
    seen: HashSet<ParamId>,
    found: Vec<Named>,
    failure: Option<Error>,
}

impl List {
    fn add(&mut self, id: ParamId, values: Result<Array>, role: Role) {
        match values {
            Ok(values) => self.found.push(Named { name: self.path.name(), id: id.val(), values, role }),
            Err(error) => drop(self.failure.get_or_insert(error)),
        }
    }
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let is_first = self.seen.insert(param.id);
        let role = if is_first && value.is_require_grad() { Role::Weight } else { Role::Still };
        self.add(param.id, array(self.op, value), role);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, array(self.op, param.val()), Role::Whole);
    }
}

/// `module` with other values, as many as it has [`parameters`] and in that order. `None` leaves one as it is.
pub(crate) fn with_values<M: Module>(module: M, values: Vec<Option<Array>>) -> Result<M> {
    let mut set = Set { values: values.into_iter(), failure: None };
    let module = module.map(&mut set);
    set.failure.map_or(Ok(module), Err)
}

struct Set {
    values: std::vec::IntoIter<Option<Array>>,
    failure: Option<Error>,
}

impl Set {
    /// What comes next, as a tensor.
    fn next<T>(&mut self, convert: impl FnOnce(Array) -> Result<T>) -> Option<T> {
        match convert(self.values.next()??) {
            Ok(value) => Some(value),
            Err(error) => {
                self.failure.get_or_insert(error);
                None
            }
        }
    }
}

impl ModuleMapper for Set {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (device, has_gradients) = (param.val().device(), param.val().is_require_grad());
        match self.next(|values| tensor::<D, _>(values, &device)) {
            Some(value) => param.map(|_| value.set_require_grad(has_gradients)),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let device = param.val().device();
        match self.next(|values| tensor::<D, Int>(values, &device)) {
            Some(value) => param.map(|_| value),
            None => param,
        }
    }
}

/// `module` with other numbers for its parameters, as many as it has [`parameters`] and in that order.
pub(crate) fn with_ids<M: Module>(module: M, ids: Vec<u64>) -> M {
    module.map(&mut Renumber { ids: ids.into_iter() })
}

struct Renumber {
    ids: std::vec::IntoIter<u64>,
}

impl Renumber {
    fn next<T: ParameterValue>(&mut self, param: Param<T>) -> Param<T> {
        match self.ids.next() {
            Some(id) if id != param.id.val() => {
                let (_, value, mapper) = param.consume();
                Param::from_mapped_value(id.into(), value, mapper)
            }
            _ => param,
        }
    }
}

impl ModuleMapper for Renumber {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.next(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.next(param)
    }
}

/// Has running statistics take in what forward passes have found, which burn keeps for each thread until then.
pub(crate) fn settle(module: &impl Module) {
    drop(module.valid());
}
