//! The weights with which the network begins, whatever library trains it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A weight of the network, which is two convolutions, `near` and `far`, and a linear layer of the ten `classes`.
#[derive(Debug, Clone)]
pub struct Weight {
    /// As PyTorch and candle call it: `near.weight`.
    pub name: &'static str,
    /// Outputs first: `[16, 1, 3, 3]`.
    pub dims: Vec<usize>,
    /// In row-major order.
    pub values: Vec<f64>,
}

/// All weights, in the order of their names: uniformly within ±√(6 / inputs) (He et al. 2015), and biases of zero. They depend on `seed` alone.
pub fn weights(seed: u64) -> Vec<Weight> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // 53 random bits make a number in [0, 1).
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut weight = |name, dims: &[usize]| {
        let inputs: usize = dims[1..].iter().product();
        let bound = if dims.len() == 1 { 0.0 } else { (6.0 / inputs as f64).sqrt() };
        let values = (0..dims.iter().product()).map(|_| bound * (2.0 * uniform() - 1.0)).collect();
        Weight { name, dims: dims.to_vec(), values }
    };
    vec![
        weight("classes.bias", &[10]),
        weight("classes.weight", &[10, 2 * 2 * 32]),
        weight("far.bias", &[32]),
        weight("far.weight", &[32, 16, 3, 3]),
        weight("near.bias", &[16]),
        weight("near.weight", &[16, 1, 3, 3]),
    ]
}
