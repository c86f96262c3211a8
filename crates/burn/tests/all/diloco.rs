//! Training that communicates seldom: every number is that of plain arithmetic, on every transport, through stops too.

use crate::common::everywhere;
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use phalanx::ProcessGroup;
use phalanx_burn::checkpoint::{Checkpoints, State};
use phalanx_burn::compress::Cast;
use phalanx_burn::{DiLoCo, DiLoCoConfig, Error, MissingGradients, verify_parameters};
use phalanx_testkit::World;
use std::path::Path;

const RATE: f64 = 0.25;

/// The numbers of both weights.
type Pair = [Vec<f64>; 2];

/// Two layers of one weight each, in an order that is not that of their names.
#[derive(Module, Debug)]
struct Two {
    b: Layer,
    a: Layer,
}

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<1>>,
}

fn device() -> Device {
    Device::default().autodiff()
}

fn wide(numbers: Vec<f64>) -> Tensor<1> {
    let data = TensorData::new(numbers.clone(), [numbers.len()]);
    Tensor::from_data(data, (&device(), DType::F64))
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_into_vec().unwrap()
}

fn start() -> Pair {
    [vec![1.0, -2.0], vec![0.5, 3.0, -0.25]]
}

impl Two {
    fn new(times: f64) -> Self {
        let [b, a] = start()
            .map(|weights| Layer { weight: Param::from_tensor((wide(weights) * times).require_grad()) });
        Self { b, a }
    }

    fn values(&self) -> Pair {
        [&self.b, &self.a].map(|layer| numbers(layer.weight.val()))
    }

    /// The gradients of half the squared distance from where a rank is drawn to.
    fn gradients(&self, rank: usize, step: usize) -> GradientsParams {
        let loss = [&self.b, &self.a].map(|layer| {
            let weight = layer.weight.val();
            let targets = wide((0..weight.dims()[0]).map(|i| target(rank, step, i)).collect());
            (weight - targets).square().sum() / 2.0
        });
        let [one, other] = loss;
        GradientsParams::from_grads((one + other).backward(), self)
    }
}

/// Where a rank is drawn to in a step, element by element: its data, so to speak.
fn target(rank: usize, step: usize, element: usize) -> f64 {
    (0.3 * rank as f64 + 0.7 * step as f64 + element as f64).sin() + rank as f64
}

/// All ranks in one place, as the papers write it: the weights of each rank after each step. The fragments are given by their weights.
fn by_hand(config: DiLoCoConfig, ranks: usize, fragments: &[&[usize]], steps: usize) -> Vec<Vec<Pair>> {
    let (every, delay) = (config.sync_every as usize, config.delay as usize);
    let (mut anchor, mut local) = (start(), vec![start(); ranks]);
    let mut momentum = start().map(|weights| vec![0.0; weights.len()]);
    let mut under_way: Option<(usize, &[usize], Pair)> = None;
    let mut story = Vec::new();
    let means = |anchor: &Pair, local: &[Pair]| {
        [0, 1].map(|at| {
            let of =
                |i: usize| local.iter().map(|rank| anchor[at][i] - rank[at][i]).sum::<f64>() / ranks as f64;
            (0..anchor[at].len()).map(of).collect::<Vec<_>>()
        })
    };
    let mut take = |fragment: &[usize], mean: &Pair, anchor: &mut Pair, local: &mut [Pair]| {
        for &at in fragment {
            for i in 0..anchor[at].len() {
                let m = &mut momentum[at][i];
                *m = config.outer_momentum * *m + mean[at][i];
                anchor[at][i] -= config.outer_learning_rate * (mean[at][i] + config.outer_momentum * *m);
                let mixed = |w: f64| config.mix * w + (1.0 - config.mix) * anchor[at][i];
                local.iter_mut().for_each(|rank| rank[at][i] = mixed(rank[at][i]));
            }
        }
    };
    for step in 1..=steps {
        for (rank, weights) in local.iter_mut().enumerate() {
            for weights in weights {
                weights.iter_mut().enumerate().for_each(|(i, w)| *w -= RATE * (*w - target(rank, step, i)));
            }
        }
        for is_sent in [false, true] {
            if let Some((_, fragment, mean)) = under_way.take_if(|(due, ..)| *due <= step) {
                take(fragment, &mean, &mut anchor, &mut local);
            }
            for (at, fragment) in fragments.iter().enumerate() {
                if !is_sent && step % every == ((at + 1) * every / fragments.len()) % every {
                    under_way = Some((step + delay, fragment, means(&anchor, &local)));
                }
            }
        }
        story.push(local.clone());
    }
    story
}

#[test]
fn every_step_of_every_method_is_that_of_plain_arithmetic() {
    let cases: [(DiLoCoConfig, &[&[usize]]); 3] = [
        (DiLoCoConfig::local_sgd(3), &[&[0, 1]]),
        (DiLoCoConfig::diloco(4), &[&[0, 1]]),
        (DiLoCoConfig::streaming(6, 2, 2).mix(0.25), &[&[1], &[0]]), // the larger layer first
    ];
    for ranks in [2, 3] {
        for (config, fragments) in cases {
            let steps = 13;
            let expected = by_hand(config, ranks, fragments, steps);
            everywhere(ranks, move |group| {
                let rank = group.rank();
                let mut model = Two::new(if rank == 0 { 1.0 } else { 3.0 }); // until rank 0's come
                let sgd = SgdConfig::new().init();
                let mut diloco = DiLoCo::new(sgd, &mut model, &group, config).unwrap();
                for step in 1..=steps {
                    let grads = model.gradients(rank, step);
                    model = diloco.step(RATE, model, grads).unwrap();
                    for (found, expected) in model.values().iter().zip(&expected[step - 1][rank]) {
                        let apart =
                            found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                        assert!(apart < 1e-9, "{config:?}, step {step}: {found:?}, not {expected:?}");
                    }
                }
                model = diloco.finish(model).unwrap();
                verify_parameters(&model, &group).unwrap();
            });
        }
    }
}

/// A model with running statistics.
#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

impl Normed {
    fn new() -> Self {
        Self {
            linear: LinearConfig::new(3, 2).init(&device()),
            norm: BatchNormConfig::new(2).init(&device()),
        }
    }

    fn gradients(&self, rank: usize, step: u64) -> GradientsParams {
        let x: Vec<f32> = (0..12).map(|i| ((i * (rank + 2)) as f32 + step as f32).sin()).collect();
        let x = Tensor::<2>::from_data(TensorData::new(x, [4, 3]), &device());
        let loss = (self.norm.forward(self.linear.forward(x)) - 0.5).square().mean();
        GradientsParams::from_grads(loss.backward(), self)
    }

    /// Of all weights, and not of running statistics.
    fn bits(&self) -> Vec<u64> {
        let all = [
            numbers(self.linear.weight.val()),
            numbers(self.linear.bias.as_ref().unwrap().val()),
            numbers(self.norm.gamma.val()),
            numbers(self.norm.beta.val()),
        ];
        all.concat().iter().map(|x| x.to_bits()).collect()
    }
}

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

#[test]
fn weights_are_equal_after_a_sync_and_running_statistics_at_the_end() {
    everywhere(3, |group| {
        let mut model = Normed::new();
        let config = DiLoCoConfig::diloco(2);
        let mut diloco = DiLoCo::new(adam(), &mut model, &group, config).unwrap().with_hook(Cast::bf16());
        for step in 1..=4 {
            // Rank 2 has had no batch since step 2.
            let grads = match (group.rank(), step) {
                (2, 3..) => GradientsParams::new(),
                (rank, _) => model.gradients(rank, step),
            };
            model = diloco.step(0.01, model, grads).unwrap();
            let all = group.all_gather_object(&model.bits()).unwrap();
            let are_equal = all.iter().all(|bits| *bits == all[0]);
            assert_eq!(are_equal, step % 2 == 0, "step {step}");
        }
        assert!(verify_parameters(&model, &group).is_err(), "each rank has its own statistics");
        model = diloco.finish(model).unwrap();
        verify_parameters(&model, &group).unwrap();
        assert_eq!(diloco.traffic().ratio(), 4.0); // half of the steps, half of the bytes
    });
}

/// Trains up to a step, from the newest checkpoint if there is one, and saves the end.
fn train(group: &ProcessGroup, folder: &Path, until: u64) -> Vec<u64> {
    let mut model = Normed::new();
    let config = DiLoCoConfig::streaming(6, 2, 3);
    let mut diloco = DiLoCo::new(adam(), &mut model, group, config).unwrap();
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let mut begun = 0;
    if let Some(found) = checkpoints.latest_good().unwrap() {
        diloco.load(&mut model, "training", &found).unwrap();
        begun = found.step();
    }
    for step in begun + 1..=until {
        let grads = model.gradients(group.rank(), step);
        model = diloco.step(0.05, model, grads).unwrap();
    }
    let mut state = State::new();
    diloco.save(&model, "training", &mut state).unwrap();
    checkpoints.save(until, state).unwrap();
    diloco.finish(model).unwrap().bits()
}

#[test]
fn a_training_that_stops_with_a_mean_under_way_goes_on_as_if_it_had_not() {
    let run = |folder: &Path, ranks: usize, until: u64| {
        let folder = folder.to_owned();
        World::thread().run(ranks, move |group| train(&group, &folder, until))
    };
    let begun = tempfile::tempdir().unwrap();
    run(begun.path(), 2, 0); // all begin with the same weights
    let from_there = || {
        let folder = tempfile::tempdir().unwrap();
        crate::common::copy_all(begun.path(), folder.path());
        folder
    };
    let expected = run(from_there().path(), 2, 12);
    assert_eq!(expected[0], expected[1]);
    for stop in 1..12 {
        let folder = from_there();
        run(folder.path(), 2, stop);
        assert_eq!(run(folder.path(), 2, 12), expected, "stopped after {stop}");
    }
    let folder = from_there();
    run(folder.path(), 2, 5);
    let on_more = run(folder.path(), 3, 12);
    assert!(on_more.iter().all(|bits| *bits == on_more[0]), "ranks ended with other weights");
}

fn weight(values: &[f64]) -> Param<Tensor<1>> {
    Param::from_tensor(wide(values.to_vec()).require_grad())
}

#[test]
fn what_does_not_fit_is_refused() {
    everywhere(2, |group| {
        let sgd = || SgdConfig::new().init();
        let config = DiLoCoConfig::local_sgd(1);
        let told = |error: Error| error.to_string();

        let mut frozen = weight(&[1.0]).set_require_grad(false);
        let error = told(DiLoCo::new(sgd(), &mut frozen, &group, config).unwrap_err());
        assert!(error.contains("no weights that need gradients"), "{error}");

        let mut pair = [weight(&[1.0]), weight(&[2.0]).set_require_grad(group.rank() == 0)];
        let error = DiLoCo::new(sgd(), &mut pair, &group, config).unwrap_err();
        assert!(matches!(&error, Error::ModelMismatch { name, .. } if name == "1"), "{error}");

        let mut pair = [weight(&[1.0]), weight(&[2.0]).set_require_grad(false)];
        let mut diloco = DiLoCo::new(sgd(), &mut pair, &group, config).unwrap();
        let [first, second] = pair.clone();
        for (other, expected) in [
            (vec![first.clone()], "the one that was wrapped has more"),
            (vec![first.clone(), second.clone(), second.clone()], "more parameters than the one"),
            (vec![weight(&[1.0, 2.0]), second.clone()], "`0` is f64 [2], and was f64 [1]"),
            (vec![first, second.set_require_grad(true)], "`1` needs gradients, and did not"),
        ] {
            let error = told(diloco.step(1.0, other, GradientsParams::new()).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        diloco.step(1.0, pair, GradientsParams::new()).unwrap(); // the group is fine

        let mut pair = [weight(&[1.0]), weight(&[2.0])];
        let config = config.missing_gradients(MissingGradients::Error);
        let mut diloco = DiLoCo::new(sgd(), &mut pair, &group, config).unwrap();
        let grads = GradientsParams::from_grads(pair[0].val().backward(), &pair);
        let error = diloco.step(1.0, pair, grads).unwrap_err();
        assert!(matches!(&error, Error::NoGradient { names, .. } if names == &["1"]), "{error}");
    });
}
