//! Has the network write a text of its own.

use crate::model::Transformer;
use crate::text::Alphabet;
use candle_core::{Device, IndexOp, Result, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Below 1 likely characters are preferred more than they are likely.
const TEMPERATURE: f64 = 0.8;

/// Goes on from a new line with `length` characters, the same for the same seed and weights.
pub(crate) fn write(
    model: &Transformer,
    alphabet: &Alphabet,
    context: usize,
    length: usize,
    seed: u64,
) -> Result<String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut written = alphabet.numbers("\n");
    for _ in 0..length {
        let seen = &written[written.len().saturating_sub(context)..];
        let logits = model.forward(&Tensor::new(seen, &Device::Cpu)?.unsqueeze(0)?)?;
        let logits = logits.i((0, seen.len() - 1))?.to_dtype(candle_core::DType::F32)?;
        let likely = candle_nn::ops::softmax(&(logits / TEMPERATURE)?, 0)?.to_vec1::<f32>()?;
        written.push(choose(&likely, (random.next_u64() >> 40) as f32 / (1u64 << 24) as f32));
    }
    Ok(written[1..].iter().map(|&number| alphabet.character(number)).collect())
}

/// The place at which the likelihoods before it add up to `at`, in [0, 1).
fn choose(likely: &[f32], at: f32) -> u32 {
    let mut sum = 0.0;
    let place = likely.iter().position(|p| {
        sum += p;
        at < sum
    });
    // They may add up to a little less than 1.
    place.unwrap_or(likely.len() - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn each_is_chosen_as_often_as_it_is_likely() {
        let likely = [0.5, 0.0, 0.25, 0.25];
        let chosen: Vec<u32> = (0..8).map(|i| choose(&likely, i as f32 / 8.0)).collect();
        assert_eq!(chosen, [0, 0, 0, 0, 2, 2, 3, 3]);
        assert_eq!(choose(&[0.5, 0.499], 0.9999), 1);
    }
}
