//! What a training with unusual steps comes to, over every transport, whether gradients are sent during the backward pass or
//! after it.

use crate::common::{MODES, Net, SAMPLES, gradients, net, net_of, weights, worlds};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{BatchNorm, Init, ModuleT, Optimizer, SGD, VarBuilder, VarMap};
use phalanx::{ProcessGroup, chunk};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Error, LossScaler, Overlap, Share, clip_grad_norm};

/// Runs `rank` on so many ranks, over every transport and in every mode.
fn everywhere<R: Send + 'static>(
    world_size: usize,
    rank: impl Fn(ProcessGroup, Overlap) -> R + Clone + Send + Sync + 'static,
) -> Vec<R> {
    let mut all = Vec::new();
    for world in worlds() {
        for mode in MODES {
            let rank = rank.clone();
            all.extend(world.run(world_size, move |group| rank(group, mode)));
        }
    }
    all
}

#[track_caller]
fn all_equal<R: PartialEq + std::fmt::Debug>(found: &[R]) {
    assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
}

fn value(grads: &GradStore, var: &Tensor) -> Option<Vec<f32>> {
    grads.get(var).map(|g| g.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap())
}

fn var(varmap: &VarMap, name: &str) -> Var {
    varmap.data().lock().unwrap()[name].clone()
}

/// A model of single variables, all one.
fn letters<const N: usize>(
    names: [&'static str; N],
    group: &ProcessGroup,
    config: DdpConfig,
) -> (VarMap, DistributedDataParallel<[Tensor; N]>) {
    let varmap = VarMap::new();
    let build =
        |vb: VarBuilder<'_>| Ok(names.map(|name| vb.get_with_hints(3, name, Init::Const(1.0)).unwrap()));
    let ddp = DistributedDataParallel::build(&varmap, DType::F32, group, config, build).unwrap();
    (varmap, ddp)
}

fn config(mode: Overlap) -> DdpConfig {
    DdpConfig::default().bucket_cap_bytes(20).overlap(mode)
}

#[test]
fn accumulated_losses_are_sent_once_and_count_all() {
    let found = everywhere(2, |group, mode| {
        let (varmap, ddp) = net(&group, mode, 100);
        let mine = chunk(group.rank(), 2, SAMPLES);
        let (first, rest) = (mine.start..mine.start + 2, mine.start + 2..mine.end);
        let loss = |rows: std::ops::Range<usize>| ddp.forward(|net| net.loss(rows)).unwrap();
        ddp.accumulate(&loss(first.clone())).unwrap();
        let accumulated = gradients(&varmap, &ddp.backward(&loss(rest.clone())).unwrap());
        // The next step starts anew.
        let mut sum = loss(first).backward().unwrap();
        sum.extend(loss(rest).backward().unwrap()).unwrap();
        ddp.sync_gradients(&mut sum, Share::EQUAL).unwrap();
        assert_eq!(accumulated, gradients(&varmap, &sum));
        accumulated
    });
    all_equal(&found);
}

/// Else what a program accumulates once more, when it begins the step anew, would count twice.
#[test]
fn what_was_accumulated_is_gone_with_a_step_that_is_refused() {
    everywhere(2, |group, mode| {
        let (varmap, ddp) = letters(["a"], &group, config(mode));
        let more_than_all = Share::new(2, 1);
        let loss = || ddp.forward(|[a]| a.sum_all()).unwrap();
        let by_backward = || ddp.backward_share(&loss(), more_than_all).map(drop);
        let by_hand = || ddp.sync_gradients(&mut loss().backward()?, more_than_all);
        let steps: [&dyn Fn() -> phalanx_candle::Result<()>; 2] = [&by_backward, &by_hand];
        for step in steps {
            ddp.accumulate(&loss()).unwrap();
            assert!(matches!(step(), Err(Error::Group(phalanx::Error::Misuse { .. }))));
            ddp.accumulate(&loss()).unwrap();
            let grads = ddp.backward(&loss()).unwrap();
            assert_eq!(value(&grads, &var(&varmap, "a")), Some(vec![2.0; 3]));
        }
    });
}

#[test]
fn what_was_accumulated_alone_is_sent_too() {
    everywhere(2, |group, mode| {
        let (varmap, ddp) = letters(["a", "b"], &group, config(mode));
        let [a, b] = ["a", "b"].map(|name| var(&varmap, name));
        ddp.accumulate(&ddp.forward(|[a, _]| a.sum_all()).unwrap()).unwrap();
        let grads = ddp.backward(&ddp.forward(|[_, b]| b.sum_all()).unwrap()).unwrap();
        assert_eq!((value(&grads, &a), value(&grads, &b)), (Some(vec![1.0; 3]), Some(vec![1.0; 3])));
    });
}

#[test]
fn uneven_batches_are_accumulated_with_weighed_losses() {
    everywhere(2, |group, mode| {
        let (varmap, ddp) = net(&group, mode, 100);
        // Of two batches rank 0 has 3 and 4 samples, rank 1 has 5 and none.
        let batches = [[0..3, 3..7], [7..SAMPLES, SAMPLES..SAMPLES]];
        let [first, last] = batches[group.rank()].clone();
        let weighed = |rows: std::ops::Range<usize>| {
            let share = Share::new(rows.len(), SAMPLES);
            share.weigh(&ddp.forward(|net| net.loss(rows)).unwrap(), &group).unwrap()
        };
        ddp.accumulate(&weighed(first)).unwrap();
        let grads = if last.is_empty() {
            let mut none = GradStore::default();
            ddp.sync_gradients(&mut none, Share::EQUAL).unwrap();
            none
        } else {
            ddp.backward(&weighed(last)).unwrap()
        };
        let whole = ddp.forward(|net| net.loss(0..SAMPLES)).unwrap().backward().unwrap();
        for var in varmap.all_vars() {
            for (found, expected) in value(&grads, &var).unwrap().iter().zip(value(&whole, &var).unwrap()) {
                assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
            }
        }
    });
}

#[test]
fn variables_may_be_used_here_or_there_or_nowhere_and_differently_in_each_step() {
    everywhere(3, |group, mode| {
        let names = ["a", "b", "c", "frozen"];
        let (varmap, ddp) = letters(names, &group, config(mode));
        let [a, b, c, frozen] = names.map(|name| var(&varmap, name));
        for step in 0..4 {
            // The ranks take turns with `a`; rank 0 alone has `b`; nobody has `c` at first; `frozen` is detached.
            let own = (group.rank() + step) % 3 == 1;
            let loss = ddp.forward(|[a, b, c, frozen]| {
                let mut loss = (frozen.detach() * a.detach())?;
                if own {
                    loss = (loss + (a * 6.0)?)?;
                }
                if group.rank() == 0 {
                    loss = (loss + (b * 3.0)?)?;
                }
                if step == 3 {
                    loss = (loss + c)?;
                }
                loss.sum_all()
            });
            let grads = ddp.backward(&loss.unwrap()).unwrap();
            assert_eq!(value(&grads, &a), Some(vec![2.0; 3]));
            assert_eq!(value(&grads, &b), Some(vec![1.0; 3]));
            assert_eq!(value(&grads, &c), (step == 3).then(|| vec![1.0; 3]));
            assert_eq!(value(&grads, &frozen), None);
        }
    });
}

#[test]
fn shares_without_samples_and_of_different_sizes_are_weighed() {
    let found = everywhere(3, |group, mode| {
        let (varmap, ddp) = net(&group, mode, 100);
        let ends = [0, 7, SAMPLES];
        let rows = if group.rank() == 0 { 0..0 } else { ends[group.rank() - 1]..ends[group.rank()] };
        let share = Share::new(rows.len(), SAMPLES);
        let grads = if rows.is_empty() {
            let mut none = GradStore::default();
            ddp.sync_gradients(&mut none, share).unwrap();
            none
        } else {
            ddp.backward_share(&ddp.forward(|net| net.loss(rows)).unwrap(), share).unwrap()
        };
        let whole = ddp.forward(|net| net.loss(0..SAMPLES)).unwrap().backward().unwrap();
        for var in varmap.all_vars() {
            for (found, expected) in value(&grads, &var).unwrap().iter().zip(value(&whole, &var).unwrap()) {
                assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
            }
        }
        gradients(&varmap, &grads)
    });
    found.chunks(3).for_each(all_equal);
}

#[test]
fn ranks_with_fewer_batches_follow_the_others() {
    let batches = [2, 0, 5];
    everywhere(3, move |group, mode| {
        let (varmap, ddp) = letters(["a", "b"], &group, config(mode));
        let mut optimizer = SGD::new(varmap.all_vars(), 1.0).unwrap();
        let mut steps = 0;
        for _ in 0..batches[group.rank()] {
            let factor = [3.0, f64::NAN, 1.0][group.rank()];
            let loss = ddp.forward(|[a, b]| ((a * factor)? + (b * 2.0)?)?.sum_all()).unwrap();
            optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
            steps += 1;
        }
        while let Some(grads) = ddp.join().unwrap() {
            optimizer.step(&grads).unwrap();
            steps += 1;
        }
        assert_eq!(steps, 5);
        ddp.verify_parameters().unwrap();
        // Two steps of the mean of 3 and 1, three of 1.
        let [a, b] = ["a", "b"].map(|name| var(&varmap, name).to_vec1::<f32>().unwrap());
        assert_eq!((a, b), (vec![1.0 - 2.0 * 2.0 - 3.0; 3], vec![1.0 - 5.0 * 2.0; 3]));
    });
}

#[test]
fn who_joins_follows_weighed_steps_too() {
    everywhere(2, |group, mode| {
        let (varmap, ddp) = letters(["a"], &group, config(mode));
        let grads = if group.rank() == 0 {
            let loss = ddp.forward(|[a]| a.sum_all()).unwrap();
            ddp.backward_share(&loss, Share::new(4, 4)).unwrap()
        } else {
            ddp.join().unwrap().expect("rank 0 has a batch")
        };
        assert_eq!(value(&grads, &var(&varmap, "a")), Some(vec![1.0; 3]));
        assert!(ddp.join().unwrap().is_none());
    });
}

#[test]
fn the_norm_of_all_gradients_is_clipped_alike_everywhere() {
    let found = everywhere(2, |group, mode| {
        let (varmap, ddp) = net(&group, mode, 100);
        let loss = ddp.forward(|net| net.loss(chunk(group.rank(), 2, SAMPLES))).unwrap();
        let mut grads = ddp.backward(&loss).unwrap();
        let norm = |grads: &GradStore| {
            let of = |var: &Var| value(grads, var).unwrap().iter().map(|x| f64::from(x * x)).sum::<f64>();
            varmap.all_vars().iter().map(of).sum::<f64>().sqrt()
        };
        let before = gradients(&varmap, &grads);
        let told = clip_grad_norm(&varmap, &mut grads, 100.0).unwrap();
        assert!((told - norm(&grads)).abs() < 1e-6, "{told}");
        assert_eq!(gradients(&varmap, &grads), before, "within bounds already");
        clip_grad_norm(&varmap, &mut grads, 0.01).unwrap();
        assert!((norm(&grads) - 0.01).abs() < 1e-8, "{}", norm(&grads));
        gradients(&varmap, &grads)
    });
    all_equal(&found);
}

#[test]
fn norms_without_bounds_are_told_and_nothing_is_scaled() {
    everywhere(2, |group, mode| {
        let (varmap, ddp) = letters(["a"], &group, config(mode));
        let factor = if group.rank() == 1 { f64::INFINITY } else { 1.0 };
        let mut grads = ddp.backward(&ddp.forward(|[a]| (a * factor)?.sum_all()).unwrap()).unwrap();
        assert_eq!(clip_grad_norm(&varmap, &mut grads, 1.0).unwrap(), f64::INFINITY);
        assert_eq!(value(&grads, &var(&varmap, "a")), Some(vec![f32::INFINITY; 3]));
    });
}

#[test]
fn half_precision_trains_weights_of_single_precision() {
    let found = everywhere(2, |group, mode| {
        let (varmap, ddp) = net_of(DType::F16, &group, config(mode));
        let mut optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
        let mut scaler = LossScaler::new(1024.0).unwrap();
        let mut losses = Vec::new();
        for _ in 0..20 {
            let loss = ddp.forward(|net| net.loss(chunk(group.rank(), 2, SAMPLES))).unwrap();
            let mut grads = ddp.backward(&scaler.scale(&loss).unwrap()).unwrap();
            for var in varmap.all_vars() {
                assert_eq!((var.dtype(), grads.get(&var).unwrap().dtype()), (DType::F32, DType::F32));
            }
            assert!(scaler.unscale(&varmap, &mut grads).unwrap());
            optimizer.step(&grads).unwrap();
            losses.push(loss.to_scalar::<f32>().unwrap());
        }
        assert!(losses[19] < 0.8 * losses[0], "{losses:?}");
        weights(&varmap)
    });
    all_equal(&found);
    // Close to what weights and gradients of single precision come to.
    worlds()[0].run(2, move |group| {
        let (varmap, ddp) = net(&group, Overlap::Off, 100);
        let mut optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
        for _ in 0..20 {
            let loss = ddp.forward(|net| net.loss(chunk(group.rank(), 2, SAMPLES))).unwrap();
            optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
        }
        for (single, half) in
            weights(&varmap).iter().flatten().flatten().zip(found[0].iter().flatten().flatten())
        {
            let (single, half) = (f32::from_bits(*single), f32::from_bits(*half));
            assert!((single - half).abs() < 5e-3, "{half} is far from {single}");
        }
    });
}

#[test]
fn bf16_gradients_reach_f32_weights() {
    everywhere(2, |group, mode| {
        let varmap = VarMap::new();
        let build = |vb: VarBuilder<'_>| vb.get_with_hints(3, "a", Init::Const(1.0));
        let ddp = DistributedDataParallel::build(&varmap, DType::BF16, &group, config(mode), build).unwrap();
        let mut optimizer = SGD::new(varmap.all_vars(), 1e-3).unwrap();
        for _ in 0..10 {
            let loss = ddp.forward(|a| (a * 1.0)?.sum_all()).unwrap();
            optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
        }
        // In bf16 a thousandth is nothing beside 1.
        let found = var(&varmap, "a").to_vec1::<f32>().unwrap();
        assert!(found.iter().all(|x| (x - 0.99).abs() < 1e-5), "{found:?}");
    });
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all() {
    let found = everywhere(2, |group, mode| {
        let (varmap, ddp) = net_of(DType::F16, &group, config(mode));
        let mut scaler = LossScaler::new(512.0).unwrap();
        let mut taken = Vec::new();
        for step in 0..3 {
            let loss = ddp.forward(|net| net.loss(chunk(group.rank(), 2, SAMPLES))).unwrap();
            let too_much = if (group.rank(), step) == (1, 1) { 1e6 } else { 1.0 };
            let loss = (scaler.scale(&loss).unwrap() * too_much).unwrap();
            let mut grads = ddp.backward(&loss).unwrap();
            taken.push(scaler.unscale(&varmap, &mut grads).unwrap());
        }
        (taken, scaler)
    });
    all_equal(&found);
    assert_eq!((&found[0].0[..], found[0].1.factor()), (&[true, false, true][..], 256.0));
}

fn normalised(group: &ProcessGroup, config: DdpConfig) -> (VarMap, DistributedDataParallel<BatchNorm>) {
    let varmap = VarMap::new();
    let build = |vb: VarBuilder<'_>| candle_nn::batch_norm(2, 1e-5, vb.pp("norm"));
    let ddp = DistributedDataParallel::build(&varmap, DType::F32, group, config, build).unwrap();
    (varmap, ddp)
}

#[test]
fn buffers_are_made_equal_when_asked_for() {
    everywhere(3, |group, mode| {
        for (asked, config) in [(true, config(mode)), (false, config(mode).broadcast_buffers(true))] {
            let (varmap, ddp) = normalised(&group, config);
            let mean = var(&varmap, "norm.running_mean");
            let x = Tensor::full(10.0 * (1 + group.rank()) as f32, (4, 2), &Device::Cpu).unwrap();
            let loss = ddp.forward(|norm| norm.forward_t(&x, true)?.sum_all()).unwrap();
            ddp.backward(&loss).unwrap();
            if asked {
                assert_eq!(mean.to_vec1::<f32>().unwrap(), [1.0 + group.rank() as f32; 2], "each its own");
                ddp.sync_buffers(0).unwrap();
            }
            assert_eq!(mean.to_vec1::<f32>().unwrap(), [1.0; 2], "those of rank 0");
            ddp.verify_parameters().unwrap();
        }
    });
}

#[test]
fn models_that_differ_are_refused_by_name() {
    everywhere(2, |group, mode| {
        let varmap = VarMap::new();
        let build = |vb: VarBuilder<'_>| {
            vb.get(3, "a")?;
            vb.get(3 + group.rank(), "b")
        };
        let built = DistributedDataParallel::build(&varmap, DType::F32, &group, config(mode), build);
        let error = built.map(drop).unwrap_err().to_string();
        assert!(error.contains("parameter `b` differs between ranks"), "{error}");
    });
}

#[test]
fn a_net_is_what_it_is_without_us() {
    everywhere(2, |group, mode| {
        let (varmap, ddp) = net(&group, mode, 100);
        let plain = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu), &varmap).unwrap();
        let [ours, theirs] =
            [ddp.forward(|net| net.loss(0..SAMPLES)).unwrap(), plain.loss(0..SAMPLES).unwrap()]
                .map(|loss| loss.to_scalar::<f32>().unwrap().to_bits());
        assert_eq!(ours, theirs);
    });
}
