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

/// All weights, in the order of their names: uniformly within ±√(6 / inputs) (He et al. 2015), and biases within ±1 / √inputs. They depend on `seed` alone.
///
/// A bias is not zero, so that no sum over blank pixels is exactly zero: there libraries differ in what the gradient of ReLU is.
pub fn weights(seed: u64) -> Vec<Weight> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // 53 random bits make a number in [0, 1).
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut weight = |name, dims: &[usize], bound: f64| {
        let values = (0..dims.iter().product()).map(|_| bound * (2.0 * uniform() - 1.0)).collect();
        Weight { name, dims: dims.to_vec(), values }
    };
    let mut layer = |[bias, name]: [&'static str; 2], dims: &[usize]| {
        let inputs = dims[1..].iter().product::<usize>() as f64;
        [weight(bias, &dims[..1], 1.0 / inputs.sqrt()), weight(name, dims, (6.0 / inputs).sqrt())]
    };
    [
        layer(["classes.bias", "classes.weight"], &[10, 2 * 2 * 32]),
        layer(["far.bias", "far.weight"], &[32, 16, 3, 3]),
        layer(["near.bias", "near.weight"], &[16, 1, 3, 3]),
    ]
    .concat()
}
