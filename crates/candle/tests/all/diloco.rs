//! Training that communicates seldom: every number is that of plain arithmetic, on every transport, through stops too.

use crate::common::{on_ranks, wave, weights, worlds};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, SGD, VarMap};
use phalanx::{Error as GroupError, ProcessGroup, ReduceOp};
use phalanx_candle::checkpoint::{Checkpoints, State, load_vars};
use phalanx_candle::compress::{Cast, CommHook, Int8, TopK};
use phalanx_candle::{
    AdamW, DiLoCo, DiLoCoConfig, DistributedDataParallel, Error, InnerOptimizer, Share, verify_parameters,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Three layers, of 9, 4 and 6 weights.
const VARS: [(&str, &[usize]); 4] =
    [("a.bias", &[3]), ("a.weight", &[3, 2]), ("b.weight", &[4]), ("c.weight", &[2, 3])];
const RATE: f64 = 0.1;

fn vars(dtype: DType) -> VarMap {
    let varmap = VarMap::new();
    for (at, (name, shape)) in VARS.into_iter().enumerate() {
        let var = Var::from_tensor(&wave(shape, at as f64).to_dtype(dtype).unwrap()).unwrap();
        varmap.data().lock().unwrap().insert(name.to_owned(), var);
    }
    varmap
}

/// Where a rank is drawn to in a step, element by element: its data, so to speak.
fn target(rank: usize, step: usize, element: usize) -> f64 {
    (0.3 * rank as f64 + 0.7 * step as f64 + element as f64).sin() + rank as f64
}

/// The gradients of half the squared distance from there.
fn gradients(varmap: &VarMap, rank: usize, step: usize) -> GradStore {
    let mut grads = GradStore::default();
    for var in varmap.data().lock().unwrap().values() {
        let targets: Vec<f64> = (0..var.elem_count()).map(|i| target(rank, step, i)).collect();
        let targets = Tensor::from_vec(targets, var.shape(), &Device::Cpu).unwrap();
        grads.insert(var, (var.as_detached_tensor() - targets.to_dtype(var.dtype()).unwrap()).unwrap());
    }
    grads
}

/// By name.
type Weights = BTreeMap<String, Vec<f64>>;

fn values(varmap: &VarMap) -> Weights {
    let data = varmap.data().lock().unwrap();
    let flat = |var: &Var| var.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
    data.iter().map(|(name, var)| (name.clone(), flat(var))).collect()
}

fn apart(a: &Weights, b: &Weights) -> f64 {
    assert!(a.keys().eq(b.keys()));
    a.values().flatten().zip(b.values().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// A job in one place, as the papers write it.
struct Oracle {
    config: DiLoCoConfig,
    anchor: Weights,
    momentum: Weights,
    /// Of each rank.
    local: Vec<Weights>,
}

impl Oracle {
    fn new(config: DiLoCoConfig, ranks: usize) -> Self {
        let anchor = values(&vars(DType::F64));
        let momentum = anchor.iter().map(|(name, w)| (name.clone(), vec![0.0; w.len()])).collect();
        Self { config, momentum, local: vec![anchor.clone(); ranks], anchor }
    }

    fn inner_step(&mut self, step: usize) {
        for (rank, weights) in self.local.iter_mut().enumerate() {
            for values in weights.values_mut() {
                for (i, w) in values.iter_mut().enumerate() {
                    *w -= RATE * (*w - target(rank, step, i));
                }
            }
        }
    }

    /// The mean of the ranks' pseudo-gradients.
    fn send(&self, fragment: &[&str]) -> Weights {
        let mean = |name: &str, i: usize| {
            let sum: f64 = self.local.iter().map(|rank| self.anchor[name][i] - rank[name][i]).sum();
            sum / self.local.len() as f64
        };
        let all = |name: &str| (0..self.anchor[name].len()).map(|i| mean(name, i)).collect();
        fragment.iter().map(|&name| (name.to_owned(), all(name))).collect()
    }

    fn take(&mut self, mean: &Weights) {
        let DiLoCoConfig { outer_learning_rate, outer_momentum, mix, .. } = self.config;
        for (name, mean) in mean {
            for (i, delta) in mean.iter().enumerate() {
                let m = &mut self.momentum.get_mut(name).unwrap()[i];
                *m = outer_momentum * *m + delta;
                let a = &mut self.anchor.get_mut(name).unwrap()[i];
                *a -= outer_learning_rate * (delta + outer_momentum * *m);
                for rank in &mut self.local {
                    let w = &mut rank.get_mut(name).unwrap()[i];
                    *w = mix * *w + (1.0 - mix) * *a;
                }
            }
        }
    }

    /// Weights of each rank after each step, and in the end the outer ones.
    fn run(mut self, fragments: &[&[&str]], steps: usize) -> Vec<Vec<Weights>> {
        let (every, delay) = (self.config.sync_every as usize, self.config.delay as usize);
        let (mut story, mut under_way) = (Vec::new(), None::<(usize, Weights)>);
        let mut sent_at = vec![0; fragments.len()];
        for step in 1..=steps {
            self.inner_step(step);
            if let Some((_, mean)) = under_way.take_if(|(due, _)| *due <= step) {
                self.take(&mean);
            }
            for (at, names) in fragments.iter().enumerate() {
                if step % every == ((at + 1) * every / fragments.len()) % every {
                    under_way = Some((step + delay, self.send(names)));
                    sent_at[at] = step;
                }
            }
            if let Some((_, mean)) = under_way.take_if(|(due, _)| *due <= step) {
                self.take(&mean);
            }
            story.push(self.local.clone());
        }
        if let Some((_, mean)) = under_way {
            self.take(&mean);
        }
        for (names, sent_at) in fragments.iter().zip(sent_at) {
            if sent_at < steps {
                self.take(&self.send(names));
            }
        }
        story.push(vec![self.anchor; self.local.len()]);
        story
    }
}

#[test]
fn every_step_of_every_method_is_that_of_plain_arithmetic() {
    let whole: &[&[&str]] = &[&["a.bias", "a.weight", "b.weight", "c.weight"]];
    let halves: &[&[&str]] = &[&["a.bias", "a.weight"], &["c.weight", "b.weight"]];
    let layers: &[&[&str]] = &[&["a.bias", "a.weight"], &["c.weight"], &["b.weight"]];
    let mut late = DiLoCoConfig::diloco(4);
    late.delay = 4;
    let cases = [
        (DiLoCoConfig::local_sgd(3), whole),
        (DiLoCoConfig::diloco(4), whole),
        (DiLoCoConfig::diloco(4).outer(0.4, 0.5), whole),
        (late, whole),
        (DiLoCoConfig::streaming(4, 2, 0).mix(0.0), halves),
        (DiLoCoConfig::streaming(5, 2, 2), halves),
        (DiLoCoConfig::streaming(6, 3, 2).mix(0.25), layers),
    ];
    for (config, fragments) in cases {
        for steps in [11, 12] {
            let expected = Oracle::new(config, 3).run(fragments, steps);
            for world in worlds() {
                let found = world.run(3, move |group| {
                    let varmap = vars(DType::F64);
                    let sgd = SGD::new(varmap.all_vars(), RATE).unwrap();
                    let mut optimizer = DiLoCo::new(sgd, &varmap, &group, config).unwrap();
                    let mut story = Vec::new();
                    for step in 1..=steps {
                        optimizer.step(&gradients(&varmap, group.rank(), step)).unwrap();
                        story.push(values(&varmap));
                    }
                    optimizer.finish().unwrap();
                    verify_parameters(&varmap, &group).unwrap();
                    story.push(values(&varmap));
                    story
                });
                for (rank, story) in found.iter().enumerate() {
                    for (step, (found, expected)) in story.iter().zip(&expected).enumerate() {
                        let apart = apart(found, &expected[rank]);
                        assert!(apart < 1e-12, "{config:?}, rank {rank}, step {step} of {steps}: {apart}");
                    }
                }
            }
        }
    }
}

/// Of means of weights, and means of gradients, the weights are the same but for rounding: w − mean(w − (w − ηg)) = w − η mean(g).
#[test]
fn local_sgd_of_single_steps_is_data_parallel_training() {
    for world in worlds() {
        world.run(3, |group| {
            let (alone, together) = (vars(DType::F64), vars(DType::F64));
            let sgd = |varmap: &VarMap| SGD::new(varmap.all_vars(), RATE).unwrap();
            let mut local = DiLoCo::new(sgd(&alone), &alone, &group, DiLoCoConfig::local_sgd(1)).unwrap();
            let ddp = DistributedDataParallel::new(&together, &group, Default::default()).unwrap();
            let mut plain = sgd(&together);
            for step in 1..=20 {
                local.step(&gradients(&alone, group.rank(), step)).unwrap();
                let mut grads = gradients(&together, group.rank(), step);
                ddp.sync_gradients(&mut grads, Share::EQUAL).unwrap();
                plain.step(&grads).unwrap();
                assert!(apart(&values(&alone), &values(&together)) < 1e-14);
            }
            verify_parameters(&alone, &group).unwrap();
        });
    }
}

/// Trains to step `until`, from the checkpoint in `folder` if there is one, and saves there at the end of a part of the training.
fn train(
    group: &ProcessGroup,
    (config, hooked): (DiLoCoConfig, bool),
    folder: &Path,
    until: usize,
    is_end: bool,
) -> VarMap {
    let varmap = vars(DType::F32);
    let norm = Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
    varmap.data().lock().unwrap().insert("norm.running_mean".into(), norm.clone());
    let adamw = AdamW::new(&varmap, Default::default()).unwrap();
    let mut optimizer = DiLoCo::new(adamw, &varmap, group, config).unwrap();
    if hooked {
        optimizer = optimizer.with_hook(TopK::new(0.1).unwrap());
    }
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let mut begin = 0;
    if let Some(found) = checkpoints.latest_good().unwrap() {
        found.restore("training", &mut optimizer).unwrap();
        begin = found.step() as usize;
    }
    for step in begin + 1..=until {
        norm.set(&(norm.as_detached_tensor() + (group.rank() + step) as f64).unwrap()).unwrap();
        let mut grads = gradients(&varmap, group.rank(), step);
        grads.remove(&norm);
        optimizer.step(&grads).unwrap();
    }
    if is_end {
        optimizer.finish().unwrap();
    } else {
        let mut state = State::new();
        state.add("training", &optimizer).unwrap();
        checkpoints.save_async(until as u64, state).unwrap();
        checkpoints.wait().unwrap();
    }
    varmap
}

#[test]
fn a_training_that_stops_after_any_step_goes_on_as_if_it_had_not() {
    let steps = 12;
    let streaming = DiLoCoConfig::streaming(6, 2, 3);
    for config in [(DiLoCoConfig::diloco(4), false), (streaming, false), (streaming, true)] {
        let nothing = tempfile::tempdir().unwrap();
        let expected = on_ranks(2, |group| weights(&train(&group, config, nothing.path(), steps, true)));
        assert_eq!(expected[0], expected[1]);
        for stop in 1..=steps {
            let folder = tempfile::tempdir().unwrap();
            on_ranks(2, |group| train(&group, config, folder.path(), stop, false));
            let found = on_ranks(2, |group| weights(&train(&group, config, folder.path(), steps, true)));
            assert_eq!(found, expected, "{config:?}, stopped after {stop}");
        }
    }
}

#[test]
fn any_number_of_ranks_goes_on_from_the_outer_weights() {
    let config = DiLoCoConfig::streaming(6, 2, 3);
    for ranks in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(2, |group| train(&group, (config, false), folder.path(), 7, false));
        let ends = on_ranks(ranks, |group| {
            let found = Checkpoints::open(folder.path(), &group).unwrap().latest_good().unwrap().unwrap();
            let evaluated = vars(DType::F32);
            load_vars(&evaluated, "training.anchor", &found).unwrap();
            verify_parameters(&evaluated, &group).unwrap();
            weights(&train(&group, (config, false), folder.path(), 14, true))
        });
        assert!(ends.iter().all(|weights| *weights == ends[0]));
    }
    let folder = tempfile::tempdir().unwrap();
    on_ranks(1, |group| train(&group, (config, false), folder.path(), 7, false));
    on_ranks(1, |group| {
        let varmap = vars(DType::F32);
        let adamw = AdamW::new(&varmap, Default::default()).unwrap();
        let mut whole = DiLoCo::new(adamw, &varmap, &group, DiLoCoConfig::diloco(6)).unwrap();
        let found = Checkpoints::open(folder.path(), &group).unwrap().latest_good().unwrap().unwrap();
        let error = found.restore("training", &mut whole).unwrap_err().to_string();
        assert!(error.contains("it was saved with 2 fragments, but this DiLoCo has 1"), "{error}");
    });
}

#[test]
fn hooks_average_in_fewer_bytes_and_leave_all_ranks_with_the_same_bits() {
    type Make = fn() -> Box<dyn CommHook>;
    let hooks: [(f64, Make); 3] = [
        (1.99, || Box::new(Cast::f16())),
        (1.99, || Box::new(Cast::bf16())),
        (2.5, || Box::new(Int8::new())), // of 1,000 gradients each rank sends whole blocks of 256
    ];
    let trained = |group: &ProcessGroup, config: DiLoCoConfig, hook: Option<Box<dyn CommHook>>| {
        let varmap = VarMap::new();
        let var = Var::from_tensor(&wave(&[1000], 1.0).to_dtype(DType::F32).unwrap()).unwrap();
        varmap.data().lock().unwrap().insert("w".into(), var);
        let sgd = SGD::new(varmap.all_vars(), RATE).unwrap();
        let mut optimizer = DiLoCo::new(sgd, &varmap, group, config).unwrap();
        if let Some(hook) = hook {
            optimizer = optimizer.with_hook(hook);
        }
        // Everybody drawn to one place, which the mean of all finds.
        (1..=60).for_each(|_| optimizer.step(&gradients(&varmap, group.rank(), 0)).unwrap());
        optimizer.finish().unwrap();
        verify_parameters(&varmap, group).unwrap();
        (values(&varmap), optimizer.traffic())
    };
    for world in worlds() {
        for config in [DiLoCoConfig::local_sgd(5), DiLoCoConfig::streaming(5, 1, 3)] {
            world.run(3, move |group| {
                let (plain, all) = trained(&group, config, None);
                for (at, (fewer, hook)) in hooks.into_iter().enumerate() {
                    let (found, traffic) = trained(&group, config, Some(hook()));
                    let apart = apart(&found, &plain);
                    assert!(apart > 0.0 && apart < 0.05, "hook {at}, {config:?}: {apart}");
                    assert_eq!(traffic.plain, all.plain);
                    let saved = all.sent as f64 / traffic.sent as f64;
                    assert!(saved >= fewer, "hook {at}: {saved}");
                }
            });
        }
    }
}

#[test]
fn as_many_bytes_are_counted_as_are_sent() {
    on_ranks(3, |group| {
        let varmap = vars(DType::F64);
        let sgd = SGD::new(varmap.all_vars(), RATE).unwrap();
        let mut optimizer = DiLoCo::new(sgd, &varmap, &group, DiLoCoConfig::local_sgd(4)).unwrap();
        (1..=13).for_each(|step| optimizer.step(&gradients(&varmap, group.rank(), step)).unwrap());
        optimizer.finish().unwrap();
        // 19 weights of 8 bytes, two thirds of them twice.
        let once = 2 * (19 * 8 * 2 / 3);
        let traffic = optimizer.traffic();
        assert_eq!((traffic.plain, traffic.sent), (13 * once, 4 * once), "three rounds, and what was left");
        optimizer.finish().unwrap();
        assert_eq!(optimizer.traffic(), traffic, "there was nothing left");
    });
}

#[test]
fn weights_of_any_type_are_averaged_and_buffers_stay_until_the_end() {
    for world in worlds() {
        world.run(2, |group| {
            let varmap = VarMap::new();
            let types = [
                ("h.w", DType::F16),
                ("b.w", DType::BF16),
                ("s.w", DType::F32),
                ("n.running_var", DType::F32),
            ];
            for (name, dtype) in types {
                let var = Var::ones(4, dtype, &Device::Cpu).unwrap();
                varmap.data().lock().unwrap().insert(name.into(), var);
            }
            let counter = Var::zeros(1, DType::I64, &Device::Cpu).unwrap();
            varmap.data().lock().unwrap().insert("n.batches".into(), counter);
            let sgd = SGD::new(varmap.all_vars(), 1.0).unwrap();
            let mut optimizer = DiLoCo::new(sgd, &varmap, &group, DiLoCoConfig::local_sgd(2)).unwrap();
            let statistic = varmap.data().lock().unwrap()["n.running_var"].clone();
            let own = [5.0f32, 7.0][group.rank()];
            for _ in 0..2 {
                let mut grads = GradStore::default();
                for (name, var) in
                    varmap.data().lock().unwrap().iter().filter(|(name, _)| name.ends_with('w'))
                {
                    // On the mean, half a step a step.
                    let slope = group.rank() as f64 * if name == "s.w" { 1.0 } else { -1.0 };
                    grads.insert(var, (var.ones_like().unwrap() * slope).unwrap());
                }
                statistic.set(&Tensor::full(own, 4, &Device::Cpu).unwrap()).unwrap();
                optimizer.step(&grads).unwrap();
            }
            let found = values(&varmap);
            for (name, expected) in
                [("h.w", 2.0), ("b.w", 2.0), ("s.w", 0.0), ("n.running_var", f64::from(own))]
            {
                assert_eq!(found[&name.to_owned()], [expected; 4], "{name}");
            }
            optimizer.finish().unwrap();
            assert_eq!(values(&varmap)["n.running_var"], [5.0; 4], "rank 0's");
        });
    }
}

fn refused<O>(outcome: phalanx_candle::Result<DiLoCo<O>>) -> String {
    match outcome.map(drop).unwrap_err() {
        Error::Group(error @ GroupError::Misuse { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_makes_no_sense_or_differs_between_ranks_is_refused() {
    let mut late = DiLoCoConfig::streaming(10, 3, 4);
    let nonsense = [
        (DiLoCoConfig::diloco(0), "fragments is 1, expected 1 to sync_every, which is 0"),
        (DiLoCoConfig::streaming(3, 4, 0), "fragments is 4, expected 1 to sync_every, which is 3"),
        (DiLoCoConfig::streaming(3, 0, 0), "fragments is 0, expected 1 to sync_every, which is 3"),
        (late, "delay is 4, expected at most 3"),
        (
            DiLoCoConfig::diloco(3).outer(f64::NAN, 0.9),
            "outer_learning_rate is NaN and outer_momentum 0.9, expected a finite number and one in 0..1",
        ),
        (
            DiLoCoConfig::diloco(3).outer(0.7, 1.0),
            "outer_learning_rate is 0.7 and outer_momentum 1, expected",
        ),
        (DiLoCoConfig::diloco(3).mix(1.5), "mix is 1.5, expected 0 to 1"),
        (DiLoCoConfig::streaming(8, 4, 0), "fragments is 4, but the model has fewer layers"),
    ];
    late.delay = 3;
    on_ranks(2, |group| {
        let varmap = vars(DType::F32);
        let new = |config| DiLoCo::new(SGD::new(varmap.all_vars(), RATE).unwrap(), &varmap, &group, config);
        for (config, complaint) in nonsense {
            let error = refused(new(config));
            assert!(error.contains(complaint), "{error}");
        }
        let error = refused(new(DiLoCoConfig::diloco(group.rank() as u64)));
        let complaints = [
            "fragments is 1, expected 1 to sync_every, which is 0",
            "rank 0 has DiLoCoConfig { sync_every: 0,",
        ];
        assert!(error.contains(complaints[group.rank()]), "nonsense on one rank: {error}");
        let error = refused(new(DiLoCoConfig::local_sgd(10 + group.rank() as u64)));
        assert!(error.contains("rank 0 has DiLoCoConfig { sync_every: 10"), "{error}");
        assert!(error.contains("rank 1 has DiLoCoConfig { sync_every: 11"), "{error}");
        new(late).unwrap();
    });
}

/// An optimizer of the program's own, which fails when it is told to.
struct Own(VarMap);

impl InnerOptimizer for Own {
    fn inner_step(&mut self, grads: &GradStore) -> phalanx_candle::Result<()> {
        for var in self.0.all_vars() {
            let Some(grad) = grads.get(&var) else {
                return Err(candle_core::Error::Msg("no gradient".into()).into());
            };
            var.set(&(var.as_detached_tensor() - grad)?)?;
        }
        Ok(())
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_and_what_follows_fails_at_once() {
    let [thread, shm, tcp] = worlds();
    let streaming = DiLoCoConfig::streaming(2, 1, 1);
    for (world, config) in [(thread, DiLoCoConfig::local_sgd(2)), (shm, streaming), (tcp, streaming)] {
        world.timeout(Duration::from_secs(1)).run(3, move |group| {
            let varmap = vars(DType::F32);
            let mut optimizer = DiLoCo::new(Own(varmap.clone()), &varmap, &group, config).unwrap();
            let mut step = |step| optimizer.step(&gradients(&varmap, group.rank(), step));
            // Who does not come is there nevertheless.
            let together = group.with_timeout(Duration::from_secs(60));
            if group.rank() == 2 {
                step(1).unwrap();
                return together.barrier().unwrap();
            }
            let errors: Vec<_> = (1..=5).filter_map(|at| step(at).err()).collect();
            let Error::Group(GroupError::Timeout { .. }) = &errors[0] else { panic!("{:?}", errors[0]) };
            assert!(errors[0].to_string().contains("rank 2"), "{}", errors[0]);
            assert!(errors.len() >= 2, "who goes on is told again: {errors:?}");
            assert!(optimizer.finish().is_err());
            together.barrier().unwrap();
        });
    }
}

#[test]
fn an_inner_step_that_fails_sends_nothing() {
    on_ranks(2, |group| {
        let varmap = vars(DType::F32);
        let mut optimizer =
            DiLoCo::new(Own(varmap.clone()), &varmap, &group, DiLoCoConfig::local_sgd(1)).unwrap();
        let error = optimizer.step(&GradStore::default()).unwrap_err();
        assert!(error.to_string().contains("no gradient"), "{error}");
        optimizer.step(&gradients(&varmap, group.rank(), 1)).unwrap();
        assert_eq!(optimizer.traffic().ratio(), 1.0);
    });
}

#[test]
fn steps_go_on_while_a_mean_is_under_way() {
    for world in worlds() {
        world.run(2, |group| {
            let varmap = vars(DType::F32);
            let sgd = SGD::new(varmap.all_vars(), RATE).unwrap();
            let mut optimizer = DiLoCo::new(sgd, &varmap, &group, DiLoCoConfig::streaming(2, 1, 2)).unwrap();
            let mut step = |step| optimizer.step(&gradients(&varmap, group.rank(), step)).unwrap();
            step(1);
            // Rank 1 sends nothing before it knows that rank 0, which has sent all it has, went on.
            let mut message = [0u8];
            if group.rank() == 0 {
                (2..=3).for_each(&mut step);
                group.send(&message, 1, 0).unwrap();
            } else {
                group.recv(&mut message, 0, 0).unwrap();
                (2..=3).for_each(&mut step);
            }
            step(4);
            optimizer.finish().unwrap();
        });
    }
}

#[test]
fn what_is_under_way_may_be_dropped() {
    for world in worlds() {
        world.run(2, |group| {
            let varmap = vars(DType::F32);
            let sgd = SGD::new(varmap.all_vars(), RATE).unwrap();
            let mut optimizer = DiLoCo::new(sgd, &varmap, &group, DiLoCoConfig::streaming(2, 1, 2)).unwrap();
            (1..=2).for_each(|step| optimizer.step(&gradients(&varmap, group.rank(), step)).unwrap());
            drop(optimizer);
            let mut sum = [1.0f32];
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [2.0]);
            group.finalize().unwrap();
        });
    }
}

#[test]
fn the_programs_own_calls_do_not_meet_what_is_under_way() {
    for world in worlds() {
        world.run(2, |group| {
            let varmap = vars(DType::F32);
            let sgd = SGD::new(varmap.all_vars(), RATE).unwrap();
            let hook = Int8::new();
            let config = DiLoCoConfig::streaming(2, 1, 2);
            let mut optimizer = DiLoCo::new(sgd, &varmap, &group, config).unwrap().with_hook(hook);
            for step in 1..=20 {
                optimizer.step(&gradients(&varmap, group.rank(), step)).unwrap();
                let mut sum = [step as u64];
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [2 * step as u64]);
            }
            optimizer.finish().unwrap();
        });
    }
}
