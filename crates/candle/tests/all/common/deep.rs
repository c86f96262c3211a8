//! A model that can be dealt out, and every way to do so.

use super::{SAMPLES, wave};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Init, Linear, Module, VarBuilder, VarMap};
use phalanx::ProcessGroup;
use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap, ShardConfig, Sharded, Stage, Unit, Units};
use std::ops::Range;

pub(crate) const STAGES: [Stage; 3] = [Stage::Optimizer, Stage::Gradients, Stage::Weights];

/// A residual network: an embedding that stays and is the output layer too, and layers that can be units.
pub(crate) struct Deep<L> {
    embedding: Tensor,
    layers: Vec<L>,
}

impl<L: Module> Deep<L> {
    pub(crate) fn new(vb: VarBuilder<'_>, layer: impl Fn(VarBuilder<'_>) -> Result<L>) -> Result<Self> {
        let embedding = vb.get_with_hints((7, 5), "embedding", Init::Const(0.5))?;
        let layers = (0..3).map(|i| layer(vb.pp(i))).collect::<Result<_>>()?;
        Ok(Self { embedding, layers })
    }

    pub(crate) fn loss(&self, rows: Range<usize>) -> Result<Tensor> {
        let dtype = self.embedding.dtype();
        let take = |width, salt, dtype| {
            wave(&[SAMPLES, width], salt).narrow(0, rows.start, rows.len())?.to_dtype(dtype)
        };
        let mut x = take(7, 1.0, dtype)?.matmul(&self.embedding)?;
        for layer in &self.layers {
            x = (&x + layer.forward(&x)?.tanh()?)?;
        }
        let found = x.matmul(&self.embedding.t()?)?.to_dtype(DType::F32)?;
        candle_nn::loss::mse(&found, &take(7, 2.0, DType::F32)?)
    }
}

pub(crate) fn linear(vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear(5, 5, vb)
}

/// The same weights each time.
pub(crate) fn start() -> VarMap {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    Deep::new(vb, linear).unwrap();
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let salt = name.bytes().map(f64::from).sum();
        var.set(&(wave(var.dims(), salt) * 0.7).unwrap().to_dtype(DType::F32).unwrap()).unwrap();
    }
    varmap
}

pub(crate) fn plain(group: &ProcessGroup, dtype: DType) -> (VarMap, DistributedDataParallel<Deep<Linear>>) {
    let (varmap, config) = (start(), DdpConfig::default().overlap(Overlap::On));
    let ddp = DistributedDataParallel::build(&varmap, dtype, group, config, |vb| Deep::new(vb, linear));
    (varmap, ddp.unwrap())
}

pub(crate) fn config(stage: Stage, overlap: Overlap) -> ShardConfig {
    ShardConfig::default().stage(stage).overlap(overlap).bucket_cap_bytes(150)
}

pub(crate) fn sharded(
    group: &ProcessGroup,
    dtype: DType,
    config: ShardConfig,
) -> Sharded<Deep<Unit<Linear>>> {
    let model = |units: &Units, vb: VarBuilder<'_>| Deep::new(vb, |vb| units.unit(vb, linear));
    let zero = Sharded::build(dtype, group, config, model).unwrap();
    zero.import(&start()).unwrap();
    zero
}

/// Every stage, with and without overlap.
pub(crate) fn configs() -> impl Iterator<Item = ShardConfig> {
    STAGES.into_iter().flat_map(|stage| [Overlap::Off, Overlap::On].map(|overlap| config(stage, overlap)))
}

pub(crate) fn value(loss: &Tensor) -> f32 {
    loss.to_scalar().unwrap()
}

/// The bits of all weights, by name, on rank 0.
pub(crate) fn bits(varmap: Option<VarMap>) -> Vec<(String, Vec<u32>)> {
    let varmap = varmap.unwrap_or_else(VarMap::new);
    let data = varmap.data().lock().unwrap();
    let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let mut all: Vec<_> = data
        .iter()
        .map(|(name, var)| (name.clone(), values(var).into_iter().map(f32::to_bits).collect()))
        .collect();
    all.sort();
    all
}

/// The gradients of all shards, end to end in order, as all ranks have them together.
pub(crate) fn gradients<M>(zero: &Sharded<M>, grads: &GradStore, group: &ProcessGroup) -> Vec<f32> {
    let mut all = Vec::new();
    for shard in zero.shards() {
        let grad = grads.get(&shard).unwrap();
        all.extend(phalanx_candle::all_gather(group, grad).unwrap().to_vec1::<f32>().unwrap());
    }
    all
}

/// Two layers, of which ranks use what they like.
pub(crate) fn pair(units: &Units, vb: VarBuilder<'_>) -> Result<[Unit<Linear>; 2]> {
    let unit = |name| units.unit(vb.pp(name), |vb| candle_nn::linear(2, 2, vb));
    Ok([unit("a")?, unit("b")?])
}
