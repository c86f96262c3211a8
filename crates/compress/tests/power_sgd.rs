//! PowerSGD finds directions, whatever the size of what points there.

use phalanx::ProcessGroup;
use phalanx_compress::{Bucket, CommHook, PowerSgd};
use phalanx_testkit::World;
use proptest::prelude::*;

const RANKS: usize = 2;

/// A number between -1 and 1, another for every place.
fn number(seed: u64, at: usize) -> f32 {
    let mixed = (seed + at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn reduce(hook: &mut PowerSgd, mut gradients: Vec<f32>, shape: [usize; 2], group: &ProcessGroup) -> Vec<f32> {
    let bucket = Bucket { index: 0, gradients: &mut gradients, shapes: &[&shape] };
    hook.reduce(bucket, group).unwrap();
    gradients
}

/// What comes of three steps whose gradients have nothing in common, if all are multiplied.
fn steps(directions: usize, shape: [usize; 2], seed: u64, factor: f32) -> Vec<Vec<f32>> {
    let found = World::thread().run(RANKS, move |group| {
        let mut hook = PowerSgd::new(directions).unwrap();
        let step = |step: usize| {
            let seed = seed.wrapping_add((1000 * step + group.rank()) as u64 * 1_000_003);
            let gradients = (0..shape[0] * shape[1]).map(|at| factor * number(seed, at)).collect();
            reduce(&mut hook, gradients, shape, &group)
        };
        (0..3).map(step).collect::<Vec<_>>()
    });
    assert!(found.iter().all(|rank| *rank == found[0]));
    found.into_iter().next().unwrap()
}

/// How far `found` is from `expected`, as a part of it: in f64, where no square leaves the range.
fn apart(found: &[f32], expected: impl Fn(usize) -> f64) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let differences = norm(&mut found.iter().zip(0..).map(|(&x, at)| f64::from(x) - expected(at)));
    differences / norm(&mut (0..found.len()).map(expected))
}

/// How far from the sum each of four steps ends, for gradients of one direction that are about as large as `size`.
fn of_one_direction(shape: [usize; 2], size: f32, seed: u64) -> Vec<f64> {
    let found = World::thread().run(RANKS, move |group| {
        let mut hook = PowerSgd::new(1).unwrap();
        let side = |at: usize| 1.0 + 0.5 * number(seed, at);
        let of = |at: usize| (side(at / shape[1]), side(shape[0] + at % shape[1]));
        let mine = (1 + group.rank()) as f32 * size;
        let step = |_| {
            let gradients = (0..shape[0] * shape[1]).map(|at| of(at).0 * of(at).1 * mine).collect();
            let found = reduce(&mut hook, gradients, shape, &group);
            apart(&found, |at| f64::from(of(at).0) * f64::from(of(at).1) * 3.0 * f64::from(size))
        };
        (0..4).map(step).collect::<Vec<_>>()
    });
    found.into_iter().next().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_a_power_of_two_as_large_comes_to_as_much(
        directions in 1..4usize,
        shape in [24..60usize, 24..60usize],
        seed: u64,
        exponent in -80..=80i32,
    ) {
        let seed = seed / 2;
        let factor = 2f32.powi(exponent);
        let expected = steps(directions, shape, seed, 1.0);
        let found = steps(directions, shape, seed, factor);
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let same = found.iter().zip(expected).all(|(x, y)| x.to_bits() == (y * factor).to_bits());
            prop_assert!(same, "step {step}: {:?}, not {:?}", &found[..4], &expected[..4]);
        }
    }

    #[test]
    fn one_direction_arrives_whole_at_any_size(
        shape in [24..60usize, 24..60usize],
        seed in 0..u64::MAX / 2,
        exponent in -28.0..34.0f32,
    ) {
        let found = of_one_direction(shape, 10f32.powf(exponent), seed);
        // The first step has a random direction, in which by chance lies little of the gradient, and the second makes up for it.
        prop_assert!(found[2..].iter().all(|&apart| apart < 1e-5), "10^{exponent}: {found:?}");
    }
}

#[test]
fn large_matrices_arrive_whole_at_any_size() {
    for size in [1e-28, 1e-16, 1e-14, 1.0, 1e7, 1e8, 1e16, 1e32] {
        let found = of_one_direction([512, 512], size, 7);
        assert!(found.iter().all(|&apart| apart < 1e-5), "{size:e}: {found:?}");
    }
}
