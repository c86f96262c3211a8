//! Batch normalisation over all ranks' samples is that of one process which has them all.

use crate::common::{MODES, wave, worlds};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{BatchNormConfig, Module, ModuleT, Optimizer, SGD, VarBuilder, VarMap, batch_norm};
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap, Share, SyncBatchNorm, verify_parameters};
use std::ops::Range;

const FEATURES: usize = 3;
/// Which of the nine samples each rank has: one, three, five, none.
const ROWS: [Range<usize>; 4] = [0..1, 1..4, 4..9, 9..9];

/// A weight and a bias that are not what they begin as.
fn prepared(varmap: &VarMap) {
    for (at, name) in ["weight", "bias"].into_iter().enumerate() {
        let data = varmap.data().lock().unwrap();
        let Some(var) = data.get(name) else { continue };
        let values = (wave(var.dims(), at as f64) + 0.5).unwrap();
        var.set(&values.to_dtype(var.dtype()).unwrap()).unwrap();
    }
}

/// What a layer makes of some samples: its output and the gradients of the input, the weight and the bias, then what runs.
fn passed(norm: &impl ModuleT, varmap: &VarMap, x: &Tensor, rows: Range<usize>) -> Vec<Tensor> {
    // The gradient of the output: something without structure, of which these rows are a part.
    let shape = [&[9][..], &x.dims()[1..]].concat();
    let slope = wave(&shape, 7.0).narrow(0, rows.start, rows.len()).unwrap().to_dtype(x.dtype()).unwrap();
    let x = Var::from_tensor(x).unwrap();
    let y = norm.forward_t(&x, true).unwrap();
    let grads = (&y * slope).unwrap().sum_all().unwrap().backward().unwrap();
    let data = varmap.data().lock().unwrap();
    let mut all = vec![y.detach(), grads.get(&x).unwrap().clone()];
    // candle has no gradient of them where there were no samples.
    let gradient = |var: &Var| grads.get(var).cloned().unwrap_or_else(|| var.zeros_like().unwrap());
    all.extend(["weight", "bias"].iter().filter_map(|name| Some(gradient(data.get(*name)?))));
    all.extend(["running_mean", "running_var"].map(|name| data[name].as_detached_tensor().copy().unwrap()));
    all
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64], bar: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart <= bar * largest, "{what}: {apart} of {largest}");
}

fn own_group(group: &ProcessGroup) -> ProcessGroup {
    group.split(Some(0), 0).unwrap().unwrap()
}

#[test]
fn outputs_gradients_and_statistics_are_those_of_one_process() {
    for (dtype, bar) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        for shape in [&[9, FEATURES][..], &[9, FEATURES, 4, 2]] {
            for (affine, remove_mean) in [(true, true), (false, true), (true, false)] {
                let config = BatchNormConfig { affine, remove_mean, momentum: 0.3, eps: 1e-3 };
                let x = (wave(shape, 3.0) * 2.0).unwrap();
                let x = (x + 0.7).unwrap().to_dtype(dtype).unwrap();
                let varmap = VarMap::new();
                let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
                let norm = batch_norm(FEATURES, config, vb).unwrap();
                prepared(&varmap);
                let expected: Vec<_> = passed(&norm, &varmap, &x, 0..9).iter().map(flat).collect();
                let evaluated = flat(&norm.forward_t(&x, false).unwrap());
                for world in worlds() {
                    let (x, expected, evaluated) = (x.clone(), expected.clone(), evaluated.clone());
                    world.run(4, move |group| {
                        let varmap = VarMap::new();
                        let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
                        let norm = SyncBatchNorm::new(FEATURES, config, vb, &own_group(&group)).unwrap();
                        prepared(&varmap);
                        let rows = ROWS[group.rank()].clone();
                        let mine = x.narrow(0, rows.start, rows.len()).unwrap();
                        let found = passed(&norm, &varmap, &mine, rows.clone());
                        assert_eq!(found[0].dims(), mine.dims());
                        assert_eq!(found[1].dims(), mine.dims());

                        let sample: usize = x.dims()[1..].iter().product();
                        let part = rows.start * sample..rows.end * sample;
                        let statistics = found.len() - 2;
                        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                            let what = format!("{dtype:?} {:?}, {config:?}: tensor {at}", x.dims());
                            let mut found = flat(found);
                            if at < 2 {
                                let largest = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                                for (found, expected) in found.iter().zip(&expected[part.clone()]) {
                                    assert!(
                                        (found - expected).abs() <= bar * largest,
                                        "{what}: {found}, {expected}"
                                    );
                                }
                                continue;
                            }
                            if at < statistics {
                                group.all_reduce(&mut found, ReduceOp::Sum).unwrap();
                            }
                            close(&found, expected, bar, &what);
                        }
                        close(&flat(&norm.forward_t(&x, false).unwrap()), &evaluated, bar, "evaluation");
                        verify_parameters(&varmap, &group).unwrap();
                    });
                }
            }
        }
    }
}

#[test]
fn a_mean_that_is_large_beside_the_deviation_takes_nothing_from_the_variance() {
    worlds()[1].run(3, |group| {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F64, &Device::Cpu);
        let config = BatchNormConfig { momentum: 1.0, ..Default::default() };
        let norm = SyncBatchNorm::new(1, config, vb, &group).unwrap();
        // 0 to 8 on all ranks together, each time far away: the squares of these have no room for what is behind their mean.
        let far = [1e8, 1e9, 1e10].map(|far| {
            let mine: Vec<f64> = (0..3).map(|i| far + (3 * i + group.rank()) as f64).collect();
            norm.forward_t(&Tensor::from_vec(mine, (3, 1), &Device::Cpu).unwrap(), true).unwrap();
            (flat(norm.running_mean())[0] - far, flat(norm.running_var())[0])
        });
        assert_eq!(far, [(4.0, 7.5); 3]);
    });
}

/// Two linear layers with normalisation between, in `f64`.
fn model<N: ModuleT>(
    vb: VarBuilder<'_>,
    norm: impl Fn(VarBuilder<'_>) -> candle_core::Result<N>,
) -> candle_core::Result<(candle_nn::Linear, N, candle_nn::Linear, N)> {
    let first = candle_nn::linear(5, 4, vb.pp("first"))?;
    let second = candle_nn::linear(4, 2, vb.pp("second"))?;
    Ok((first, norm(vb.pp("norm"))?, second, norm(vb.pp("out"))?))
}

fn set(varmap: &VarMap) {
    for (name, var) in varmap.data().lock().unwrap().iter().filter(|(name, _)| !name.contains("running")) {
        var.set(&wave(var.dims(), name.len() as f64)).unwrap();
    }
}

/// Mean loss over some of the nine samples.
fn loss<N: ModuleT>(
    (first, norm, second, out): &(candle_nn::Linear, N, candle_nn::Linear, N),
    rows: Range<usize>,
) -> candle_core::Result<Tensor> {
    let x = wave(&[9, 5], 1.0).narrow(0, rows.start, rows.len())?;
    let y = wave(&[9, 4], 2.0).narrow(0, rows.start, rows.len())?;
    let hidden = norm.forward_t(&first.forward(&x)?, true)?.tanh()?;
    // The second normalisation has twice as many values a feature: 4 features are [2, 2].
    let found = second.forward(&hidden)?;
    let found = Tensor::stack(&[&found, &found.sqr()?], 2)?;
    let found = out.forward_t(&found, true)?.flatten_from(1)?;
    candle_nn::loss::mse(&found, &y)
}

fn all(varmap: &VarMap) -> Vec<f64> {
    let data = varmap.data().lock().unwrap();
    let mut names: Vec<_> = data.keys().collect();
    names.sort();
    names.into_iter().flat_map(|name| flat(&data[name])).collect()
}

#[test]
fn ranks_with_uneven_batches_train_as_one_process_does_while_gradients_overlap() {
    let (steps, widths) = (4, [4usize, 2]);
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F64, &Device::Cpu);
    let count = std::cell::Cell::new(0);
    let width = || widths[count.replace(count.get() + 1)];
    let whole = model(vb, |vb| batch_norm(width(), 1e-3, vb)).unwrap();
    set(&varmap);
    let mut optimizer = SGD::new(varmap.all_vars(), 0.3).unwrap();
    for _ in 0..steps {
        optimizer.step(&loss(&whole, 0..9).unwrap().backward().unwrap()).unwrap();
    }
    let expected = all(&varmap);
    for world in worlds() {
        for mode in MODES {
            let expected = expected.clone();
            world.run(4, move |group| {
                let varmap = VarMap::new();
                let config = DdpConfig::default().overlap(mode).bucket_cap_bytes(40);
                let norms = own_group(&group);
                let count = std::cell::Cell::new(0);
                let width = || widths[count.replace(count.get() + 1)];
                let ddp = DistributedDataParallel::build(&varmap, DType::F64, &group, config, |vb| {
                    let built = model(vb, |vb| SyncBatchNorm::new(width(), 1e-3, vb, &norms));
                    set(&varmap);
                    built
                });
                let ddp = ddp.unwrap();
                assert_eq!(ddp.overlaps(), mode == Overlap::On);
                let mut optimizer = SGD::new(varmap.all_vars(), 0.3).unwrap();
                let rows = ROWS[group.rank()].clone();
                let share = Share::new(rows.len(), 9);
                for _ in 0..steps {
                    let loss = ddp.forward(|model| loss(model, rows.clone())).unwrap();
                    let grads = if rows.is_empty() {
                        let mut none = GradStore::default();
                        ddp.sync_gradients(&mut none, Share::EQUAL).unwrap();
                        none
                    } else {
                        ddp.backward(&share.weigh(&loss, &group).unwrap()).unwrap()
                    };
                    optimizer.step(&grads).unwrap();
                }
                close(&all(&varmap), &expected, 1e-12, "weights and statistics");
                verify_parameters(&varmap, &group).unwrap();
            });
        }
    }
}

#[test]
fn batches_without_a_variance_are_refused_on_all_ranks_and_the_group_is_fine() {
    worlds()[0].run(2, |group| {
        let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
        let norm = SyncBatchNorm::new(FEATURES, 1e-5, vb, &group).unwrap();
        let rows = |n: usize| Tensor::ones((n, FEATURES), DType::F32, &Device::Cpu).unwrap();
        for (mine, complaint) in [([0, 0], "over 0 values"), ([0, 1], "over 1 values")] {
            let error = norm.forward_t(&rows(mine[group.rank()]), true).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
        let wide = Tensor::ones((2, FEATURES + 1), DType::F32, &Device::Cpu).unwrap();
        let error = norm.forward_t(&wide, true).unwrap_err().to_string();
        assert!(
            error.contains("batch normalisation of 3 features was given [2, 4], not [n, 3, …]"),
            "{error}"
        );
        let integers = Tensor::ones((2, FEATURES), DType::U32, &Device::Cpu).unwrap();
        assert!(norm.forward_t(&integers, true).is_err());
        assert_eq!(norm.forward_t(&rows(1), true).unwrap().dims(), [1, FEATURES], "two of all ranks will do");
    });
}

#[test]
fn sixteen_bits_in_and_out() {
    worlds()[0].run(2, |group| {
        for dtype in [DType::BF16, DType::F16] {
            let varmap = VarMap::new();
            let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
            let norm = SyncBatchNorm::new(1, 0.0, vb, &group).unwrap();
            let x =
                Tensor::new(&[[2.0 * group.rank() as f32]], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let y = norm.forward_t(&x, true).unwrap();
            assert_eq!((y.dtype(), flat(&y)[0]), (dtype, [-1.0, 1.0][group.rank()]));
        }
    });
}

#[test]
fn a_group_that_failed_is_told_by_the_layer() {
    worlds()[2].run(2, |group| {
        let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
        let norm = SyncBatchNorm::new(1, 1e-5, vb, &group).unwrap();
        if group.rank() == 1 {
            group.abort("somebody had enough");
        }
        let x = Tensor::ones((2, 1), DType::F32, &Device::Cpu).unwrap();
        let error = (0..1000).find_map(|_| norm.forward_t(&x, true).err()).unwrap().to_string();
        assert!(error.contains("somebody had enough"), "{error}");
    });
}
