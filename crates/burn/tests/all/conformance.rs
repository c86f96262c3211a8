//! Burn's tensors pass the suite of adapters.

use burn::module::{Module, Param};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use phalanx::ProcessGroup;
use phalanx_burn::{DdpConfig, DistributedDataParallel, MissingGradients, Share};
use phalanx_testkit::conformance::train::{Batch, Library, Named, Toy};

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
    device: Device,
}

fn told(error: phalanx_burn::Error) -> String {
    error.to_string()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

impl Burn {
    fn input(&self, values: &[f32], columns: usize) -> Tensor<2> {
        let data = TensorData::new(values.to_vec(), [values.len() / columns, columns]);
        Tensor::from_data(data, &self.device)
    }

    fn loss(&self, batch: &Batch) -> Tensor<1> {
        let Network { side, second, first } = &self.network;
        let first_weight = first.weight.as_ref().expect("it has one").val();
        let second_weight =
            second.weight.as_ref().map_or_else(|| first_weight.clone().transpose(), Param::val);
        let hidden = self.input(&batch.x, self.toy.inputs).matmul(first_weight);
        let hidden = (hidden + first.bias.val().unsqueeze()).tanh();
        let mut out = hidden.matmul(second_weight) + second.bias.val().unsqueeze();
        if batch.uses_side {
            out = out + side.val().unsqueeze();
        }
        (out - self.input(&batch.y, self.toy.outputs)).square().mean()
    }

    /// What `of` finds for each weight that there is.
    fn named(&self, of: impl Fn(Weight<'_>) -> Option<Vec<f32>>) -> Named {
        let Network { side, second, first } = &self.network;
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

    fn given(&mut self, grads: GradientsParams) -> Named {
        self.grads = grads;
        self.named(|weight| match weight {
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
        let device = Device::default().autodiff();
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
        let mut network = Network {
            side: vector("side"),
            second: Layer { weight: second, bias: vector("second.bias") },
            first: Layer { weight: Some(matrix("first.weight", toy.inputs)), bias: vector("first.bias") },
        };
        let config = DdpConfig::default()
            .bucket_cap_bytes(bucket_cap_bytes)
            .missing_gradients(MissingGradients::Allow);
        let ddp = DistributedDataParallel::new(&mut network, group, config).map_err(told)?;
        let (optimizer, grads) = (SgdConfig::new().init(), GradientsParams::new());
        Ok(Self { network, ddp, optimizer, grads, toy: toy.clone(), device })
    }

    fn weights(&self) -> Named {
        self.named(|weight| {
            Some(match weight {
                Weight::Vector(param) => numbers(param.val()),
                Weight::Matrix(param) => numbers(param.val()),
            })
        })
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String> {
        let share = share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global));
        let Some(batch) = batch else {
            let grads =
                self.ddp.sync_gradients(&self.network, GradientsParams::new(), share).map_err(told)?;
            return Ok((0.0, self.given(grads)));
        };
        let loss = self.loss(batch);
        let value = numbers(loss.clone())[0];
        let grads = self.ddp.backward_share(&self.network, loss, share).map_err(told)?;
        Ok((value, self.given(grads)))
    }

    fn accumulate(&mut self, batch: &Batch) -> Result<(), String> {
        let loss = self.loss(batch);
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

phalanx_testkit::train_conformance!(Burn);
