//! Ferrotorch's tensors pass the suite of adapters.

use ferrotorch_core::grad_fns::{arithmetic, linalg, reduction, shape};
use ferrotorch_core::{FerrotorchError, FerrotorchResult, Tensor, creation, tanh};
use ferrotorch_nn::{Module, Parameter};
use ferrotorch_optim::{Optimizer, Sgd, SgdConfig};
use phalanx::ProcessGroup;
use phalanx_ferrotorch::{DDP, DdpConfig, Group, MissingGradients, Overlap, Share};
use phalanx_testkit::conformance::train::{Batch, Library, Named, Toy};
use std::sync::Arc;

/// In another order than that of the names. A tied weight stands at two places, under two names.
struct Network {
    side: Parameter<f32>,
    second_weight: Option<Parameter<f32>>,
    second_bias: Parameter<f32>,
    first_weight: Parameter<f32>,
    first_bias: Parameter<f32>,
    tied: Option<Parameter<f32>>,
}

impl Module<f32> for Network {
    fn forward(&self, input: &Tensor<f32>) -> FerrotorchResult<Tensor<f32>> {
        let hidden = linalg::mm_differentiable(input, self.first_weight.tensor())?;
        let hidden = tanh(&arithmetic::add(&hidden, self.first_bias.tensor())?)?;
        let out = match &self.second_weight {
            Some(weight) => linalg::mm_differentiable(&hidden, weight.tensor())?,
            None => linalg::mm_differentiable(&hidden, &shape::transpose_2d(self.first_weight.tensor())?)?,
        };
        arithmetic::add(&out, self.second_bias.tensor())
    }

    fn parameters(&self) -> Vec<&Parameter<f32>> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter<f32>> {
        let Self { side, second_weight, second_bias, first_weight, first_bias, tied } = self;
        let all = [
            Some(side),
            second_weight.as_mut(),
            Some(second_bias),
            Some(first_weight),
            Some(first_bias),
            tied.as_mut(),
        ];
        all.into_iter().flatten().collect()
    }

    fn named_parameters(&self) -> Vec<(String, &Parameter<f32>)> {
        let all = [
            ("side", Some(&self.side)),
            ("second.weight", self.second_weight.as_ref()),
            ("second.bias", Some(&self.second_bias)),
            ("first.weight", Some(&self.first_weight)),
            ("first.bias", Some(&self.first_bias)),
            ("tied", self.tied.as_ref()),
        ];
        all.into_iter().filter_map(|(name, parameter)| Some((name.to_owned(), parameter?))).collect()
    }

    fn train(&mut self) {}

    fn eval(&mut self) {}

    fn is_training(&self) -> bool {
        true
    }
}

struct Ferrotorch<const OVERLAP: bool> {
    ddp: DDP<Network, f32>,
    toy: Toy,
    /// Gradients are those of a step that is over.
    is_over: bool,
}

type SentAfter = Ferrotorch<false>;
type SentDuring = Ferrotorch<true>;

fn told(error: FerrotorchError) -> String {
    error.to_string()
}

impl<const OVERLAP: bool> Ferrotorch<OVERLAP> {
    fn loss(&mut self, batch: &Batch) -> FerrotorchResult<Tensor<f32>> {
        if std::mem::take(&mut self.is_over) {
            self.ddp.zero_grad()?;
        }
        let x = creation::from_slice(&batch.x, &[batch.rows, self.toy.inputs])?;
        let y = creation::from_slice(&batch.y, &[batch.rows, self.toy.outputs])?;
        let mut out = self.ddp.forward(&x)?;
        if batch.uses_side {
            out = arithmetic::add(&out, self.ddp.module().side.tensor())?;
        }
        let off = arithmetic::sub(&out, &y)?;
        reduction::mean(&arithmetic::mul(&off, &off)?)
    }

    fn given(&mut self) -> Result<Named, String> {
        self.is_over = true;
        let mut named = Named::new();
        for (name, parameter) in self.ddp.named_parameters() {
            if let (Some(grad), true) = (parameter.grad().map_err(told)?, name != "tied") {
                named.insert(name, grad.data_vec().map_err(told)?);
            }
        }
        Ok(named)
    }
}

impl<const OVERLAP: bool> Library for Ferrotorch<OVERLAP> {
    fn wrap(toy: &Toy, group: &ProcessGroup, bucket_cap_bytes: usize) -> Result<Self, String> {
        let new = |name: &str, rows: usize| {
            let values = &toy.weights[name];
            let shape = if rows == 0 { vec![values.len()] } else { vec![rows, values.len() / rows] };
            Parameter::from_slice(values, &shape).map_err(told)
        };
        let first_weight = new("first.weight", toy.inputs)?;
        let network = Network {
            side: new("side", 0)?,
            second_weight: if toy.is_tied { None } else { Some(new("second.weight", toy.hidden)?) },
            second_bias: new("second.bias", 0)?,
            tied: toy.is_tied.then(|| first_weight.clone()),
            first_weight,
            first_bias: new("first.bias", 0)?,
        };
        let config = DdpConfig::default()
            .bucket_cap_bytes(bucket_cap_bytes)
            .overlap(if OVERLAP { Overlap::On } else { Overlap::Off })
            .missing_gradients(MissingGradients::Allow);
        let mut ddp = DDP::with_config(network, Arc::new(Group::from(group.clone())), config);
        ddp.broadcast_parameters(0).map_err(told)?;
        Ok(Self { ddp, toy: toy.clone(), is_over: false })
    }

    fn weights(&self) -> Named {
        let named = self.ddp.named_parameters().into_iter().filter(|(name, _)| name != "tied");
        named.map(|(name, parameter)| (name, parameter.data_vec().expect("they are on the host"))).collect()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String> {
        let share = share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global));
        let Some(batch) = batch else {
            if std::mem::take(&mut self.is_over) {
                self.ddp.zero_grad().map_err(told)?;
            }
            self.ddp.sync_gradients_share(share).map_err(told)?;
            return Ok((0.0, self.given()?));
        };
        let loss = self.loss(batch).map_err(told)?;
        let value = loss.item().map_err(told)?;
        self.ddp.backward_share(&loss, share).map_err(told)?;
        Ok((value, self.given()?))
    }

    fn accumulate(&mut self, batch: &Batch) -> Result<(), String> {
        let loss = self.loss(batch).map_err(told)?;
        ferrotorch_core::backward(&loss).map_err(told)
    }

    fn join(&mut self) -> Result<Option<Named>, String> {
        if self.ddp.join().map_err(told)? { self.given().map(Some) } else { Ok(None) }
    }

    fn descend(&mut self, rate: f64) {
        // A tied weight is one: two would descend twice.
        let named = self.ddp.named_parameters().into_iter().filter(|(name, _)| name != "tied");
        let mut optimizer =
            Sgd::new(named.map(|(_, parameter)| parameter.clone()).collect(), SgdConfig::new(rate));
        optimizer.step().expect("they are on the host");
    }
}

mod after {
    use super::SentAfter;
    phalanx_testkit::train_conformance!(SentAfter);
}

mod during {
    use super::SentDuring;
    phalanx_testkit::train_conformance!(SentDuring);
}
