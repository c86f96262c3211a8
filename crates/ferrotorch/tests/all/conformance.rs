//! Ferrotorch's tensors pass the suite of adapters.

use ferrotorch_core::grad_fns::{arithmetic, linalg, reduction, shape};
use ferrotorch_core::{FerrotorchError, FerrotorchResult, Tensor, creation, tanh};
use ferrotorch_nn::{Module, Parameter};
use ferrotorch_optim::{Optimizer, Sgd, SgdConfig};
use phalanx::ProcessGroup;
use phalanx_ferrotorch::checkpoint::{Checkpoints, State, load_module, save_module};
use phalanx_ferrotorch::{
    Array, DDP, DdpConfig, DiLoCo, DiLoCoConfig, Group, MissingGradients, Overlap, SgdParams, ShardConfig,
    Sharded, Share, Stage,
};
use phalanx_testkit::conformance::train::{Averaging, Batch, Library, Named, Saving, Sharding, Toy};
use std::path::Path;
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

impl Network {
    fn new(toy: &Toy) -> Result<Self, String> {
        let new = |name: &str, rows: usize| {
            let values = &toy.weights[name];
            let shape = if rows == 0 { vec![values.len()] } else { vec![rows, values.len() / rows] };
            Parameter::from_slice(values, &shape).map_err(told)
        };
        let first_weight = new("first.weight", toy.inputs)?;
        Ok(Self {
            side: new("side", 0)?,
            second_weight: if toy.is_tied { None } else { Some(new("second.weight", toy.hidden)?) },
            second_bias: new("second.bias", 0)?,
            tied: toy.is_tied.then(|| first_weight.clone()),
            first_weight,
            first_bias: new("first.bias", 0)?,
        })
    }

    fn loss(&self, toy: &Toy, batch: &Batch) -> FerrotorchResult<Tensor<f32>> {
        let x = creation::from_slice(&batch.x, &[batch.rows, toy.inputs])?;
        let y = creation::from_slice(&batch.y, &[batch.rows, toy.outputs])?;
        let mut out = self.forward(&x)?;
        if batch.uses_side {
            out = arithmetic::add(&out, self.side.tensor())?;
        }
        let off = arithmetic::sub(&out, &y)?;
        reduction::mean(&arithmetic::mul(&off, &off)?)
    }

    fn weights(&self) -> Named {
        let named = self.named_parameters().into_iter().filter(|(name, _)| name != "tied");
        named.map(|(name, parameter)| (name, parameter.data_vec().expect("they are on the host"))).collect()
    }

    /// A tied weight is one: two would descend twice.
    fn sgd(&self, rate: f64) -> Sgd<f32> {
        let named = self.named_parameters().into_iter().filter(|(name, _)| name != "tied");
        Sgd::new(named.map(|(_, parameter)| parameter.clone()).collect(), SgdConfig::new(rate))
    }
}

fn share(share: Option<(usize, usize)>) -> Share {
    share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global))
}

impl<const OVERLAP: bool> Ferrotorch<OVERLAP> {
    fn loss(&mut self, batch: &Batch) -> FerrotorchResult<Tensor<f32>> {
        if std::mem::take(&mut self.is_over) {
            self.ddp.zero_grad()?;
        }
        self.ddp.module().loss(&self.toy, batch)
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
        let network = Network::new(toy)?;
        let config = DdpConfig::default()
            .bucket_cap_bytes(bucket_cap_bytes)
            .overlap(if OVERLAP { Overlap::On } else { Overlap::Off })
            .missing_gradients(MissingGradients::Allow);
        let mut ddp = DDP::with_config(network, Arc::new(Group::from(group.clone())), config);
        ddp.broadcast_parameters(0).map_err(told)?;
        Ok(Self { ddp, toy: toy.clone(), is_over: false })
    }

    fn weights(&self) -> Named {
        self.ddp.module().weights()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String> {
        let share = self::share(share);
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
        self.ddp.module().sgd(rate).step().expect("they are on the host");
    }
}

impl<const OVERLAP: bool> Saving for Ferrotorch<OVERLAP> {
    fn save(&self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let mut state = State::new();
        save_module(self.ddp.module(), "model", &mut state).map_err(told)?;
        let saved = Checkpoints::open(folder, group).and_then(|mut all| all.save(step, state));
        saved.map_err(|error| error.to_string())
    }

    fn load(&mut self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let found = Checkpoints::open(folder, group).and_then(|mut all| all.load(step));
        let found = found.map_err(|error| error.to_string())?;
        load_module(self.ddp.module_mut(), "model", &found).map_err(told)
    }
}

struct Dealt {
    zero: Sharded<Network, f32>,
    sgd: phalanx_ferrotorch::Sgd<Array>,
    toy: Toy,
}

impl Sharding for Dealt {
    fn deal_out(toy: &Toy, group: &ProcessGroup, with_gradients: bool, rate: f64) -> Result<Self, String> {
        let stage = if with_gradients { Stage::Gradients } else { Stage::Optimizer };
        let config = ShardConfig::default().stage(stage);
        let backend = Arc::new(Group::from(group.clone()));
        let zero = Sharded::new(Network::new(toy)?, backend, config).map_err(told)?;
        let sgd = zero.sgd(SgdParams { lr: rate, ..Default::default() });
        Ok(Self { zero, sgd, toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        self.zero.module().weights()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(), String> {
        let share = self::share(share);
        let grads = match batch {
            Some(batch) => {
                let loss = self.zero.module().loss(&self.toy, batch).map_err(told)?;
                self.zero.backward_share(&loss, share)
            }
            None => self.zero.reduce(share),
        };
        let grads = grads.map_err(told)?;
        self.sgd.step(&mut self.zero, &grads).map_err(|error| error.to_string())?;
        self.zero.gather().map_err(told)
    }
}

struct Averaged {
    diloco: DiLoCo<Network, f32>,
    sgd: Sgd<f32>,
    toy: Toy,
}

impl Averaging for Averaged {
    fn average(toy: &Toy, group: &ProcessGroup, sync_every: u64, rate: f64) -> Result<Self, String> {
        let backend = Arc::new(Group::from(group.clone()));
        let config = DiLoCoConfig::local_sgd(sync_every);
        let diloco = DiLoCo::new(Network::new(toy)?, backend, config).map_err(told)?;
        let sgd = diloco.module().sgd(rate);
        Ok(Self { diloco, sgd, toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        self.diloco.module().weights()
    }

    fn step(&mut self, batch: &Batch) -> Result<(), String> {
        let mut step = || {
            ferrotorch_core::backward(&self.diloco.module().loss(&self.toy, batch)?)?;
            self.sgd.step()?;
            self.diloco.step()?;
            self.sgd.zero_grad()
        };
        step().map_err(told)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.diloco.finish().map_err(told)
    }
}

mod after {
    use super::{Averaged, Dealt, SentAfter};
    phalanx_testkit::train_conformance!(SentAfter, sharding: Dealt, averaging: Averaged, saving: SentAfter);
}

mod during {
    use super::SentDuring;
    phalanx_testkit::train_conformance!(SentDuring);
}
