//! Jobs of several ranks inside one test, and a model to train with them.

pub(crate) mod deep;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Module, VarBuilder, VarMap};
use phalanx::{ProcessGroup, threads};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap};
use phalanx_testkit::World;
use std::ops::Range;

/// Runs `rank` once on each of `world_size` ranks; results in rank order.
pub(crate) fn on_ranks<R: Send>(world_size: usize, rank: impl Fn(ProcessGroup) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let rank = &rank;
        let ranks: Vec<_> =
            threads(world_size).into_iter().map(|group| s.spawn(move || rank(group))).collect();
        ranks.into_iter().map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Ranks over every transport.
pub(crate) fn worlds() -> [World; 3] {
    [World::thread(), World::shm(), World::tcp()]
}

/// Runs `rank` once on each of `world_size` ranks, over every transport.
pub(crate) fn everywhere(world_size: usize, rank: impl Fn(ProcessGroup) + Clone + Send + Sync + 'static) {
    for world in worlds() {
        world.run(world_size, rank.clone());
    }
}

/// Gradients sent after the backward pass, and during it.
pub(crate) const MODES: [Overlap; 2] = [Overlap::Off, Overlap::On];

/// Samples of the data set.
pub(crate) const SAMPLES: usize = 12;

/// A two-layer network.
pub(crate) struct Net([candle_nn::Linear; 2]);

impl Net {
    /// The same weights each time.
    pub(crate) fn new(vb: VarBuilder<'_>, varmap: &VarMap) -> Result<Self> {
        let layers = [(5, 7, "first"), (7, 3, "second")]
            .map(|(from, to, name)| candle_nn::linear(from, to, vb.pp(name)).unwrap());
        for (name, var) in varmap.data().lock().unwrap().iter() {
            var.set(&wave(var.dims(), name.len() as f64).to_dtype(var.dtype())?)?;
        }
        Ok(Self(layers))
    }

    /// Mean squared error over these rows of a fixed data set, in f32.
    pub(crate) fn loss(&self, rows: Range<usize>) -> Result<Tensor> {
        let dtype = self.0[0].weight().dtype();
        let x = wave(&[SAMPLES, 5], 1.0).narrow(0, rows.start, rows.len())?.to_dtype(dtype)?;
        let y = wave(&[SAMPLES, 3], 2.0).narrow(0, rows.start, rows.len())?.to_dtype(DType::F32)?;
        let out = self.0[1].forward(&self.0[0].forward(&x)?.tanh()?)?.to_dtype(DType::F32)?;
        candle_nn::loss::mse(&out, &y)
    }
}

/// A model of f32 that sends small buckets.
pub(crate) fn net(group: &ProcessGroup, mode: Overlap, cap: usize) -> (VarMap, DistributedDataParallel<Net>) {
    net_of(DType::F32, group, DdpConfig::default().bucket_cap_bytes(cap).overlap(mode))
}

pub(crate) fn net_of(
    dtype: DType,
    group: &ProcessGroup,
    config: DdpConfig,
) -> (VarMap, DistributedDataParallel<Net>) {
    let varmap = VarMap::new();
    let model = |vb: VarBuilder<'_>| Net::new(vb, &varmap);
    let ddp = DistributedDataParallel::build(&varmap, dtype, group, config, model).unwrap();
    (varmap, ddp)
}

/// Values without structure, but always the same.
pub(crate) fn wave(shape: &[usize], salt: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (salt + i as f64 * 1.7).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// The bits of all tensors that `of` finds for the variables, in name order.
fn bits(varmap: &VarMap, of: impl Fn(&Tensor) -> Option<Tensor>) -> Vec<Option<Vec<u32>>> {
    let data = varmap.data().lock().unwrap();
    let mut named: Vec<_> = data.iter().collect();
    named.sort_by_key(|(name, _)| name.as_str());
    let values = |t: Tensor| t.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
    named.into_iter().map(|(_, var)| Some(values(of(var)?).into_iter().map(f32::to_bits).collect())).collect()
}

/// The bits of all gradients, in name order.
pub(crate) fn gradients(varmap: &VarMap, grads: &GradStore) -> Vec<Option<Vec<u32>>> {
    bits(varmap, |var| grads.get(var).cloned())
}

/// The bits of all weights, in name order.
pub(crate) fn weights(varmap: &VarMap) -> Vec<Option<Vec<u32>>> {
    bits(varmap, |var| Some(var.detach()))
}
