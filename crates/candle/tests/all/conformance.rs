//! candle's tensors pass the suite of adapters.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, SGD, VarMap};
use phalanx::ProcessGroup;
use phalanx_candle::checkpoint::{Checkpoints, State, Stateful, load_vars, save_vars};
use phalanx_candle::{
    DdpConfig, DiLoCo, DiLoCoConfig, DistributedDataParallel, MissingGradients, ShardConfig, Sharded, Share,
    Stage,
};
use phalanx_testkit::conformance::train::{Averaging, Batch, Library, Named, Saving, Sharding, Toy};
use std::collections::BTreeMap;
use std::path::Path;

struct Candle {
    varmap: VarMap,
    ddp: DistributedDataParallel,
    grads: GradStore,
    toy: Toy,
}

fn told(error: phalanx_candle::Error) -> String {
    error.to_string()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The network of weights by their names.
fn loss(toy: &Toy, weight: impl Fn(&str) -> Tensor, batch: &Batch) -> candle_core::Result<Tensor> {
    let x = Tensor::from_slice(&batch.x, (batch.rows, toy.inputs), &Device::Cpu)?;
    let y = Tensor::from_slice(&batch.y, (batch.rows, toy.outputs), &Device::Cpu)?;
    let first = weight("first.weight");
    let second = if toy.is_tied { first.t()? } else { weight("second.weight") };
    let hidden = x.matmul(&first)?.broadcast_add(&weight("first.bias"))?.tanh()?;
    let mut out = hidden.matmul(&second)?.broadcast_add(&weight("second.bias"))?;
    if batch.uses_side {
        out = out.broadcast_add(&weight("side"))?;
    }
    (out - y)?.sqr()?.mean_all()
}

fn shape(toy: &Toy, name: &str) -> Vec<usize> {
    match name {
        "first.weight" => vec![toy.inputs, toy.hidden],
        "second.weight" => vec![toy.hidden, toy.outputs],
        _ => vec![toy.weights[name].len()],
    }
}

fn varmap(toy: &Toy) -> VarMap {
    let varmap = VarMap::new();
    for (name, values) in &toy.weights {
        let tensor = Tensor::from_slice(values, shape(toy, name), &Device::Cpu).unwrap();
        varmap.data().lock().unwrap().insert(name.clone(), Var::from_tensor(&tensor).unwrap());
    }
    varmap
}

fn share(share: Option<(usize, usize)>) -> Share {
    share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global))
}

impl Candle {
    fn var(&self, name: &str) -> Var {
        self.varmap.data().lock().unwrap()[name].clone()
    }

    fn loss(&self, batch: &Batch) -> candle_core::Result<Tensor> {
        loss(&self.toy, |name| self.var(name).as_tensor().clone(), batch)
    }

    fn given(&mut self, grads: GradStore) -> Named {
        self.grads = grads;
        let named = self.toy.weights.keys().map(|name| (name.clone(), self.var(name)));
        named.filter_map(|(name, var)| Some((name, numbers(self.grads.get(&var)?)))).collect()
    }
}

impl Library for Candle {
    fn wrap(toy: &Toy, group: &ProcessGroup, bucket_cap_bytes: usize) -> Result<Self, String> {
        let varmap = varmap(toy);
        let config = DdpConfig::default()
            .bucket_cap_bytes(bucket_cap_bytes)
            .missing_gradients(MissingGradients::Allow);
        let ddp = DistributedDataParallel::new(&varmap, group, config).map_err(told)?;
        Ok(Self { varmap, ddp, grads: GradStore::default(), toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        self.toy.weights.keys().map(|name| (name.clone(), numbers(&self.var(name)))).collect()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String> {
        let share = self::share(share);
        let Some(batch) = batch else {
            let mut grads = GradStore::default();
            self.ddp.sync_gradients(&mut grads, share).map_err(told)?;
            return Ok((0.0, self.given(grads)));
        };
        let loss = self.loss(batch).unwrap();
        let grads = self.ddp.backward_share(&loss, share).map_err(told)?;
        Ok((loss.to_dtype(DType::F32).unwrap().to_scalar().unwrap(), self.given(grads)))
    }

    fn accumulate(&mut self, batch: &Batch) -> Result<(), String> {
        self.ddp.accumulate(&self.loss(batch).unwrap()).map_err(told)
    }

    fn join(&mut self) -> Result<Option<Named>, String> {
        let grads = self.ddp.join().map_err(told)?;
        Ok(grads.map(|grads| self.given(grads)))
    }

    fn descend(&mut self, rate: f64) {
        for name in self.toy.weights.keys() {
            let var = self.var(name);
            if let Some(grad) = self.grads.get(&var) {
                var.set(&(var.as_tensor() - (grad * rate).unwrap()).unwrap()).unwrap();
            }
        }
    }
}

impl Saving for Candle {
    fn save(&self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let mut state = State::new();
        save_vars(&self.varmap, "model", &mut state).map_err(|error| error.to_string())?;
        let saved = Checkpoints::open(folder, group).and_then(|mut all| all.save(step, state));
        saved.map_err(|error| error.to_string())
    }

    fn load(&mut self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let found = Checkpoints::open(folder, group).and_then(|mut all| all.load(step));
        let loaded = found.and_then(|found| load_vars(&self.varmap, "model", &found));
        loaded.map_err(|error| error.to_string())
    }
}

struct Dealt {
    zero: Sharded<BTreeMap<String, Tensor>>,
    optimizer: SGD,
    toy: Toy,
}

impl Dealt {
    fn loss(&self, batch: &Batch) -> phalanx_candle::Result<Tensor> {
        self.zero.forward(|weights| loss(&self.toy, |name| weights[name].clone(), batch))
    }
}

impl Sharding for Dealt {
    /// A `VarBuilder` begins with constants or at random, so the suite's weights come from a checkpoint. It is rank 0's.
    fn deal_out(toy: &Toy, group: &ProcessGroup, with_gradients: bool, rate: f64) -> Result<Self, String> {
        let stage = if with_gradients { Stage::Gradients } else { Stage::Optimizer };
        let config = ShardConfig::default().stage(stage);
        let zero = Sharded::build(DType::F32, group, config, |_, vb| {
            let weight = |name: &String| {
                let (layer, own) = name.rsplit_once('.').unwrap_or(("", name));
                let vb = if layer.is_empty() { vb.clone() } else { vb.pp(layer) };
                Ok((name.clone(), vb.get_with_hints(shape(toy, name), own, candle_nn::Init::Const(0.0))?))
            };
            toy.weights.keys().map(weight).collect()
        });
        let mut zero = zero.map_err(told)?;
        let varmap = varmap(toy);
        phalanx_candle::sync_model(&varmap, group, 0).map_err(told)?;
        let (folder, alone) = (tempfile::tempdir().unwrap(), phalanx::threads(1).remove(0));
        let mut checkpoints = Checkpoints::open(folder.path(), &alone).unwrap();
        let mut state = State::new();
        save_vars(&varmap, "model", &mut state).unwrap();
        checkpoints.save(1, state).unwrap();
        zero.load("model", &checkpoints.load(1).unwrap()).unwrap();
        let optimizer = SGD::new(zero.shards(), rate).unwrap();
        Ok(Self { zero, optimizer, toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        let named = |weights: &BTreeMap<String, Tensor>| {
            Ok(weights.iter().map(|(name, weight)| (name.clone(), numbers(weight))).collect())
        };
        self.zero.forward(named).unwrap()
    }

    /// A rank without samples has a loss that depends on nothing.
    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(), String> {
        let loss = match batch {
            Some(batch) => self.loss(batch),
            None => self.zero.forward(|_| Tensor::new(0f32, &Device::Cpu)),
        };
        let grads = loss.and_then(|loss| self.zero.backward_share(&loss, self::share(share)));
        self.optimizer.step(&grads.map_err(told)?).map_err(|error| error.to_string())
    }
}

struct Averaged {
    varmap: VarMap,
    diloco: DiLoCo<SGD>,
    toy: Toy,
}

impl Averaging for Averaged {
    fn average(toy: &Toy, group: &ProcessGroup, sync_every: u64, rate: f64) -> Result<Self, String> {
        let varmap = varmap(toy);
        let sgd = SGD::new(varmap.all_vars(), rate).unwrap();
        let config = DiLoCoConfig::local_sgd(sync_every);
        let diloco = DiLoCo::new(sgd, &varmap, group, config).map_err(told)?;
        Ok(Self { varmap, diloco, toy: toy.clone() })
    }

    fn weights(&self) -> Named {
        let variables = self.varmap.data().lock().unwrap();
        variables.iter().map(|(name, var)| (name.clone(), numbers(var))).collect()
    }

    fn step(&mut self, batch: &Batch) -> Result<(), String> {
        let var = |name: &str| self.varmap.data().lock().unwrap()[name].as_tensor().clone();
        let grads = loss(&self.toy, var, batch).and_then(|loss| loss.backward());
        self.diloco.step(&grads.map_err(|error| error.to_string())?).map_err(told)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.diloco.finish().map_err(told)
    }
}

phalanx_testkit::train_conformance!(Candle, sharding: Dealt, averaging: Averaged, saving: Candle);
