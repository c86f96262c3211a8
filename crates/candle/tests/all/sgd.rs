//! Gradient descent is candle's where candle has it, to the last bit, and the formula of PyTorch's documentation by candle's operations elsewhere.

use crate::common::deep::{self, configs, plain, sharded};
use crate::common::{SAMPLES, everywhere};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, SGD, VarMap};
use phalanx::chunk;
use phalanx_candle::checkpoint::{Checkpoints, State};
use phalanx_candle::{Sgd, SgdParams};

/// Zeros of both signs, and every size of number.
fn numbers(step: usize, dtype: DType) -> Tensor {
    let number = |i: usize| match (i + step) % 7 {
        0 => 0.0f64,
        1 => -0.0,
        at => ((i * 31 + step * 17) as f64).sin() * 10f64.powi(at as i32 - 5),
    };
    let all: Vec<f64> = (0..600).map(number).collect();
    Tensor::from_vec(all, (20, 30), &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let wide: Vec<f64> = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
    wide.into_iter().map(f64::to_bits).collect()
}

/// One variable of a `VarMap`, and an optimizer of it.
fn one(dtype: DType, params: SgdParams) -> (Var, Sgd) {
    let (varmap, var) = (VarMap::new(), Var::from_tensor(&numbers(0, dtype)).unwrap());
    varmap.data().lock().unwrap().insert("w".into(), var.clone());
    (var, Sgd::new(&varmap, params).unwrap())
}

fn gradient(var: &Var, grad: Tensor) -> GradStore {
    let mut grads = GradStore::default();
    grads.insert(var, grad);
    grads
}

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

#[test]
fn without_momentum_every_bit_is_that_of_candle() {
    for dtype in DTYPES {
        let (ours, mut our) = one(dtype, SgdParams { lr: 0.03, ..Default::default() });
        let theirs = Var::from_tensor(&numbers(0, dtype)).unwrap();
        let mut their = SGD::new(vec![theirs.clone()], 0.03).unwrap();
        for step in 1..20 {
            let mut grad = numbers(step, dtype);
            if step % 3 == 0 {
                // In another layout than the variable's.
                grad = grad.t().unwrap().contiguous().unwrap().t().unwrap();
            }
            if step == 7 {
                our.step(&GradStore::default()).unwrap();
                continue;
            }
            our.step(&gradient(&ours, grad.clone())).unwrap();
            their.step(&gradient(&theirs, grad)).unwrap();
            assert_eq!(bits(&ours), bits(&theirs), "{dtype:?}, step {step}");
        }
    }
}

#[test]
fn with_momentum_every_bit_is_that_of_candles_operations() {
    let heavy = SgdParams { lr: 0.03, momentum: 0.9, ..Default::default() };
    for params in [
        heavy,
        SgdParams { nesterov: true, ..heavy },
        SgdParams { dampening: 0.25, weight_decay: 0.01, ..heavy },
    ] {
        for dtype in DTYPES {
            let (ours, mut our) = one(dtype, params);
            let mut weight = numbers(0, dtype);
            let mut velocity: Option<Tensor> = None;
            for step in 1..10 {
                let grad = numbers(step, dtype);
                our.step(&gradient(&ours, grad.clone())).unwrap();
                let formula = || -> candle_core::Result<(Tensor, Tensor)> {
                    let mut grad = grad;
                    if params.weight_decay != 0.0 {
                        grad = (&grad + (&weight * params.weight_decay)?)?;
                    }
                    let velocity = match &velocity {
                        None => grad.clone(),
                        Some(velocity) => {
                            ((velocity * params.momentum)? + (&grad * (1.0 - params.dampening))?)?
                        }
                    };
                    let change = if params.nesterov {
                        (grad + (&velocity * params.momentum)?)?
                    } else {
                        velocity.clone()
                    };
                    Ok(((&weight - (change * params.lr)?)?, velocity))
                };
                let (next, kept) = formula().unwrap();
                (weight, velocity) = (next, Some(kept));
                assert_eq!(bits(&ours), bits(&weight), "{params:?}, {dtype:?}, step {step}");
            }
        }
    }
}

#[test]
fn a_training_goes_on_from_a_checkpoint_with_its_velocities() {
    let folder = tempfile::tempdir().unwrap();
    let params = SgdParams { lr: 0.1, momentum: 0.9, ..Default::default() };
    let [group] = &phalanx::threads(1)[..] else { unreachable!("one") };
    let (var, mut sgd) = one(DType::F32, params);
    let step = |var: &Var, sgd: &mut Sgd, at| sgd.step(&gradient(var, numbers(at, DType::F32))).unwrap();
    step(&var, &mut sgd, 1);
    let saved = var.copy().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path(), group).unwrap();
    let mut state = State::new();
    state.add("optimizer", &sgd).unwrap();
    checkpoints.save(1, state).unwrap();
    step(&var, &mut sgd, 2);

    let (other, mut anew) = one(DType::F32, params);
    other.set(&saved).unwrap();
    checkpoints.latest_good().unwrap().unwrap().restore("optimizer", &mut anew).unwrap();
    step(&other, &mut anew, 2);
    assert_eq!(bits(&other), bits(&var));
}

/// Of a model that is dealt out it makes the steps that it makes of the whole.
#[test]
fn shards_are_moved_as_the_whole_model_is() {
    let params = SgdParams { lr: 0.3, momentum: 0.9, nesterov: true, ..Default::default() };
    everywhere(2, move |group| {
        let mine = chunk(group.rank(), 2, SAMPLES);
        let (varmap, ddp) = plain(&group, DType::F32);
        let mut sgd = Sgd::new(&varmap, params).unwrap();
        for _ in 0..4 {
            let loss = ddp.forward(|model| model.loss(mine.clone())).unwrap();
            sgd.step(&ddp.backward(&loss).unwrap()).unwrap();
        }
        let expected = deep::bits(Some(varmap));
        for config in configs() {
            let zero = sharded(&group, DType::F32, config);
            let mut sgd = Sgd::sharded(&zero, params).unwrap();
            for _ in 0..4 {
                let loss = zero.forward(|model| model.loss(mine.clone())).unwrap();
                sgd.step(&zero.backward(&loss).unwrap()).unwrap();
            }
            let error = sgd.sync(&group, 0).unwrap_err().to_string();
            assert!(error.contains("SGD of shards cannot be copied to other ranks"), "{error}");
            let found = deep::bits(zero.export(0).unwrap());
            assert!(group.rank() != 0 || found == expected, "{config:?}, {}", group.describe());
        }
    });
}
