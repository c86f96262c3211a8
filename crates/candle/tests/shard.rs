//! A model that is dealt out trains as one that is not, over every transport.

mod common;

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};
use candle_nn::{Init, Linear, Module, Optimizer, SGD, VarBuilder, VarMap};
use common::{SAMPLES, on_ranks, wave, worlds};
use phalanx::{ProcessGroup, chunk};
use phalanx_candle::checkpoint::{Checkpoint, Checkpoints, State, load_vars, save_vars};
use phalanx_candle::{
    AdamW, DdpConfig, DistributedDataParallel, Error, Overlap, ShardConfig, Sharded, Share, Stage, Unit,
    Units, clip_grad_norm,
};
use std::ops::Range;
use std::path::Path;

const STAGES: [Stage; 3] = [Stage::Optimizer, Stage::Gradients, Stage::Weights];

/// A residual network: an embedding that stays and is the output layer too, and layers that can be units.
struct Deep<L> {
    embedding: Tensor,
    layers: Vec<L>,
}

impl<L: Module> Deep<L> {
    fn new(vb: VarBuilder<'_>, layer: impl Fn(VarBuilder<'_>) -> Result<L>) -> Result<Self> {
        let embedding = vb.get_with_hints((7, 5), "embedding", Init::Const(0.5))?;
        let layers = (0..3).map(|i| layer(vb.pp(i))).collect::<Result<_>>()?;
        Ok(Self { embedding, layers })
    }

    fn loss(&self, rows: Range<usize>) -> Result<Tensor> {
        let dtype = self.embedding.dtype();
        let take = |width, salt, dtype| {
            wave(&[SAMPLES, width], salt).narrow(0, rows.start, rows.len())?.to_dtype(dtype)
        };
        let mut x = take(7, 1.0, dtype)?.matmul(&self.embedding)?;
        for layer in &self.layers {
            x = (&x + layer.forward(&x)?.tanh()?)?;
        }
        let found = x.matmul(&self.embedding.t()?)?.to_dtype(DType::F32)?;
        candle_nn::loss::mse(&found, &take(7, 2.0, DType::F32)?)
    }
}

fn linear(vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear(5, 5, vb)
}

/// The same weights each time.
fn start() -> VarMap {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    Deep::new(vb, linear).unwrap();
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let salt = name.bytes().map(f64::from).sum();
        var.set(&(wave(var.dims(), salt) * 0.7).unwrap().to_dtype(DType::F32).unwrap()).unwrap();
    }
    varmap
}

fn plain(group: &ProcessGroup, dtype: DType) -> (VarMap, DistributedDataParallel<Deep<Linear>>) {
    let (varmap, config) = (start(), DdpConfig::default().overlap(Overlap::On));
    let ddp = DistributedDataParallel::build(&varmap, dtype, group, config, |vb| Deep::new(vb, linear));
    (varmap, ddp.unwrap())
}

fn config(stage: Stage, overlap: Overlap) -> ShardConfig {
    ShardConfig::default().stage(stage).overlap(overlap).bucket_cap_bytes(150)
}

fn sharded(group: &ProcessGroup, dtype: DType, config: ShardConfig) -> Sharded<Deep<Unit<Linear>>> {
    let model = |units: &Units, vb: VarBuilder<'_>| Deep::new(vb, |vb| units.unit(vb, linear));
    let zero = Sharded::build(dtype, group, config, model).unwrap();
    zero.import(&start()).unwrap();
    zero
}

/// Every stage, with and without overlap.
fn configs() -> impl Iterator<Item = ShardConfig> {
    STAGES.into_iter().flat_map(|stage| [Overlap::Off, Overlap::On].map(|overlap| config(stage, overlap)))
}

fn value(loss: &Tensor) -> f32 {
    loss.to_scalar().unwrap()
}

/// The bits of all weights, by name, on rank 0.
fn bits(varmap: Option<VarMap>) -> Vec<(String, Vec<u32>)> {
    let varmap = varmap.unwrap_or_else(VarMap::new);
    let data = varmap.data().lock().unwrap();
    let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let mut all: Vec<_> = data
        .iter()
        .map(|(name, var)| (name.clone(), values(var).into_iter().map(f32::to_bits).collect()))
        .collect();
    all.sort();
    all
}

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
                    for _ in 0..6 {
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

/// The gradients of all shards, end to end in order, as all ranks have them together.
fn gradients<M>(zero: &Sharded<M>, grads: &GradStore, group: &ProcessGroup) -> Vec<f32> {
    let mut all = Vec::new();
    for shard in zero.shards() {
        let grad = grads.get(&shard).unwrap();
        all.extend(phalanx_candle::all_gather(group, grad).unwrap().to_vec1::<f32>().unwrap());
    }
    all
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
                assert!(
                    error.to_string().contains("either all losses of a step have equal shares"),
                    "{error}"
                );
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

/// Two layers, of which ranks use what they like.
fn pair(units: &Units, vb: VarBuilder<'_>) -> Result<[Unit<Linear>; 2]> {
    let unit = |name| units.unit(vb.pp(name), |vb| candle_nn::linear(2, 2, vb));
    Ok([unit("a")?, unit("b")?])
}

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
