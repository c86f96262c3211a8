//! A model that is dealt out trains as one that is not, over every transport.

use crate::common::deep::{STAGES, bits, config, configs, gradients, pair, plain, sharded, start, value};
use crate::common::{SAMPLES, on_ranks, worlds};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Init, Module, Optimizer, SGD, VarBuilder, VarMap};
use phalanx::{ProcessGroup, chunk};
use phalanx_candle::checkpoint::{Checkpoint, Checkpoints, State, load_vars, save_vars};
use phalanx_candle::{AdamW, Error, LossScaler, Overlap, Sharded, Share, Stage, Units, clip_grad_norm};
use std::ops::Range;
use std::path::Path;

enum Any {
    Sgd(SGD),
    AdamW(candle_nn::AdamW),
}

impl Any {
    fn new(adam: bool, vars: Vec<candle_core::Var>) -> Self {
        let params = candle_nn::ParamsAdamW { lr: 0.01, ..Default::default() };
        match adam {
            true => Self::AdamW(candle_nn::AdamW::new(vars, params).unwrap()),
            false => Self::Sgd(SGD::new(vars, 0.3).unwrap()),
        }
    }

    fn step(&mut self, grads: &GradStore) {
        match self {
            Self::Sgd(sgd) => sgd.step(grads).unwrap(),
            Self::AdamW(adam) => adam.step(grads).unwrap(),
        }
    }
}

#[test]
fn the_loss_curve_is_that_of_ddp() {
    for world in worlds() {
        for world_size in 1..=4 {
            world.run(world_size, move |group| {
                let mine = chunk(group.rank(), world_size, SAMPLES);
                for adam in [false, true] {
                    let (varmap, ddp) = plain(&group, DType::F32);
                    let mut optimizer = Any::new(adam, varmap.all_vars());
                    let mut curve = Vec::new();
                    for _ in 0..4 {
                        let loss = ddp.forward(|model| model.loss(mine.clone())).unwrap();
                        curve.push(value(&loss));
                        optimizer.step(&ddp.backward(&loss).unwrap());
                    }
                    let expected = bits(Some(varmap));
                    for config in configs() {
                        let zero = sharded(&group, DType::F32, config);
                        let mut optimizer = Any::new(adam, zero.shards());
                        for (step, &expected) in curve.iter().enumerate() {
                            let loss = zero.forward(|model| model.loss(mine.clone())).unwrap();
                            let found = value(&loss);
                            let what = format!("step {step} of {config:?}, {}", group.describe());
                            assert!(
                                (found / expected - 1.0).abs() < 1e-4,
                                "{found} is not {expected}: {what}"
                            );
                            optimizer.step(&zero.backward(&loss).unwrap());
                        }
                        let found = bits(zero.export(0).unwrap());
                        // With more ranks sums are made in another order.
                        if group.rank() == 0 && world_size <= 2 {
                            assert_eq!(found, expected, "{config:?}, {}", group.describe());
                        }
                    }
                }
            });
        }
    }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn accumulated_and_uneven_batches_come_to_what_ddp_finds() {
    for world in worlds() {
        world.run(3, |group| {
            // Of 12 samples: 2, 3 and 7, in two batches each.
            let mine = [0..2, 2..5, 5..12][group.rank()].clone();
            let (first, rest) = (mine.start..mine.start + 1, mine.start + 1..mine.end);
            let (varmap, ddp) = plain(&group, DType::F32);
            let share = |rows: &Range<usize>| Share::new(rows.len(), SAMPLES);
            let whole = ddp.forward(|model| model.loss(mine.clone())).unwrap();
            let mut grads = ddp.backward_share(&whole, share(&mine)).unwrap();
            let expected = clip_grad_norm(&varmap, &mut grads, 0.01).unwrap();
            for config in configs() {
                let zero = sharded(&group, DType::F32, config);
                for _ in 0..2 {
                    let loss = |rows: &Range<usize>| zero.forward(|model| model.loss(rows.clone())).unwrap();
                    zero.accumulate(&loss(&first), share(&first)).unwrap();
                    let mut grads = zero.backward_share(&loss(&rest), share(&rest)).unwrap();
                    let before = norm(&gradients(&zero, &grads, &group));
                    let found = zero.clip_grad_norm(&mut grads, 0.01).unwrap();
                    assert!((found / expected - 1.0).abs() < 1e-5, "{found} is not {expected}: {config:?}");
                    assert!((found / before - 1.0).abs() < 1e-5, "{found} is not {before}: {config:?}");
                    let after = norm(&gradients(&zero, &grads, &group));
                    assert!((after / 0.01 - 1.0).abs() < 1e-5, "{after}");
                }
                let loss = zero.forward(|model| model.loss(mine.clone())).unwrap();
                zero.accumulate(&loss, share(&mine)).unwrap();
                let error = zero.backward(&loss).unwrap_err();
                assert!(error.to_string().contains("some losses of this step have equal shares"), "{error}");
            }
        });
    }
}

#[test]
fn shares_that_do_not_make_one_batch_are_refused_on_all_ranks() {
    for world in worlds() {
        world.run(3, |group| {
            for config in configs() {
                let zero = sharded(&group, DType::F32, config);
                let loss = || zero.forward(|model| model.loss(0..4)).unwrap();
                let refused = |share: Share, says: &str| {
                    let error = zero.backward_share(&loss(), share).unwrap_err();
                    assert!(matches!(error, Error::ShareMismatch { .. }), "{error}");
                    assert!(error.to_string().contains(says), "{error}");
                };
                refused(
                    Share::new(4, 4),
                    "together they have 12 samples of a global batch of 4 (ranks 0 to 2: 4 of 4 samples each)",
                );
                refused(Share::new(2, 4 + 2 * group.rank()), "the ranks do not agree on the size of the global batch");
                // Of several losses: of one batch together, or each of its own; what was refused is forgotten.
                for (first, last) in [((1, 12), (3, 12)), ((1, 3), (4, 12))] {
                    zero.accumulate(&loss(), Share::new(first.0, first.1)).unwrap();
                    zero.backward_share(&loss(), Share::new(last.0, last.1)).unwrap();
                }
                zero.accumulate(&loss(), Share::new(4, 4)).unwrap();
                refused(Share::new(4, 4), "(ranks 0 to 2: 8 of 4 samples, in 2 losses each)");
                zero.backward(&loss()).unwrap();
            }
        });
    }
}

#[test]
fn sixteen_bits_are_added_to_weights_of_32() {
    for world in worlds() {
        world.run(2, |group| {
            let mine = chunk(group.rank(), 2, SAMPLES);
            let (varmap, ddp) = plain(&group, DType::BF16);
            let mut optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
            for _ in 0..4 {
                let loss = ddp.forward(|model| model.loss(mine.clone())).unwrap();
                optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
            }
            let expected = bits(Some(varmap));
            for config in configs() {
                let zero = sharded(&group, DType::BF16, config);
                assert!(zero.shards().iter().all(|shard| shard.dtype() == DType::F32));
                let mut optimizer = SGD::new(zero.shards(), 0.1).unwrap();
                for _ in 0..4 {
                    let loss = zero.forward(|model| model.loss(mine.clone())).unwrap();
                    optimizer.step(&zero.backward(&loss).unwrap()).unwrap();
                }
                let found = bits(zero.export(0).unwrap());
                assert!(group.rank() != 0 || found == expected, "{config:?}");
            }
        });
    }
}

#[test]
fn an_overflow_in_the_shard_of_one_rank_is_one_for_all() {
    for config in configs() {
        on_ranks(2, |group| {
            let zero = Sharded::build(DType::F16, &group, config, pair).unwrap();
            let x = Tensor::ones((1, 2), DType::F16, &Device::Cpu).unwrap();
            let mut scaler = LossScaler::new(65536.0).unwrap();
            let mut steps = Vec::new();
            // Times the first scale that is more than there is in 16 bits.
            let factors = Tensor::new(&[[0f32, 1.5]], &Device::Cpu).unwrap();
            for _ in 0..2 {
                let loss = zero
                    .forward(|[_, b]| (b.forward(&x)?.to_dtype(DType::F32)? * &factors)?.sum_all())
                    .unwrap();
                let mut grads = zero.backward(&scaler.scale(&loss).unwrap()).unwrap();
                let is_good = zero.unscale(&mut scaler, &mut grads).unwrap();
                let last = zero.shards().pop().unwrap();
                let last = phalanx_candle::all_gather(&group, grads.get(&last).unwrap()).unwrap();
                steps.push((is_good, scaler.factor(), last.to_vec1::<f32>().unwrap().pop().unwrap()));
            }
            assert!(!steps[0].0, "{config:?}: {steps:?}");
            assert_eq!(steps[1], (true, 32768.0, 1.5), "{config:?}");
        });
    }
}

#[test]
fn a_rank_without_samples_counts_for_nothing() {
    for world in worlds() {
        world.run(2, |group| {
            let x = if group.rank() == 0 { 1.0f32 } else { f32::NAN };
            let x = Tensor::full(x, (1, 2), &Device::Cpu).unwrap();
            for config in configs() {
                let zero = Sharded::build(DType::F32, &group, config, pair).unwrap();
                let loss = zero.forward(|[a, b]| (a.forward(&x)? + b.forward(&x)?)?.sum_all()).unwrap();
                let share = Share::new(1 - group.rank(), 1);
                let grads = zero.backward_share(&loss, share).unwrap();
                assert_eq!(gradients(&zero, &grads, &group), [1.0; 12], "{config:?}");
            }
        });
    }
}

#[test]
fn buffers_begin_equal_are_each_ranks_own_and_become_equal_again() {
    for world in worlds() {
        world.run(3, |group| {
            let random = Init::Randn { mean: 0.0, stdev: 1.0 };
            let model = |_: &Units, vb: VarBuilder<'_>| {
                Ok([vb.get(2, "weight")?, vb.get_with_hints(2, "running_mean", random)?])
            };
            let zero =
                Sharded::build(DType::F32, &group, config(Stage::Weights, Overlap::Off), model).unwrap();
            let mean = zero.forward(|[_, mean]| Var::from_tensor(mean)).unwrap();
            let all = || {
                let all = phalanx_candle::all_gather(&group, &mean).unwrap();
                all.reshape((3, 2)).unwrap().to_vec2::<f32>().unwrap()
            };
            let begun = all();
            assert!(begun.iter().all(|mean| *mean == begun[0] && mean[0] != 0.0), "{begun:?}");
            mean.set(&Tensor::full(group.rank() as f32, 2, &Device::Cpu).unwrap()).unwrap();
            assert_eq!(all(), [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]);
            zero.sync_buffers(1).unwrap();
            assert_eq!(all(), [[1.0, 1.0]; 3]);
            let exported = bits(zero.export(2).unwrap());
            let names: Vec<_> = exported.iter().map(|(name, _)| name.as_str()).collect();
            let expected: &[&str] = if group.rank() == 2 { &["running_mean", "weight"] } else { &[] };
            assert_eq!(names, expected);
        });
    }
}

#[test]
fn a_sharded_model_with_buffers_goes_on_by_ddp_and_the_other_way_round() {
    for stage in STAGES {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(2, |group| {
            let mut checkpoints = Checkpoints::open(folder.path(), &group).unwrap();
            let norm = |_: &Units, vb: VarBuilder<'_>| candle_nn::batch_norm(2, 1e-5, vb.pp("norm"));
            let zero = Sharded::build(DType::F32, &group, config(stage, Overlap::Off), norm).unwrap();
            let sharded = AdamW::sharded(&zero, Default::default()).unwrap();
            let mut state = State::new();
            state.add("optimizer", &sharded).unwrap();
            checkpoints.save(1, state).unwrap();

            let varmap = VarMap::new();
            let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
            candle_nn::batch_norm(2, 1e-5, vb.pp("norm")).unwrap();
            let mut plain = AdamW::new(&varmap, Default::default()).unwrap();
            checkpoints.load(1).unwrap().restore("optimizer", &mut plain).unwrap();
            let mut state = State::new();
            state.add("optimizer", &plain).unwrap();
            checkpoints.save(2, state).unwrap();
            let mut sharded = AdamW::sharded(&zero, Default::default()).unwrap();
            checkpoints.load(2).unwrap().restore("optimizer", &mut sharded).unwrap();
        });
    }
}

#[test]
fn whatever_changes_a_shard_the_next_forward_pass_sees_it() {
    for config in configs() {
        on_ranks(2, |group| {
            let zero = sharded(&group, DType::F32, config);
            let loss = || value(&zero.forward(|model| model.loss(0..SAMPLES)).unwrap());
            let before = loss();
            assert_eq!(loss(), before);
            if group.rank() == 1 {
                zero.shards()[0].zero_set().unwrap();
            }
            let after = loss();
            assert_ne!(after, before);
            let all =
                phalanx_candle::all_gather(&group, &Tensor::new(&[after], &Device::Cpu).unwrap()).unwrap();
            assert_eq!(all.to_vec1::<f32>().unwrap(), [after; 2]);
        });
    }
}

/// Two steps, from the last checkpoint in `folder` if there is one, and then a checkpoint; the weights on rank 0. Plain without a stage.
fn two_steps(group: &ProcessGroup, folder: &Path, stage: Option<Stage>) -> Option<VarMap> {
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let found = checkpoints.latest_good().unwrap();
    let step = found.as_ref().map_or(0, Checkpoint::step) + 2;
    let params = candle_nn::ParamsAdamW { lr: 0.05, ..Default::default() };
    let Some(stage) = stage else {
        let (varmap, ddp) = plain(group, DType::F32);
        let mut optimizer = AdamW::new(&varmap, params).unwrap();
        if let Some(found) = found {
            load_vars(&varmap, "model", &found).unwrap();
            found.restore("optimizer", &mut optimizer).unwrap();
        }
        for _ in 0..2 {
            let loss = ddp.forward(|model| model.loss(0..SAMPLES)).unwrap();
            optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
        }
        let mut state = State::new();
        save_vars(&varmap, "model", &mut state).unwrap();
        state.add("optimizer", &optimizer).unwrap();
        checkpoints.save(step, state).unwrap();
        return Some(varmap);
    };
    let mut zero = sharded(group, DType::F32, config(stage, Overlap::Off));
    let mut optimizer = AdamW::sharded(&zero, params).unwrap();
    if let Some(found) = found {
        found.restore("model", &mut zero).unwrap();
        found.restore("optimizer", &mut optimizer).unwrap();
    }
    for _ in 0..2 {
        let loss = zero.forward(|model| model.loss(0..SAMPLES)).unwrap();
        optimizer.step(&zero.backward(&loss).unwrap()).unwrap();
    }
    let mut state = State::new();
    state.add("model", &zero).unwrap();
    state.add("optimizer", &optimizer).unwrap();
    checkpoints.save(step, state).unwrap();
    zero.export(0).unwrap()
}

#[test]
fn a_checkpoint_is_loaded_by_any_stage_on_any_ranks_and_by_ddp() {
    let jobs = [
        (2, Some(Stage::Weights)),
        (3, Some(Stage::Gradients)),
        (1, None),
        (4, Some(Stage::Optimizer)),
        (3, Some(Stage::Weights)),
    ];
    let train = |stages: &dyn Fn(usize, Option<Stage>) -> (usize, Option<Stage>)| {
        let folder = tempfile::tempdir().unwrap();
        let mut last = None;
        for (ranks, stage) in jobs {
            let (ranks, stage) = stages(ranks, stage);
            last = on_ranks(ranks, |group| two_steps(&group, folder.path(), stage)).swap_remove(0);
        }
        bits(last)
    };
    let expected = train(&|_, _| (1, None));
    let found = train(&|ranks, stage| (ranks, stage));
    assert_ne!(expected, bits(Some(start())));
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        let numbers = |bits: &[u32]| bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>();
        for (found, expected) in numbers(found).into_iter().zip(numbers(expected)) {
            assert!((found - expected).abs() < 1e-4, "{name}: {found} is not {expected}");
        }
    }
}
