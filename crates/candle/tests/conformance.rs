//! candle's tensors pass the suite of adapters.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use phalanx::ProcessGroup;
use phalanx_candle::{DdpConfig, DistributedDataParallel, MissingGradients, Share};
use phalanx_testkit::conformance::train::{Batch, Library, Named, Toy};

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

impl Candle {
    fn var(&self, name: &str) -> Var {
        self.varmap.data().lock().unwrap()[name].clone()
    }

    fn loss(&self, batch: &Batch) -> candle_core::Result<Tensor> {
        let Toy { inputs, outputs, is_tied, .. } = self.toy;
        let x = Tensor::from_slice(&batch.x, (batch.rows, inputs), &Device::Cpu)?;
        let y = Tensor::from_slice(&batch.y, (batch.rows, outputs), &Device::Cpu)?;
        let first = self.var("first.weight");
        let second = if is_tied { first.t()? } else { self.var("second.weight").as_tensor().clone() };
        let hidden = x.matmul(&first)?.broadcast_add(&self.var("first.bias"))?.tanh()?;
        let mut out = hidden.matmul(&second)?.broadcast_add(&self.var("second.bias"))?;
        if batch.uses_side {
            out = out.broadcast_add(&self.var("side"))?;
        }
        (out - y)?.sqr()?.mean_all()
    }

    fn given(&mut self, grads: GradStore) -> Named {
        self.grads = grads;
        let named = self.toy.weights.keys().map(|name| (name.clone(), self.var(name)));
        named.filter_map(|(name, var)| Some((name, numbers(self.grads.get(&var)?)))).collect()
    }
}

impl Library for Candle {
    fn wrap(toy: &Toy, group: &ProcessGroup, bucket_cap_bytes: usize) -> Result<Self, String> {
        let varmap = VarMap::new();
        for (name, values) in &toy.weights {
            let shape = match name.as_str() {
                "first.weight" => vec![toy.inputs, toy.hidden],
                "second.weight" => vec![toy.hidden, toy.outputs],
                _ => vec![values.len()],
            };
            let tensor = Tensor::from_slice(values, shape, &Device::Cpu).unwrap();
            varmap.data().lock().unwrap().insert(name.clone(), Var::from_tensor(&tensor).unwrap());
        }
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
        let share = share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global));
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

phalanx_testkit::train_conformance!(Candle);
