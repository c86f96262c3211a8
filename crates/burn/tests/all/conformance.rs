//! Burn's tensors pass the suite of adapters.

use burn::module::{Module, Param};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use phalanx::ProcessGroup;
use phalanx_burn::checkpoint::{Checkpoints, State, load_module, save_module};
use phalanx_burn::{
    Array, DdpConfig, DiLoCo, DiLoCoConfig, DistributedDataParallel, MissingGradients, Sgd, SgdParams,
    ShardConfig, Sharded, Share, Stage,
};
use phalanx_testkit::conformance::train::{Averaging, Batch, Library, Named, Saving, Sharding, Toy};
use std::path::Path;

/// A layer as burn would have it, with the weight `[inputs, outputs]`. One without a weight takes another's.
#[derive(Module, Debug)]
struct Layer {
    weight: Option<Param<Tensor<2>>>,
    bias: Param<Tensor<1>>,
}

/// In another order than that of the names.
#[derive(Module, Debug)]
struct Network {
    side: Param<Tensor<1>>,
    second: Layer,
    first: Layer,
}

struct Burn {
    network: Network,
    ddp: DistributedDataParallel,
    optimizer: ModuleOptimizer,
    grads: GradientsParams,
    toy: Toy,
}

fn told(error: phalanx_burn::Error) -> String {
    error.to_string()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

fn device() -> Device {
    Device::default().autodiff()
}

fn share(share: Option<(usize, usize)>) -> Share {
    share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global))
}

fn input(values: &[f32], columns: usize) -> Tensor<2> {
    let data = TensorData::new(values.to_vec(), [values.len() / columns, columns]);
    Tensor::from_data(data, &device())
}

impl Network {
    fn new(toy: &Toy) -> Self {
        let device = device();
        let values = |name: &str| toy.weights[name].clone();
        let vector = |name| {
            let data = TensorData::new(values(name), [values(name).len()]);
            Param::from_tensor(Tensor::<1>::from_data(data, &device).require_grad())
        };
        let matrix = |name, rows| {
            let data = TensorData::new(values(name), [rows, values(name).len() / rows]);
            Param::from_tensor(Tensor::<2>::from_data(data, &device).require_grad())
        };
        let second = (!toy.is_tied).then(|| matrix("second.weight", toy.hidden));
        Self {
            side: vector("side"),
            second: Layer { weight: second, bias: vector("second.bias") },
            first: Layer { weight: Some(matrix("first.weight", toy.inputs)), bias: vector("first.bias") },
        }
    }

    fn loss(&self, toy: &Toy, batch: &Batch) -> Tensor<1> {
        let Self { side, second, first } = self;
        let first_weight = first.weight.as_ref().expect("it has one").val();
        let second_weight =
            second.weight.as_ref().map_or_else(|| first_weight.clone().transpose(), Param::val);
        let hidden = input(&batch.x, toy.inputs).matmul(first_weight);
        let hidden = (hidden + first.bias.val().unsqueeze()).tanh();
        let mut out = hidden.matmul(second_weight) + second.bias.val().unsqueeze();
        if batch.uses_side {
            out = out + side.val().unsqueeze();
        }
        (out - input(&batch.y, toy.outputs)).square().mean()
    }

    /// What `of` finds for each weight that there is.
    fn named(&self, of: impl Fn(Weight<'_>) -> Option<Vec<f32>>) -> Named {
        let Self { side, second, first } = self;
        let one = |param| of(Weight::Vector(param));
        let two = |layer: &Layer| of(Weight::Matrix(layer.weight.as_ref()?));
        let all = [
            ("side", one(side)),
            ("first.weight", two(first)),
            ("first.bias", one(&first.bias)),
            ("second.weight", two(second)),
            ("second.bias", one(&second.bias)),
        ];
        all.into_iter().filter_map(|(name, values)| Some((name.to_owned(), values?))).collect()
    }

    fn weights(&self) -> Named {
        self.named(|weight| {
            Some(match weight {
                Weight::Vector(param) => numbers(param.val()),
                Weight::Matrix(param) => numbers(param.val()),
            })
        })
    }
}

impl Burn {
    fn given(&mut self, grads: GradientsParams) -> Named {
        self.grads = grads;
        self.network.named(|weight| match weight {
            Weight::Vector(param) => self.grads.get::<1>(param.id).map(numbers),
            Weight::Matrix(param) => self.grads.get::<2>(param.id).map(numbers),
        })
    }
}

enum Weight<'a> {
    Vector(&'a Param<Tensor<1>>),
    Matrix(&'a Param<Tensor<2>>),
}

impl Library for Burn {
    fn wrap(toy: &Toy, group: &ProcessGroup, bucket_cap_bytes: usize) -> Result<Self, String> {
        let mut network = Network::new(toy);
        let config = DdpConfig::default()
            .bucket_cap_bytes(bucket_cap_bytes)
            .missing_gradients(MissingGradients::Allow);
        let ddp = DistributedDataParallel::new(&mut network, group, config).map_err(told)?;
        let (optimizer, grads) = (SgdConfig::new().init(), GradientsParams::new());
        Ok(Self { network, ddp, optimizer, grads, toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        self.network.weights()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String> {
        let share = self::share(share);
        let Some(batch) = batch else {
            let grads =
                self.ddp.sync_gradients(&self.network, GradientsParams::new(), share).map_err(told)?;
            return Ok((0.0, self.given(grads)));
        };
        let loss = self.network.loss(&self.toy, batch);
        let value = numbers(loss.clone())[0];
        let grads = self.ddp.backward_share(&self.network, loss, share).map_err(told)?;
        Ok((value, self.given(grads)))
    }

    fn accumulate(&mut self, batch: &Batch) -> Result<(), String> {
        let loss = self.network.loss(&self.toy, batch);
        self.ddp.accumulate(&self.network, loss).map_err(told)
    }

    fn join(&mut self) -> Result<Option<Named>, String> {
        let grads = self.ddp.join(&self.network).map_err(told)?;
        Ok(grads.map(|grads| self.given(grads)))
    }

    fn descend(&mut self, rate: f64) {
        let grads = std::mem::take(&mut self.grads);
        self.network = self.optimizer.step(rate, self.network.clone(), grads);
    }
}

impl Saving for Burn {
    fn save(&self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let mut state = State::new();
        let saved = save_module(&self.network, "model", &mut state);
        let saved = saved.and_then(|()| Checkpoints::open(folder, group)?.save(step, state));
        saved.map_err(|error| error.to_string())
    }

    fn load(&mut self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let found = Checkpoints::open(folder, group).and_then(|mut all| all.load(step));
        let loaded = found.and_then(|found| load_module(&mut self.network, "model", &found));
        loaded.map_err(|error| error.to_string())
    }
}

struct Dealt {
    network: Network,
    zero: Sharded,
    sgd: Sgd<Array>,
    toy: Toy,
}

impl Sharding for Dealt {
    fn deal_out(toy: &Toy, group: &ProcessGroup, with_gradients: bool, rate: f64) -> Result<Self, String> {
        let mut network = Network::new(toy);
        let stage = if with_gradients { Stage::Gradients } else { Stage::Optimizer };
        let config = ShardConfig::default().stage(stage);
        let zero = Sharded::new(&mut network, group, config).map_err(told)?;
        let sgd = zero.sgd(SgdParams { lr: rate, ..Default::default() });
        Ok(Self { network, zero, sgd, toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        self.network.weights()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(), String> {
        let (network, share) = (&self.network, self::share(share));
        let grads = match batch {
            Some(batch) => self.zero.backward_share(network, network.loss(&self.toy, batch), share),
            None => self.zero.reduce(network, GradientsParams::new(), share),
        };
        self.sgd.step(&mut self.zero, &grads.map_err(told)?).map_err(told)?;
        self.network = self.zero.gather(network.clone()).map_err(told)?;
        Ok(())
    }
}

struct Averaged {
    network: Network,
    diloco: DiLoCo,
    rate: f64,
    toy: Toy,
}

impl Averaging for Averaged {
    fn average(toy: &Toy, group: &ProcessGroup, sync_every: u64, rate: f64) -> Result<Self, String> {
        let mut network = Network::new(toy);
        let config = DiLoCoConfig::local_sgd(sync_every);
        let diloco = DiLoCo::new(SgdConfig::new().init(), &mut network, group, config).map_err(told)?;
        Ok(Self { network, diloco, rate, toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        self.network.weights()
    }

    fn step(&mut self, batch: &Batch) -> Result<(), String> {
        let loss = self.network.loss(&self.toy, batch);
        let grads = GradientsParams::from_grads(loss.backward(), &self.network);
        self.network = self.diloco.step(self.rate, self.network.clone(), grads).map_err(told)?;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.network = self.diloco.finish(self.network.clone()).map_err(told)?;
        Ok(())
    }
}

phalanx_testkit::train_conformance!(Burn, sharding: Dealt, averaging: Averaged, saving: Burn);
