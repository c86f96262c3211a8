//! What can be seen from inside only: whose weights and gradients are in memory when.

use crate::shard::unit::Unit;
use crate::{Overlap, ShardConfig, Sharded, Stage, Units};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use phalanx_testkit::World;
use std::sync::{Arc, Mutex};

const LAYERS: usize = 5;

fn layers(units: &Units, vb: VarBuilder<'_>) -> candle_core::Result<Vec<Unit<Linear>>> {
    (0..LAYERS).map(|i| units.unit(vb.pp(i), |vb| candle_nn::linear(3, 3, vb))).collect()
}

/// Looks at the engine whenever the backward pass comes by.
struct Look<F>(F);

impl<F: Fn()> candle_core::CustomOp1 for Look<F> {
    fn name(&self) -> &'static str {
        "look"
    }

    fn cpu_fwd(
        &self,
        storage: &candle_core::CpuStorage,
        layout: &candle_core::Layout,
    ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.0();
        Ok(Some(grad.clone()))
    }
}

/// Flats whose weights, and whose gradients, are there: in the forward pass before each unit and at the end, then in the backward pass
/// after each unit, and at the end.
fn seen(stage: Stage, overlap: Overlap) -> Vec<[Vec<(usize, usize)>; 3]> {
    World::thread()
        .run(2, move |group| {
            let config = ShardConfig::default().stage(stage).overlap(overlap).bucket_cap_bytes(0);
            let zero = Sharded::build(DType::F32, &group, config, layers).unwrap();
            let x = Tensor::ones((1, 3), DType::F32, &Device::Cpu).unwrap();
            let step = || {
                let seen: Arc<Mutex<Vec<(usize, usize)>>> = Arc::default();
                let handle = zero.handle.clone();
                let look = {
                    let seen = seen.clone();
                    move || {
                        let state = handle.with(|engine| engine.in_memory());
                        seen.lock().unwrap().push(state.unwrap());
                    }
                };
                let taken = || std::mem::take(&mut *seen.lock().unwrap());
                let loss = zero.forward(|layers| {
                    let mut x = x.clone();
                    for layer in layers {
                        look();
                        x = layer.forward(&x.apply_op1(Look(look.clone()))?)?;
                    }
                    x.sum_all()
                });
                look();
                let forward = taken();
                zero.backward(&loss.unwrap()).unwrap();
                let backward = taken();
                look();
                [forward, backward, taken()]
            };
            step();
            step() // by now it is known what comes after what
        })
        .pop()
        .into_iter()
        .collect()
}

#[test]
fn the_weights_of_one_unit_are_there_or_of_two_if_the_next_is_fetched_ahead() {
    let found = seen(Stage::Weights, Overlap::Off);
    // The first layer's input needs no gradient, so the pass does not come by there.
    let expected = [vec![(0, 0); LAYERS + 1], vec![(0, 0); LAYERS - 1], vec![(0, 0)]];
    assert_eq!(found, [expected]);
    let found = seen(Stage::Weights, Overlap::On);
    let ahead = [vec![(1, 0); LAYERS], vec![(0, 0)]].concat();
    assert_eq!(found, [[ahead, vec![(1, 0); LAYERS - 1], vec![(0, 0)]]]);
}

#[test]
fn gradients_are_dealt_out_as_soon_as_they_are_complete_but_with_the_first_stage() {
    let [_, backward, end] = &seen(Stage::Gradients, Overlap::Off)[0];
    assert_eq!((&backward[..], &end[..]), (&[(0, 0); LAYERS - 1][..], &[(0, 0)][..]));
    let [_, backward, end] = &seen(Stage::Optimizer, Overlap::Off)[0];
    // Of each layer a weight and a bias.
    let growing: Vec<_> = (1..LAYERS).map(|layers| (0, 2 * layers)).collect();
    assert_eq!((backward, &end[..]), (&growing, &[(0, 0)][..]));
}

#[test]
fn nothing_is_left_of_a_model_that_is_dropped() {
    World::thread().run(1, |group| {
        let config = ShardConfig::default().stage(Stage::Weights);
        let zero = Sharded::build(DType::F32, &group, config, layers).unwrap();
        let handle = Arc::downgrade(&zero.handle);
        let x = Tensor::ones((1, 3), DType::F32, &Device::Cpu).unwrap();
        let loss = zero.forward(|layers| layers[0].forward(&x)?.sum_all()).unwrap();
        drop(zero);
        assert!(handle.upgrade().is_none());
        assert!(loss.backward().unwrap_err().to_string().contains("the sharded model is gone"));
    });
}
