//! Gradients between burn's order, that of the module, and the reducer's, that of names.

use crate::arrays::{array, tensor};
use crate::names::{Named, Role};
use crate::{Error, Result};
use burn_core::module::{Module, ModuleVisitor, Param};
use burn_core::tensor::Tensor;
use burn_optim::GradientsParams;
use phalanx::error::OpKind;
use phalanx_train::{Array, Gradients, Parameter};

/// The float parameters of a module in the order of their names.
#[derive(Debug)]
pub(crate) struct NameOrder {
    /// Of each float parameter, in the module's order, its place among the names.
    places: Vec<usize>,
}

impl NameOrder {
    /// The parameters of a reducer, and where the module has them.
    pub(crate) fn of(parameters: &[Named]) -> (Vec<Parameter<()>>, Self) {
        let floats: Vec<&Named> = parameters.iter().filter(|found| found.role != Role::Whole).collect();
        let mut by_name: Vec<usize> = (0..floats.len()).collect();
        by_name.sort_by(|&a, &b| floats[a].name.cmp(&floats[b].name));
        let mut places = vec![0; floats.len()];
        for (place, &index) in by_name.iter().enumerate() {
            places[index] = place;
        }
        let parameter = |&index: &usize| {
            let Named { name, values, role, .. } = floats[index];
            let parameter = Parameter::of(name.as_str(), values);
            // What is frozen now may be trained later: it has its place.
            if *role == Role::Still { parameter.optional() } else { parameter }
        };
        (by_name.iter().map(parameter).collect(), Self { places })
    }

    /// Takes the gradients of `module`'s parameters out of `grads`.
    pub(crate) fn take(&self, module: &impl Module, grads: &mut GradientsParams) -> Result<Gradients<Array>> {
        let out = self.places.iter().map(|_| None).collect();
        let mut take = Take { places: Places::of(self), grads, out };
        module.visit(&mut take);
        take.places.end()?;
        Ok(take.out)
    }

    /// Lays gradients into `grads`, on the devices of their parameters.
    pub(crate) fn put(
        &self,
        module: &impl Module,
        from: Gradients<Array>,
        grads: &mut GradientsParams,
    ) -> Result<()> {
        let mut put = Put { places: Places::of(self), from, grads };
        module.visit(&mut put);
        put.places.end()
    }
}

/// The places that a walk over a module comes to.
struct Places<'a> {
    left: std::slice::Iter<'a, usize>,
    failure: Option<Error>,
}

impl<'a> Places<'a> {
    fn of(order: &'a NameOrder) -> Self {
        Self { left: order.places.iter(), failure: None }
    }

    /// Does something at the next one. After a failure nothing is done any more.
    fn next(&mut self, work: impl FnOnce(usize) -> Result<()>) {
        let outcome = match (&self.failure, self.left.next()) {
            (Some(_), _) => Ok(()),
            (None, Some(&place)) => work(place),
            (None, None) => Err(other_model("more")),
        };
        self.failure = self.failure.take().or(outcome.err());
    }

    fn end(mut self) -> Result<()> {
        match (self.failure, self.left.next()) {
            (Some(failure), _) => Err(failure),
            (None, Some(_)) => Err(other_model("fewer")),
            (None, None) => Ok(()),
        }
    }
}

fn other_model(how: &str) -> Error {
    let what = format!("the model has {how} parameters than the one that was wrapped; wrap this one");
    phalanx::Error::misuse(OpKind::AllReduce, what).into()
}

struct Take<'a> {
    places: Places<'a>,
    grads: &'a mut GradientsParams,
    out: Gradients<Array>,
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.places.next(|place| {
            if let Some(grad) = self.grads.remove::<D>(param.id) {
                self.out[place] = Some(array(OpKind::AllReduce, grad)?);
            }
            Ok(())
        });
    }
}

struct Put<'a> {
    places: Places<'a>,
    from: Gradients<Array>,
    grads: &'a mut GradientsParams,
}

impl ModuleVisitor for Put<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.places.next(|place| {
            if let Some(grad) = self.from[place].take() {
                let device = param.lazy_device().inner(); // gradients have no gradients
                self.grads.register::<D>(param.id, tensor(grad, &device)?);
            }
            Ok(())
        });
    }
}
