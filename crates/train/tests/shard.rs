//! Training of which each rank keeps a part: the weights are those of training that is not dealt out, to the last bit.

mod common;

use common::{ALL, MODEL, array, gradient, number, sums, worlds};
use phalanx::{DType, ProcessGroup};
use phalanx_testkit::World;
use phalanx_train::checkpoint::{Checkpoints, State, load_tensors};
use phalanx_train::shard_parts::{Engine, Flat, Pass, PassSending, Taken, kept};
use phalanx_train::{
    AdamW, AdamWParams, Array, Error, Gradients, MissingGradients, Overlap, SgdParams, ShardConfig, Sharded,
    Share, Stage, Tensor,
};
use std::path::Path;

const PARAMS: AdamWParams = AdamWParams { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-3, weight_decay: 0.1 };

fn weights() -> Vec<Array> {
    (0..ALL).map(|index| array(index, |element| number(index, 0, 0, element) / 8.0)).collect()
}

fn names() -> impl Iterator<Item = &'static str> {
    MODEL.iter().map(|(name, ..)| *name)
}

fn gradients(group: &ProcessGroup, step: usize) -> Gradients<Array> {
    let factor = group.world_size() as f64;
    (0..ALL).map(|index| Some(gradient(index, group.rank(), step, factor))).collect()
}

/// Not dealt out, in one process: weights of 16 bits are kept in 32.
struct Whole {
    weights: Vec<Array>,
    adamw: AdamW<Array>,
}

impl Whole {
    fn new() -> Self {
        let wide = |weight: Array| {
            let dtype = kept(weight.dtype());
            weight.to_dtype(dtype).unwrap()
        };
        let weights: Vec<_> = weights().into_iter().map(wide).collect();
        let adamw = AdamW::new(names().zip(&weights), PARAMS).unwrap();
        Self { weights, adamw }
    }

    fn step(&mut self, ranks: usize, step: usize) {
        let wide =
            |(grad, weight): (Option<Array>, &Array)| grad.map(|grad| grad.to_dtype(weight.dtype()).unwrap());
        let grads: Vec<_> = sums(ranks, step).into_iter().zip(&self.weights).map(wide).collect();
        self.adamw.step(&mut self.weights, &grads).unwrap();
    }

    /// As the model has them.
    fn weights(&self) -> Vec<Array> {
        self.weights.iter().zip(MODEL).map(|(w, (_, dtype, _))| w.clone().to_dtype(dtype).unwrap()).collect()
    }
}

fn configs() -> impl Iterator<Item = ShardConfig> {
    [Stage::Optimizer, Stage::Gradients].into_iter().flat_map(|stage| {
        [Overlap::On, Overlap::Off]
            .map(|overlap| ShardConfig::default().stage(stage).overlap(overlap).bucket_cap_bytes(100))
    })
}

#[test]
fn weights_are_those_of_training_that_is_not_dealt_out() {
    for world in worlds() {
        for ranks in [1, 3] {
            for config in configs() {
                world.run(ranks, move |group| {
                    let mut ours = weights();
                    if group.rank() > 0 {
                        ours.iter_mut().for_each(|weight| weight.multiply(3.0).unwrap()); // until rank 0's come
                    }
                    let mut zero = Sharded::new(names().zip(&mut ours), &group, config).unwrap();
                    let mut adamw = zero.adamw(PARAMS).unwrap();
                    let mut whole = Whole::new();
                    for step in 0..4 {
                        let grads = zero.reduce(gradients(&group, step), Share::EQUAL).unwrap();
                        adamw.step(&mut zero, &grads).unwrap();
                        zero.gather(&mut ours).unwrap();
                        whole.step(ranks, step);
                        assert_eq!(ours, whole.weights(), "{config:?}, step {step}");
                    }
                    assert_ne!(ours, weights());
                });
            }
        }
    }
}

#[test]
fn accumulated_and_uneven_batches_come_to_their_mean() {
    for config in configs() {
        World::thread().run(3, move |group| {
            let mut weight = Array::from(vec![0f64; 7]);
            let mut zero = Sharded::new([("weight", &mut weight)], &group, config).unwrap();
            let rank = group.rank();
            let mine = |of: f64| vec![Some(Array::from(vec![of; 7]))];
            // Of 8 samples rank 0 has 1 and 1, rank 1 has 2 and 4, and rank 2 has none.
            let samples = [[1, 1], [2, 4], [0, 0]][rank];
            zero.accumulate(mine(rank as f64 + 1.0), Share::new(samples[0], 8)).unwrap();
            let grads = zero.reduce(mine(10.0 * (rank as f64 + 1.0)), Share::new(samples[1], 8)).unwrap();
            let sum = (1.0 + 10.0 + 2.0 * 2.0 + 4.0 * 20.0) / 8.0;
            let own = grads[0].as_ref().unwrap().as_slice::<f64>().unwrap();
            let here = (rank * 3..(rank + 1) * 3).filter(|element| *element < 7).count();
            assert!(own[..here].iter().all(|x| (x - sum).abs() < 1e-12), "{own:?}, not {sum}");

            let told = zero.reduce(mine(1.0), Share::new(2, 7)).unwrap_err();
            assert!(matches!(told, Error::ShareMismatch { .. }), "{told}");
            zero.reduce(mine(1.0), Share::EQUAL).unwrap(); // the group is fine
        });
    }
}

#[test]
fn weights_that_nobody_uses_are_named_and_what_some_use_has_their_share() {
    for config in configs() {
        let config = config.missing_gradients(MissingGradients::Error).bucket_cap_bytes(0);
        World::thread().run(2, move |group| {
            let mut weights: Vec<_> = (0..3).map(|_| Array::from(vec![0f32; 2])).collect();
            // In an order that is not that of the names.
            let named = ["c", "a", "b"].into_iter().zip(&mut weights);
            let mut zero = Sharded::new(named, &group, config).unwrap();
            let grad = || Some(Array::from(vec![1f32; 2]));
            // Rank 0 uses `c`, rank 1 `a`.
            let mine = || if group.rank() == 0 { vec![grad(), None, None] } else { vec![None, grad(), None] };
            let told = zero.reduce(mine(), Share::EQUAL).unwrap_err();
            assert!(matches!(&told, Error::NoGradient { names, .. } if names == &["b"]), "{told}");

            let all = |group: &ProcessGroup| {
                let mut all = mine();
                all[2] = (group.rank() == 0).then(grad).flatten();
                all
            };
            let grads = zero.reduce(all(&group), Share::EQUAL).unwrap();
            assert_eq!(grads, vec![Some(Array::from(vec![0.5f32])); 3]);
            let mut sgd = zero.sgd(SgdParams { lr: 1.0, ..Default::default() });
            sgd.step(&mut zero, &grads).unwrap();
            zero.gather(&mut weights).unwrap();
            assert_eq!(weights, vec![Array::from(vec![-0.5f32; 2]); 3]);
        });
    }
}

#[test]
fn gradients_that_do_not_fit_are_refused_before_anything_is_sent() {
    let group = &phalanx::threads(1)[0];
    let mut weight = Array::from(vec![0f32; 2]);
    let mut zero = Sharded::new([("weight", &mut weight)], group, ShardConfig::default()).unwrap();
    for (grads, told) in [
        (vec![], "got a list of 0, expected 1 gradients"),
        (
            vec![Some(Array::from(vec![0f64; 2]))],
            "the gradient of `weight` is f64 [2], but the weight is f32 [2]",
        ),
    ] {
        let error = zero.reduce(grads, Share::EQUAL).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    let refused =
        Sharded::new([("weight", &mut weight)], group, ShardConfig::default().stage(Stage::Weights));
    assert!(refused.unwrap_err().to_string().contains("units of a library's graph"));
}

/// Makes steps from where the last training has ended, dealt out or not.
fn train(group: &ProcessGroup, folder: &Path, stage: Option<Stage>, steps: usize) -> Vec<Array> {
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let found = checkpoints.latest_good().unwrap();
    let begun = found.as_ref().map_or(0, |found| found.step() as usize);
    let (mut whole, mut ours) = (Whole::new(), weights());
    let mut zero;
    let mut adamw;
    let mut state = State::new();
    match stage {
        None => {
            if let Some(found) = &found {
                load_tensors(names().zip(&mut whole.weights), "model", found).unwrap();
                found.restore("optimizer", &mut whole.adamw).unwrap();
            }
            (begun..begun + steps).for_each(|step| whole.step(2, step));
            ours = whole.weights();
            phalanx_train::checkpoint::save_tensors(names().zip(&whole.weights), "model", &mut state);
            state.add("optimizer", &whole.adamw).unwrap();
        }
        Some(stage) => {
            let config = ShardConfig::default().stage(stage).bucket_cap_bytes(200);
            zero = Sharded::new(names().zip(&mut ours), group, config).unwrap();
            adamw = zero.adamw(PARAMS).unwrap();
            if let Some(found) = &found {
                found.restore("model", &mut zero).unwrap();
                found.restore("optimizer", &mut adamw).unwrap();
            }
            for step in begun..begun + steps {
                // The mean over any number of ranks.
                let grads = zero.reduce(sums(2, step), Share::EQUAL).unwrap();
                adamw.step(&mut zero, &grads).unwrap();
            }
            zero.gather(&mut ours).unwrap();
            state.add("model", &zero).unwrap();
            state.add("optimizer", &adamw).unwrap();
        }
    }
    checkpoints.save((begun + steps) as u64, state).unwrap();
    ours
}

#[test]
fn a_checkpoint_is_loaded_by_any_stage_on_any_ranks_and_by_what_is_not_dealt_out() {
    let run = |folder: &Path, ranks: usize, stage: Option<Stage>, steps: usize| {
        let folder = folder.to_owned();
        World::thread().run(ranks, move |group| train(&group, &folder, stage, steps))
    };
    let nothing = tempfile::tempdir().unwrap();
    let expected = run(nothing.path(), 1, None, 4).remove(0);
    let kinds = [None, Some(Stage::Optimizer), Some(Stage::Gradients)];
    for first in kinds {
        for second in kinds {
            let folder = tempfile::tempdir().unwrap();
            run(folder.path(), 2, first, 2);
            for ended in run(folder.path(), 3, second, 2) {
                assert_eq!(ended, expected, "{first:?}, then {second:?}");
            }
        }
    }
}

/// Two units whose weights come and go, as an adapter with a graph lets them.
fn units(group: &ProcessGroup, overlap: bool) -> (Engine<Array>, Vec<Array>) {
    let mut model: Vec<_> = (0..2).map(|at| Array::from(vec![at as f32 + 1.0; 5])).collect();
    let flats = (0..2).map(|index| {
        let taken = Taken {
            name: format!("{index}.w"),
            dims: vec![5],
            dtype: DType::F32,
            index,
            initial: &model[index],
        };
        Flat::new::<Array, _>(format!("unit {index}"), vec![taken], false, group, Ok).unwrap()
    });
    let flats: Vec<_> = flats.collect();
    flats.iter().for_each(|flat| flat.release(&mut model).unwrap());
    let engine = Engine::new(flats, group, overlap, MissingGradients::Warn, "");
    (engine, model)
}

#[test]
fn weights_of_units_are_whole_only_while_they_are_used() {
    for overlap in [false, true] {
        World::thread().run(3, move |group| {
            let site = phalanx::CallSite::caller;
            let (mut engine, mut model) = units(&group, overlap);
            let whole = |at: usize| Array::from(vec![at as f32 + 1.0; 5]);
            let gone = Array::from(Vec::<f32>::new());
            for step in 0..2 {
                engine.begin_forward(&mut model, site()).unwrap();
                for at in [0, 1] {
                    engine.enter(at, Pass::Forward, &mut model).unwrap();
                    engine.count(at, 1);
                    let next = usize::from(overlap && step > 0 && at == 0); // it is fetched ahead once the order is known
                    assert_eq!((&model[at], &model[1 - at]), (&whole(at), &gone));
                    assert_eq!(engine.in_memory(), (1 + next, 0));
                    engine.count(at, -1);
                    engine.settle(at, &mut model).unwrap();
                }
                assert!(engine.end_forward(&mut model).unwrap());
                assert_eq!(model, [gone.clone(), gone.clone()]);

                let sending = (PassSending::During, true);
                engine.begin_backward(&[(1, 0), (0, 0)], Share::EQUAL, sending, site()).unwrap();
                for at in [1, 0] {
                    engine.enter(at, Pass::Backward, &mut model).unwrap();
                    assert_eq!(model[at], whole(at));
                    let grad = Array::from(vec![group.rank() as f32; 5]);
                    engine.arrive((at, 0), &grad, &mut model).unwrap();
                    assert_eq!(model[at], gone);
                }
                engine.end_backward(&mut model).unwrap();
                let grads = engine.end_step().unwrap();
                // Five numbers in slices of two: the last one ends with a zero.
                let slice = Array::from(if group.rank() == 2 { vec![1f32, 0.0] } else { vec![1.0; 2] });
                assert_eq!(grads, [Some(slice.clone()), Some(slice)]);
            }
        });
    }
}

#[test]
fn ranks_that_enter_different_units_are_told_which() {
    World::thread().run(2, |group| {
        let (mut engine, mut model) = units(&group, false);
        engine.begin_forward(&mut model, phalanx::CallSite::caller()).unwrap();
        let told = engine.enter(group.rank(), Pass::Forward, &mut model).unwrap_err();
        let expected = "rank 1 needs the weights of the unit `unit 1` while rank 0 needs those of `unit 0`";
        assert!(told.to_string().starts_with(expected), "{told}");
    });
}
