//! Parts of a model whose weights come and go together: what they let through, what is refused, and what ranks that differ are told.

use crate::common::deep::{STAGES, config, configs, gradients, linear, pair};
use crate::common::{on_ranks, wave, worlds};
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};
use candle_nn::{Module, VarBuilder, VarMap};
use phalanx_candle::{Error, Overlap, ShardConfig, Sharded, Stage, Units};

#[test]
fn what_no_rank_uses_has_no_gradient_and_what_some_use_has_their_share() {
    for world in worlds() {
        world.run(2, |group| {
            let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
            for config in configs() {
                let zero = Sharded::build(DType::F32, &group, config.bucket_cap_bytes(0), pair).unwrap();
                let has = |grads: &GradStore| -> Vec<bool> {
                    zero.shards().iter().map(|shard| grads.get(shard).is_some()).collect()
                };
                let loss = zero.forward(|[a, _]| a.forward(&x)?.sum_all()).unwrap();
                let found = has(&zero.backward(&loss).unwrap());
                let expected: &[bool] =
                    if config.stage == Stage::Weights { &[true, false] } else { &[true, true, false, false] };
                assert_eq!(found, expected, "{config:?}");

                // Both work on both ranks; rank 1 leaves out a bias.
                let loss = zero.forward(|[a, b]| {
                    let x = a.forward(&x)?;
                    b.run(&x, |b, x| match group.rank() {
                        0 => b.forward(x),
                        _ => x.matmul(&b.weight().t()?),
                    })?
                    .sum_all()
                });
                let grads = zero.backward(&loss.unwrap()).unwrap();
                assert!(has(&grads).iter().all(|&has| has), "{config:?}");
                // Four weights and two biases of each, all shards full.
                let all = gradients(&zero, &grads, &group);
                assert_eq!(all[10..], [0.5, 0.5], "{config:?}: {all:?}");
            }
        });
    }
}

#[test]
fn frozen_units_let_gradients_through_and_shared_ones_work_twice() {
    for world in worlds() {
        world.run(2, |group| {
            let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
            let pass = |config: ShardConfig| {
                let zero = Sharded::build(DType::F32, &group, config, pair).unwrap();
                zero.import(&VarMap::new()).unwrap_err();
                for (at, shard) in zero.shards().iter().enumerate() {
                    let salt = (1 + at * 2 + group.rank()) as f64;
                    shard.set(&wave(shard.dims(), salt).to_dtype(DType::F32).unwrap()).unwrap();
                }
                let loss = zero.forward(|[a, b]| {
                    let frozen = |x: &Tensor| b.run(x, |b, x| x.matmul(&b.weight().detach()));
                    a.forward(&frozen(&a.forward(&frozen(&a.forward(&x)?)?)?)?)?.sqr()?.sum_all()
                });
                let grads = zero.backward(&loss.unwrap()).unwrap();
                gradients_of(&zero, &grads)
            };
            // One flat for each unit with either stage.
            let cap = 24;
            let expected = pass(config(Stage::Gradients, Overlap::Off).bucket_cap_bytes(cap));
            for overlap in [Overlap::Off, Overlap::On] {
                assert_eq!(pass(config(Stage::Weights, overlap).bucket_cap_bytes(cap)), expected);
            }
            assert!(expected[0].is_some() && expected[1].is_none(), "{expected:?}");
        });
    }
}

fn gradients_of<M>(zero: &Sharded<M>, grads: &GradStore) -> Vec<Option<Vec<f32>>> {
    zero.shards().iter().map(|shard| Some(grads.get(shard)?.to_vec1().unwrap())).collect()
}

#[test]
fn backward_passes_of_different_orders_mix_nothing_up() {
    for world in worlds() {
        world.run(2, |group| {
            let x = Tensor::new(&[[1.0f32, 2.0]], &Device::Cpu).unwrap();
            for config in configs() {
                let zero = Sharded::build(DType::F32, &group, config.bucket_cap_bytes(24), pair).unwrap();
                let loss = zero.forward(|[a, b]| {
                    let (a, b) = (a.forward(&x)?, (b.forward(&x)? * 10.0)?);
                    // candle goes back to the second operand first.
                    if group.rank() == 0 { a + b } else { b + a }?.sum_all()
                });
                match zero.backward(&loss.unwrap()) {
                    Ok(grads) => {
                        let expected = [1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 10.0, 20.0, 10.0, 20.0, 10.0, 10.0];
                        assert_eq!(gradients(&zero, &grads, &group), expected, "{config:?}");
                        assert!(config.stage < Stage::Weights, "all ranks let their units work in one order");
                    }
                    Err(error) => {
                        assert_eq!(config.stage, Stage::Weights, "{error}");
                        let told = "rank 1 needs the weights of the unit `a` while rank 0 needs those of `b`";
                        assert!(error.to_string().contains(told), "{error}");
                        break; // the group is gone
                    }
                }
            }
        });
    }
}

#[test]
fn ranks_that_let_different_units_work_are_told_which() {
    for world in worlds() {
        world.run(3, |group| {
            let zero =
                Sharded::build(DType::F32, &group, config(Stage::Weights, Overlap::Off), pair).unwrap();
            let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
            let error = zero.forward(|units| units[usize::from(group.rank() == 2)].forward(&x)).unwrap_err();
            let told = "rank 2 needs the weights of the unit `b` while rank 0 needs those of `a`";
            // Whoever sees it first aborts the group, which may reach another rank sooner than the weights do.
            let is_told = matches!(error, Error::UnitMismatch { rank: 2, .. } | Error::Group(_));
            assert!(is_told && error.to_string().contains(told), "{error:?}");
        });
    }
}

/// Copies, and refuses to go back.
struct Broken;

impl CustomOp1 for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }
}

#[test]
fn a_pass_that_fails_on_one_rank_ends_it_on_all() {
    for world in worlds() {
        for backward in [false, true] {
            world.run(2, move |group| {
                let zero = Sharded::build(DType::F32, &group, config(Stage::Weights, Overlap::Off), pair);
                let zero = zero.unwrap();
                let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
                let is_unwell = group.rank() == 1;
                let loss = zero.forward(|[a, b]| {
                    let y = a.forward(&x)?;
                    if is_unwell && !backward {
                        candle_core::bail!("one is unwell")
                    }
                    let y = if is_unwell { y.apply_op1(Broken)? } else { y };
                    b.forward(&y)?.sum_all()
                });
                let error = match loss {
                    Ok(loss) => zero.backward(&loss).unwrap_err(),
                    Err(error) => error,
                };
                let which = if backward { "backward" } else { "forward" };
                if is_unwell {
                    assert!(matches!(error, Error::Candle(_)), "{error}");
                } else {
                    assert!(error.to_string().contains("rank 1"), "{error}");
                    assert!(error.to_string().contains(&format!("its {which} pass failed: ")), "{error}");
                }
            });
        }
    }
}

#[test]
fn units_that_can_not_be_are_refused_by_name() {
    on_ranks(1, |group| {
        let refused = |model: &dyn Fn(&Units, VarBuilder<'_>) -> Result<()>| {
            let config = config(Stage::Weights, Overlap::Off);
            Sharded::build(DType::BF16, &group, config, model).map(drop).unwrap_err().to_string()
        };
        let told =
            refused(&|units, vb| units.unit(vb.pp("out"), |vb| units.unit(vb.pp("in"), linear)).map(drop));
        assert!(
            told.contains("the unit `out.in` is made inside of the unit `out`: make them side by side"),
            "{told}"
        );
        let told = refused(&|units, vb| {
            units.unit(vb.pp("a"), linear)?;
            units.unit(vb.pp("a"), linear).map(drop)
        });
        assert!(told.contains("`a.weight` belongs to a unit and is taken elsewhere, too"), "{told}");
        let told = refused(&|units, vb| {
            units.unit(vb, |vb| Ok((linear(vb.pp("a"))?, linear(vb.to_dtype(DType::F32).pp("b"))?))).map(drop)
        });
        assert!(
            told.contains("has weights of BF16 and, with `b.weight`, of F32: a unit has one type"),
            "{told}"
        );
    });
}

#[test]
fn weights_are_not_to_be_had_outside_of_their_unit() {
    for config in configs().filter(|config| config.stage == Stage::Weights) {
        on_ranks(2, |group| {
            let zero = Sharded::build(DType::F32, &group, config, pair).unwrap();
            let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
            let mut kept = None;
            let loss = zero.forward(|[a, _]| {
                a.run(&x, |a, x| {
                    kept = Some(a.weight().clone());
                    a.forward(x)
                })?
                .sum_all()
            });
            let error = x.matmul(&kept.unwrap()).unwrap_err();
            assert!(error.to_string().contains("F4"), "{error}");
            let error = loss.unwrap().backward().unwrap_err();
            assert!(error.to_string().contains("go through its own `backward`"), "{error}");
        });
    }
}

#[test]
fn models_that_differ_are_named() {
    for stage in STAGES {
        on_ranks(3, |group| {
            let width = 2 + usize::from(group.rank() == 1);
            let model = |units: &Units, vb: VarBuilder<'_>| {
                units.unit(vb.pp("a"), |vb| candle_nn::linear(2, width, vb))
            };
            let error = Sharded::build(DType::F32, &group, config(stage, Overlap::Off), model).unwrap_err();
            assert!(matches!(error, Error::ModelMismatch { rank: 1, .. }), "{error:?}");
            assert!(error.to_string().contains("`a.bias`"), "{error}");
        });
    }
}
