//! libtorch's tensors pass the suite of adapters.

use phalanx::ProcessGroup;
use phalanx_tch::checkpoint::{Checkpoints, State, load_vars, save_vars};
use phalanx_tch::{
    Array, DdpConfig, DiLoCo, DiLoCoConfig, DistributedDataParallel, MissingGradients, Sgd, SgdParams,
    ShardConfig, Sharded, Share, Stage,
};
use phalanx_testkit::conformance::train::{Averaging, Batch, Library, Named, Saving, Sharding, Toy};
use std::path::Path;
use tch::nn::{self, Init, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// The network, with variables of the suite's names, in which a bar stands for a dot.
struct Network {
    store: nn::VarStore,
    toy: Toy,
}

struct Torch {
    network: Network,
    optimizer: nn::Optimizer,
    ddp: DistributedDataParallel,
    /// Gradients are those of a step that is over.
    is_over: bool,
}

struct Dealt {
    network: Network,
    zero: Sharded,
    sgd: Sgd<Array>,
}

struct Averaged {
    network: Network,
    diloco: DiLoCo,
    optimizer: nn::Optimizer,
}

phalanx_testkit::train_conformance!(Torch, sharding: Dealt, averaging: Averaged, saving: Torch);

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn share(share: Option<(usize, usize)>) -> Share {
    share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global))
}

impl Network {
    fn new(toy: &Toy) -> Self {
        let store = nn::VarStore::new(Device::Cpu);
        for (name, values) in &toy.weights {
            let rows = match name.as_str() {
                "first.weight" => toy.inputs,
                "second.weight" => toy.hidden,
                _ => 0,
            };
            let dims = if rows == 0 { vec![values.len()] } else { vec![rows, values.len() / rows] };
            let dims: Vec<i64> = dims.into_iter().map(|dim| dim as i64).collect();
            let name = name.replace('.', "|"); // a dot would be a level of its own
            let mut var = store.root().var(&name, &dims, Init::Const(0.0));
            tch::no_grad(|| var.copy_(&Tensor::from_slice(values).view(&dims[..])));
        }
        Self { store, toy: toy.clone() }
    }

    fn var(&self, name: &str) -> Tensor {
        self.store.variables().remove(name).expect("the network has it")
    }

    fn loss(&self, batch: &Batch) -> Tensor {
        let matrix = |values: &[f32], columns: usize| {
            Tensor::from_slice(values).view([batch.rows as i64, columns as i64])
        };
        let first = self.var("first|weight");
        let second = if self.toy.is_tied { first.tr() } else { self.var("second|weight") };
        let hidden = (matrix(&batch.x, self.toy.inputs).matmul(&first) + self.var("first|bias")).tanh();
        let mut out = hidden.matmul(&second) + self.var("second|bias");
        if batch.uses_side {
            out += self.var("side");
        }
        (out - matrix(&batch.y, self.toy.outputs)).square().mean(Kind::Float)
    }

    fn named(&self, of: impl Fn(&Tensor) -> Tensor) -> Named {
        let all = self.store.variables().into_iter().map(|(name, var)| (name, of(&var)));
        let defined = all.filter(|(_, tensor)| tensor.defined());
        defined
            .map(|(name, tensor)| (name.replace('|', "."), Vec::try_from(tensor.reshape(-1)).unwrap()))
            .collect()
    }

    fn weights(&self) -> Named {
        self.named(Tensor::shallow_clone)
    }
}

impl Torch {
    fn loss(&mut self, batch: &Batch) -> Tensor {
        self.begin();
        self.network.loss(batch)
    }

    /// What another step has left is no part of the next one.
    fn begin(&mut self) {
        if std::mem::take(&mut self.is_over) {
            self.optimizer.zero_grad();
        }
    }

    fn given(&mut self) -> Named {
        self.is_over = true;
        self.network.named(Tensor::grad)
    }
}

impl Library for Torch {
    fn wrap(toy: &Toy, group: &ProcessGroup, bucket_cap_bytes: usize) -> Result<Self, String> {
        let network = Network::new(toy);
        let config = DdpConfig::default()
            .bucket_cap_bytes(bucket_cap_bytes)
            .missing_gradients(MissingGradients::Allow);
        let ddp = DistributedDataParallel::new(&network.store, group, config).map_err(told)?;
        let optimizer = nn::Sgd::default().build(&network.store, 0.0).map_err(told)?;
        Ok(Self { network, optimizer, ddp, is_over: false })
    }

    fn weights(&self) -> Named {
        self.network.weights()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String> {
        let share = self::share(share);
        let Some(batch) = batch else {
            self.begin();
            self.ddp.sync_gradients(share).map_err(told)?;
            return Ok((0.0, self.given()));
        };
        let loss = self.loss(batch);
        let value = f32::try_from(&loss).map_err(told)?;
        self.ddp.backward_share(&loss, share).map_err(told)?;
        Ok((value, self.given()))
    }

    fn accumulate(&mut self, batch: &Batch) -> Result<(), String> {
        self.loss(batch).f_backward().map_err(told)
    }

    fn join(&mut self) -> Result<Option<Named>, String> {
        if self.ddp.join().map_err(told)? { Ok(Some(self.given())) } else { Ok(None) }
    }

    fn descend(&mut self, rate: f64) {
        self.optimizer.set_lr(rate);
        self.optimizer.step();
    }
}

impl Sharding for Dealt {
    fn deal_out(toy: &Toy, group: &ProcessGroup, with_gradients: bool, rate: f64) -> Result<Self, String> {
        let network = Network::new(toy);
        let stage = if with_gradients { Stage::Gradients } else { Stage::Optimizer };
        let config = ShardConfig::default().stage(stage);
        let zero = Sharded::new(&network.store, group, config).map_err(told)?;
        let sgd = zero.sgd(SgdParams { lr: rate, ..Default::default() });
        Ok(Self { network, zero, sgd })
    }

    fn weights(&self) -> Named {
        self.network.weights()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(), String> {
        let share = self::share(share);
        let grads = match batch {
            Some(batch) => self.zero.backward_share(&self.network.loss(batch), share),
            None => self.zero.reduce(share),
        };
        self.sgd.step(&mut self.zero, &grads.map_err(told)?).map_err(told)?;
        self.zero.gather().map_err(told)
    }
}

impl Averaging for Averaged {
    fn average(toy: &Toy, group: &ProcessGroup, sync_every: u64, rate: f64) -> Result<Self, String> {
        let network = Network::new(toy);
        let config = DiLoCoConfig::local_sgd(sync_every);
        let diloco = DiLoCo::new(&network.store, group, config).map_err(told)?;
        let optimizer = nn::Sgd::default().build(&network.store, rate).map_err(told)?;
        Ok(Self { network, diloco, optimizer })
    }

    fn weights(&self) -> Named {
        self.network.weights()
    }

    fn step(&mut self, batch: &Batch) -> Result<(), String> {
        self.optimizer.backward_step(&self.network.loss(batch));
        self.diloco.step().map_err(told)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.diloco.finish().map_err(told)
    }
}

impl Saving for Torch {
    fn save(&self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let mut state = State::new();
        save_vars(&self.network.store, "model", &mut state).map_err(told)?;
        Checkpoints::open(folder, group).and_then(|mut all| all.save(step, state)).map_err(told)
    }

    fn load(&mut self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let found = Checkpoints::open(folder, group).and_then(|mut all| all.load(step)).map_err(told)?;
        load_vars(&self.network.store, "model", &found).map_err(told)
    }
}
