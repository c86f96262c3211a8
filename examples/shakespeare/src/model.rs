//! The network: a decoder as in GPT-2 (Radford et al. 2019), small, without biases, and with RMS norms.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Embedding, Linear, Module, RmsNorm, VarBuilder, VarMap};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};
use std::sync::PoisonError;

/// Standard deviation of weights at the beginning. Those whose results are added up over the layers begin smaller.
const STDEV: f64 = 0.02;

/// How large a network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub(crate) struct Size {
    /// Characters that it sees.
    #[arg(long, default_value_t = 64, value_parser = at_least_1())]
    pub(crate) context: usize,
    /// Blocks of attention and a wide layer.
    #[arg(long, default_value_t = 4, value_parser = at_least_1())]
    pub(crate) layers: usize,
    /// Heads of each attention.
    #[arg(long, default_value_t = 4, value_parser = at_least_1())]
    pub(crate) heads: usize,
    /// Numbers for each character: a multiple of the heads.
    #[arg(long, default_value_t = 128, value_parser = at_least_1())]
    pub(crate) width: usize,
}

fn at_least_1() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20)
}

/// Tells which character comes next.
pub(crate) struct Transformer {
    characters: Embedding,
    places: Embedding,
    blocks: Vec<Box<dyn Module>>,
    norm: RmsNorm,
    head: Linear,
}

impl Transformer {
    /// Builds a network for an alphabet of so many characters; its weights are still to be drawn.
    pub(crate) fn new(size: Size, alphabet: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Self::with_blocks(size, alphabet, vb, |vb| Ok(Box::new(Block::new(size, vb)?)))
    }

    /// The same of blocks that `block` makes, which may wrap them.
    pub(crate) fn with_blocks(
        size: Size,
        alphabet: usize,
        vb: VarBuilder<'_>,
        mut block: impl FnMut(VarBuilder<'_>) -> Result<Box<dyn Module>>,
    ) -> Result<Self> {
        let Size { context, layers, heads, width } = size;
        if width % heads != 0 {
            candle_core::bail!("a width of {width} can't be dealt out to {heads} heads")
        }
        Ok(Self {
            characters: embedding(alphabet, width, vb.pp("characters"))?,
            places: embedding(context, width, vb.pp("places"))?,
            blocks: (0..layers).map(|i| block(vb.pp("blocks").pp(i))).collect::<Result<_>>()?,
            norm: candle_nn::rms_norm(width, 1e-5, vb.pp("norm"))?,
            head: linear(width, alphabet, vb.pp("head"))?,
        })
    }

    /// `[n, characters]` to the logits of what follows each, `[n, characters, alphabet]`.
    pub(crate) fn forward(&self, characters: &Tensor) -> Result<Tensor> {
        let length = characters.dim(1)?;
        let places = self.places.forward(&Tensor::arange(0, length as u32, characters.device())?)?;
        let mut x = self.characters.forward(characters)?.broadcast_add(&places)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward_diff(&x)?)
    }

    /// Mean cross entropy of what follows, in f32.
    pub(crate) fn loss(&self, characters: &Tensor, next: &Tensor) -> Result<Tensor> {
        let logits = self.forward(characters)?.flatten_to(1)?.to_dtype(DType::F32)?;
        candle_nn::loss::cross_entropy(&logits, &next.flatten_all()?)
    }
}

/// Attention, and a wide layer.
pub(crate) struct Block {
    heads: usize,
    /// 0 where a place may look, minus infinity where it may not: ahead. `[context, context]`
    mask: Tensor,
    before_attention: RmsNorm,
    queries_keys_values: Linear,
    mix: Linear,
    before_wide: RmsNorm,
    wide: Linear,
    narrow: Linear,
}

impl Block {
    pub(crate) fn new(size: Size, vb: VarBuilder<'_>) -> Result<Self> {
        let Size { context, heads, width, .. } = size;
        let ahead = |i: usize, j: usize| if j > i { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..context * context).map(|at| ahead(at / context, at % context)).collect();
        Ok(Self {
            heads,
            mask: Tensor::from_vec(mask, (context, context), &Device::Cpu)?,
            before_attention: candle_nn::rms_norm(width, 1e-5, vb.pp("before_attention"))?,
            queries_keys_values: linear(width, 3 * width, vb.pp("queries_keys_values"))?,
            mix: linear(width, width, vb.pp("mix"))?,
            before_wide: candle_nn::rms_norm(width, 1e-5, vb.pp("before_wide"))?,
            wide: linear(width, 4 * width, vb.pp("wide"))?,
            narrow: linear(4 * width, width, vb.pp("narrow"))?,
        })
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let (n, length, width) = x.dims3()?;
        let each = width / self.heads;
        let all = self.queries_keys_values.forward(x)?.reshape((n, length, 3, self.heads, each))?;
        // [n, heads, length, each]
        let part = |i| all.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let (queries, keys, values): (Tensor, Tensor, Tensor) = (part(0)?, part(1)?, part(2)?);
        let scores = (queries.matmul(&keys.t()?)? * (1.0 / (each as f64).sqrt()))?;
        let mask = self.mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
        let scores = scores.to_dtype(DType::F32)?.broadcast_add(&mask)?;
        let weights = candle_nn::ops::softmax(&scores, D::Minus1)?.to_dtype(x.dtype())?;
        self.mix.forward(&weights.matmul(&values)?.transpose(1, 2)?.reshape((n, length, width))?)
    }
}

impl Module for Block {
    /// `[n, characters, width]`, in and out.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.attend(&self.before_attention.forward_diff(x)?)?)?;
        let wide = self.wide.forward(&self.before_wide.forward_diff(&x)?)?;
        &x + self.narrow.forward(&wide.relu()?)?
    }
}

fn embedding(kinds: usize, width: usize, vb: VarBuilder<'_>) -> Result<Embedding> {
    Ok(Embedding::new(vb.get((kinds, width), "weight")?, width))
}

fn linear(from: usize, to: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    Ok(Linear::new(vb.get((to, from), "weight")?, None))
}

/// Draws the weights, by `seed` alone, in name order: candle's generator for the CPU cannot be seeded.
pub(crate) fn initialise(varmap: &VarMap, size: Size, seed: u64) -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let variables = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut named: Vec<_> = variables.iter().collect();
    named.sort_by_key(|(name, _)| name.as_str());
    // Norms begin as ones.
    for (name, var) in named.into_iter().filter(|(_, var)| var.rank() > 1) {
        let adds_up = name.ends_with("mix.weight") || name.ends_with("narrow.weight");
        let stdev = if adds_up { STDEV / (2.0 * size.layers as f64).sqrt() } else { STDEV };
        let values: Vec<f32> = (0..var.elem_count()).map(|_| (stdev * gauss(&mut random)) as f32).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_dtype(var.dtype())?)?;
    }
    Ok(())
}

/// A number of the standard normal distribution (Box and Muller 1958).
fn gauss(random: &mut ChaCha8Rng) -> f64 {
    // 53 random bits make a number in (0, 1].
    let mut uniform = || ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}
