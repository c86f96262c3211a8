//! Gradients that are sent during the backward pass are those that are sent after it.

use crate::common::{MODES, Net, SAMPLES, gradients, net, weights, worlds};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, Var};
use candle_nn::{Init, Optimizer, SGD, VarBuilder, VarMap};
use phalanx::chunk;
use phalanx_candle::{DdpConfig, DistributedDataParallel, Error, Overlap};

#[test]
fn overlap_changes_no_bit() {
    for world in worlds() {
        for world_size in 1..=4 {
            for cap in [0, 100, 1 << 20] {
                let found = world.run(world_size, move |group| {
                    let mine = chunk(group.rank(), world_size, SAMPLES);
                    let steps = MODES.map(|mode| {
                        let (varmap, ddp) = net(&group, mode, cap);
                        assert_eq!(ddp.overlaps(), mode == Overlap::On && world_size > 1);
                        let mut optimizer = SGD::new(varmap.all_vars(), 0.5).unwrap();
                        let mut seen = Vec::new();
                        for _ in 0..3 {
                            let loss = ddp.forward(|net| net.loss(mine.clone())).unwrap();
                            let grads = ddp.backward(&loss).unwrap();
                            seen.push(gradients(&varmap, &grads));
                            optimizer.step(&grads).unwrap();
                            seen.push(weights(&varmap));
                        }
                        seen
                    });
                    assert_eq!(steps[0], steps[1], "{}, {world_size} ranks, {cap} bytes", group.describe());
                    assert_ne!(steps[0][0], steps[0][2], "the forward pass sees the new weights");
                    steps
                });
                assert!(found.iter().all(|rank| *rank == found[0]), "same bits on every rank");
            }
        }
    }
}

#[test]
fn overlap_finds_what_one_process_finds() {
    let alone = |steps: usize| {
        let varmap = VarMap::new();
        let model = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu), &varmap).unwrap();
        let mut optimizer = SGD::new(varmap.all_vars(), 0.5).unwrap();
        let step = |_| {
            let loss = model.loss(0..SAMPLES).unwrap();
            optimizer.step(&loss.backward().unwrap()).unwrap();
            loss.to_scalar::<f32>().unwrap()
        };
        (0..steps).map(step).collect::<Vec<_>>()
    };
    let expected = alone(20);
    for world in worlds() {
        let expected = expected.clone();
        world.run(3, move |group| {
            let (varmap, ddp) = net(&group, Overlap::On, 100);
            let mut optimizer = SGD::new(varmap.all_vars(), 0.5).unwrap();
            for expected in &expected {
                let whole = ddp.forward(|net| net.loss(0..SAMPLES)).unwrap().to_scalar::<f32>().unwrap();
                assert!((whole - expected).abs() < 1e-5, "{whole} is not {expected}");
                let loss = ddp.forward(|net| net.loss(chunk(group.rank(), 3, SAMPLES))).unwrap();
                optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
            }
        });
    }
}

#[test]
fn whatever_changes_the_weights_the_next_forward_pass_sees_it() {
    worlds()[0].run(2, |group| {
        let (varmap, ddp) = net(&group, Overlap::On, 100);
        let loss = || ddp.forward(|net| net.loss(0..SAMPLES)).unwrap().to_scalar::<f32>().unwrap();
        let before = loss();
        for var in varmap.all_vars() {
            var.zero_set().unwrap();
        }
        assert_ne!(loss(), before);
    });
}

/// An embedding that is the output layer, too.
fn tied(vb: VarBuilder<'_>) -> candle_core::Result<[Tensor; 2]> {
    let take = || vb.get_with_hints((6, 4), "embedding", Init::Const(0.5));
    Ok([take()?, take()?])
}

#[test]
fn tied_weights_have_one_gradient() {
    for world in worlds() {
        let found = world.run(2, |group| {
            MODES.map(|mode| {
                let varmap = VarMap::new();
                let config = DdpConfig::default().overlap(mode);
                let ddp = DistributedDataParallel::build(&varmap, DType::F32, &group, config, tied).unwrap();
                let token = Tensor::new(&[group.rank() as u32], &Device::Cpu).unwrap();
                let loss = ddp
                    .forward(|[from, to]| from.index_select(&token, 0)?.matmul(&to.t()?)?.sqr()?.sum_all());
                gradients(&varmap, &ddp.backward(&loss.unwrap()).unwrap())
            })
        });
        // Of the output 1 each, on both ranks; of the input 6 for the row of one's own token.
        let expected = [4f32, 4.0, 1.0, 1.0, 1.0, 1.0].map(|x| [x.to_bits(); 4]).concat();
        assert!(found.iter().flatten().all(|grads| *grads == [Some(expected.clone())]), "{found:?}");
    }
}

/// Copies, and refuses to go back.
struct Broken;

impl CustomOp1 for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }
}

#[test]
fn a_backward_pass_that_fails_on_one_rank_ends_the_step_on_all() {
    for world in worlds() {
        world.run(2, |group| {
            let varmap = VarMap::new();
            let config = DdpConfig::default().bucket_cap_bytes(0).overlap(Overlap::On);
            let build = |vb: VarBuilder<'_>| Ok([vb.get(4, "a")?, vb.get(4, "b")?]);
            let ddp = DistributedDataParallel::build(&varmap, DType::F32, &group, config, build).unwrap();
            let loss = ddp.forward(|[a, b]| {
                let a = if group.rank() == 1 { a.apply_op1(Broken)? } else { a.clone() };
                (a * b)?.sum_all()
            });
            let error = ddp.backward(&loss.unwrap()).unwrap_err();
            if group.rank() == 1 {
                assert!(matches!(error, Error::Candle(_)), "{error}");
            } else {
                // Or by that, if it came between two operations.
                let Error::Group(phalanx::Error::Aborted { .. } | phalanx::Error::Poisoned { .. }) = &error
                else {
                    panic!("{error:?}")
                };
                assert!(error.to_string().contains("rank 1"), "{error}");
                assert!(error.to_string().contains("its backward pass failed: "), "{error}");
            }
        });
    }
}

#[test]
fn what_was_accumulated_is_gone_with_a_backward_pass_that_fails() {
    worlds()[0].run(2, |group| {
        let varmap = VarMap::new();
        let config = DdpConfig::default().overlap(Overlap::Off);
        // Of copies in 16 bits gradients are heard of one after the other.
        let build = |vb: VarBuilder<'_>| Ok([vb.get(4, "a")?, vb.get(4, "b")?]);
        let ddp = DistributedDataParallel::build(&varmap, DType::BF16, &group, config, build).unwrap();
        let own = Var::ones(4, DType::BF16, &Device::Cpu).unwrap(); // not the model's
        // Whichever comes first is in the step when the other fails.
        for broken in 0..2 {
            let loss = ddp.forward(|[a, b]| (((a + b)? + own.as_tensor())? * 8.0)?.sum_all());
            ddp.accumulate(&loss.unwrap()).unwrap();
            let loss = ddp.forward(|model| {
                let mut model = model.clone();
                model[broken] = model[broken].apply_op1(Broken)?;
                (&model[0] + &model[1])?.sum_all()
            });
            ddp.backward(&loss.unwrap()).unwrap_err();
            let loss = ddp.forward(|[a, b]| (a + b)?.sum_all());
            let grads = ddp.backward(&loss.unwrap()).unwrap();
            assert_eq!(gradients(&varmap, &grads), vec![Some(vec![1f32.to_bits(); 4]); 2]);
            assert!(grads.get(&own).is_none());
        }
    });
}

#[test]
fn a_backward_pass_that_is_not_ours_gives_candles_gradients() {
    worlds()[0].run(2, |group| {
        let (varmap, ddp) = net(&group, Overlap::On, 100);
        let loss = ddp.forward(|net| net.loss(0..SAMPLES)).unwrap();
        let own = gradients(&varmap, &loss.backward().unwrap());
        assert_eq!(own, gradients(&varmap, &ddp.backward(&loss).unwrap()), "a mean of equals");
    });
}

#[test]
fn only_a_model_that_we_build_can_overlap() {
    worlds()[0].run(1, |group| {
        let config = DdpConfig::default().overlap(Overlap::On);
        let error = DistributedDataParallel::new(&VarMap::new(), &group, config).unwrap_err();
        assert!(error.to_string().contains("let `build` make it"), "{error}");
    });
}

#[test]
fn two_uses_of_a_variable_have_one_type() {
    worlds()[0].run(2, |group| {
        let config = DdpConfig::default().overlap(Overlap::On);
        let varmap = VarMap::new();
        let model = |vb: VarBuilder<'_>| Ok((vb.get(4, "a")?, vb.to_dtype(DType::F16).get(4, "a")?));
        let built = DistributedDataParallel::build(&varmap, DType::F32, &group, config, model);
        let error = built.map(drop).unwrap_err().to_string();
        assert!(error.contains("`a` is used as F16 here and as F32 elsewhere"), "{error}");
    });
}

#[test]
fn a_variable_that_is_used_beside_its_copy_is_named() {
    for world in worlds() {
        world.run(2, |group| {
            let varmap = VarMap::new();
            let config = DdpConfig::default().overlap(Overlap::On);
            let build = |vb: VarBuilder<'_>| vb.get(4, "a");
            let step = || {
                let ddp = DistributedDataParallel::build(&varmap, DType::F32, &group, config, build)?;
                let own = varmap.all_vars().remove(0);
                ddp.backward(&ddp.forward(|a| (a * own.as_tensor())?.sum_all())?)
            };
            // On the rank that finds it first, and, with its words, on the other, however far that is.
            let error = step().unwrap_err().to_string();
            assert!(error.contains("`a` has a second gradient in this step"), "{error}");
        });
    }
}
