//! Gradient descent of `phalanx-train` is candle's, to the last bit, where candle has it.

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use candle_nn::{Optimizer, SGD};
use phalanx_train::SgdParams;

#[test]
fn without_momentum_every_bit_is_that_of_candle() {
    let number = |i: usize, step: usize| match (i + step) % 7 {
        0 => 0.0f32,
        1 => -0.0,
        at => ((i * 31 + step * 17) as f32).sin() * 10f32.powi(at as i32 - 5),
    };
    let numbers = |step: usize| (0..500).map(|i| number(i, step)).collect::<Vec<_>>();
    let mut ours = numbers(0);
    let theirs = Var::from_tensor(&Tensor::new(&ours[..], &Device::Cpu).unwrap()).unwrap();
    let mut sgd = SGD::new(vec![theirs.clone()], 0.03).unwrap();
    let params = SgdParams { lr: 0.03, ..Default::default() };
    for step in 1..20 {
        let grad = numbers(step);
        params.at_step(step == 1).update(&mut ours, &mut [], &grad).unwrap();
        let mut grads = GradStore::default();
        grads.insert(&theirs, Tensor::new(&grad[..], &Device::Cpu).unwrap());
        sgd.step(&grads).unwrap();
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&ours), bits(&theirs.to_vec1().unwrap()), "step {step}");
    }
}
