//! Training of which each rank keeps a part: the weights are those that data-parallel training and the same optimizer find.

use crate::common::{copy_all, everywhere};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, LionConfig, ModuleOptimizer,
    RmsPropConfig, SgdConfig,
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use phalanx::ProcessGroup;
use phalanx_burn::checkpoint::{Checkpoints, State, load_module, save_module};
use phalanx_burn::{
    AdamWParams, Array, DdpConfig, DistributedDataParallel, Error, MissingGradients, ShardConfig, Sharded,
    Share, Stage, sync_model,
};
use phalanx_testkit::World;
use std::path::Path;

fn device() -> Device {
    Device::default().autodiff()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().unwrap()
}

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new(width: usize) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device());
        Self { first: layer(5, width), second: layer(width, 3) }
    }

    /// Of a batch that is this rank's in this step.
    fn loss(&self, rank: usize, step: usize) -> Tensor<1> {
        let x: Vec<f32> = (0..20).map(|i| ((7 * i * (rank + 1)) as f32 + step as f32).sin()).collect();
        let x = Tensor::<2>::from_data(TensorData::new(x, [4, 5]), &device());
        (self.second.forward(self.first.forward(x).tanh()) - 1.0).square().mean()
    }

    fn values(&self) -> Vec<f32> {
        let of = |layer: &Linear| {
            [numbers(layer.weight.val()), numbers(layer.bias.as_ref().unwrap().val())].concat()
        };
        [of(&self.first), of(&self.second)].concat()
    }
}

/// Those that treat each number by itself.
fn optimizers() -> Vec<(&'static str, ModuleOptimizer)> {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_nesterov(true);
    vec![
        ("SGD", SgdConfig::new().with_momentum(Some(momentum)).init()),
        ("Adam", AdamConfig::new().init()),
        ("AdamW", AdamWConfig::new().with_weight_decay(0.1).init()),
        ("AdaGrad", AdaGradConfig::new().init()),
        ("Adan", AdanConfig::new().init()),
        ("Lion", LionConfig::new().init()),
        ("RMSprop", RmsPropConfig::new().init()),
    ]
}

#[test]
fn weights_are_those_of_data_parallel_training() {
    for ranks in [2, 3] {
        for stage in [Stage::Optimizer, Stage::Gradients] {
            everywhere(ranks, move |group| {
                let rank = group.rank();
                for (name, optimizer) in optimizers() {
                    let mut ours = Mlp::new(7);
                    // 7 biases, 35 weights, and the 24 of the other layer: in three buckets.
                    let config = ShardConfig::default().stage(stage).bucket_cap_bytes(100);
                    let mut zero = Sharded::new(&mut ours, &group, config).unwrap();
                    let mut theirs = ours.clone();
                    let mut ddp =
                        DistributedDataParallel::new(&mut theirs, &group, DdpConfig::default()).unwrap();
                    let (begun, mut of_shards, mut of_all) = (ours.values(), optimizer.clone(), optimizer);
                    for step in 0..4 {
                        // Uneven batches, and a sum over two.
                        let share = Share::new([1, 2, 3][rank], [3, 6][ranks - 2]);
                        if step % 2 == 1 {
                            let loss = ours.loss(rank, 10 + step) / ranks as f32;
                            let more = theirs.loss(rank, 10 + step) / ranks as f32;
                            zero.accumulate(&ours, loss, Share::EQUAL).unwrap();
                            ddp.accumulate(&theirs, more).unwrap();
                        }
                        let share = if step % 2 == 1 { Share::EQUAL } else { share };
                        let mut grads = zero.backward_share(&ours, ours.loss(rank, step), share).unwrap();
                        let mut whole = ddp.backward_share(&theirs, theirs.loss(rank, step), share).unwrap();
                        let norm = zero.clip_grad_norm(&mut grads, 0.5).unwrap();
                        let expected = ddp.clip_grad_norm(&theirs, &mut whole, 0.5).unwrap();
                        assert!((norm - expected).abs() < 1e-6 * expected, "{name}: {norm}, not {expected}");
                        ours = zero.step(&mut of_shards, 0.01, ours, grads).unwrap();
                        theirs = of_all.step(0.01, theirs, whole);
                        zero.verify_parameters(&ours).unwrap();
                    }
                    let (ours, theirs) = (ours.values(), theirs.values());
                    let apart = |a: &[f32], b: &[f32]| {
                        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
                    };
                    assert!(apart(&ours, &theirs) < 1e-5, "{name}, {stage:?}: {ours:?}, not {theirs:?}");
                    assert!(apart(&ours, &begun) > 1e-3, "{name}: it was trained");
                }
            });
        }
    }
}

#[test]
fn a_rank_keeps_its_part_of_what_an_optimizer_remembers() {
    for ranks in [2usize, 3] {
        everywhere(ranks, move |group| {
            let mut model = Mlp::new(500);
            let elements = model.values().len();
            let mut zero = Sharded::new(&mut model, &group, ShardConfig::default()).unwrap();
            let shards: Vec<usize> =
                zero.shards().map(|shard| shard.as_slice::<f32>().unwrap().len()).collect();
            let mine: usize = shards.iter().sum();
            assert!(
                (elements.div_ceil(ranks)..elements / ranks + 2 * shards.len()).contains(&mine),
                "{mine}"
            );

            let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
            let grads = zero.backward(&model, model.loss(group.rank(), 0)).unwrap();
            let lengths: Vec<_> =
                grads.iter().map(|grad| grad.as_ref().unwrap().as_slice::<f32>().unwrap().len()).collect();
            assert_eq!(lengths, shards);
            zero.step(&mut optimizer, 0.01, model, grads).unwrap();
            // Two moments of four bytes for each of this rank's elements, and what the record says of them.
            let bytes = optimizer.into_bytes().unwrap().len();
            assert!((8 * mine..8 * mine + 4096).contains(&bytes), "{bytes} bytes for {mine} elements");
            assert!(bytes < 8 * elements, "all ranks would keep {} bytes", 8 * elements);
        });
    }
}

/// Whose optimizer is dealt out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Whose {
    Ours,
    Burns,
}

/// Trains up to a step, from the newest checkpoint if there is one, and saves the end.
fn train(whose: Whose, folder: &Path, group: &ProcessGroup, until: usize) -> Vec<u32> {
    let mut model = Mlp::new(4);
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let found = checkpoints.latest_good().unwrap();
    if let Some(found) = &found {
        load_module(&mut model, "model", found).unwrap();
    }
    let config = ShardConfig::default().bucket_cap_bytes(100);
    let mut zero = Sharded::new(&mut model, group, config).unwrap();
    let mut ours = zero.adamw(AdamWParams { lr: 0.05, ..Default::default() }).unwrap();
    let mut burns: ModuleOptimizer = AdamWConfig::new().init();
    if let Some(found) = &found {
        match whose {
            Whose::Ours => found.restore("optimizer", &mut ours).unwrap(),
            Whose::Burns => burns = zero.load_optimizer(burns, "optimizer", found).unwrap(),
        }
    }
    for step in found.map_or(0, |found| found.step() as usize)..until {
        // All ranks have the same batch: so the gradients do not depend on how many ranks there are.
        let grads = zero.backward(&model, model.loss(0, step)).unwrap();
        if whose == Whose::Burns {
            model = zero.step(&mut burns, 0.05, model, grads).unwrap();
        } else {
            ours.step(&mut zero, &grads).unwrap();
            model = zero.gather(model).unwrap();
        }
    }
    let mut state = State::new();
    save_module(&model, "model", &mut state).unwrap();
    match whose {
        Whose::Ours => state.add("optimizer", &ours).unwrap(),
        Whose::Burns => zero.save_optimizer(&burns, "optimizer", &mut state).unwrap(),
    }
    checkpoints.save(until as u64, state).unwrap();
    model.values().iter().map(|x| x.to_bits()).collect()
}

fn on(whose: Whose, ranks: usize, folder: &Path, until: usize) -> Vec<u32> {
    let folder = folder.to_owned();
    let ends = World::thread().run(ranks, move |group| train(whose, &folder, &group, until));
    assert!(ends.iter().all(|end| *end == ends[0]), "ranks ended with other weights");
    ends.into_iter().next().unwrap()
}

#[test]
fn a_training_goes_on_with_its_optimizer() {
    for (whose, others) in [(Whose::Ours, &[1, 2, 4][..]), (Whose::Burns, &[2])] {
        let folder = tempfile::tempdir().unwrap();
        let [begun, straight] = ["begun", "straight"].map(|name| folder.path().join(name));
        on(whose, 2, &begun, 2);
        copy_all(&begun, &straight);
        let expected = on(whose, 2, &straight, 6);
        for &ranks in others {
            let stopped = folder.path().join(format!("on {ranks}"));
            copy_all(&begun, &stopped);
            on(whose, ranks, &stopped, 4);
            assert_eq!(on(whose, others[0], &stopped, 6), expected, "{whose:?}, on {ranks} ranks in between");
        }
    }
}

#[test]
fn burns_record_of_other_shards_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    on(Whose::Burns, 2, folder.path(), 1);
    let refused = |ranks: usize, bucket_cap_bytes: usize, expected: &'static str| {
        let folder = folder.path().to_owned();
        World::thread().run(ranks, move |group| {
            let found = Checkpoints::open(&folder, &group).unwrap().latest_good().unwrap().unwrap();
            let config = ShardConfig::default().bucket_cap_bytes(bucket_cap_bytes);
            let mut zero = Sharded::new(&mut Mlp::new(4), &group, config).unwrap();
            let optimizer = AdamWConfig::new().init();
            let error =
                zero.load_optimizer(optimizer, "optimizer", &found).map(drop).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        });
    };
    refused(1, 100, "2 have saved it, but there are 1");
    refused(2, 4096, "but here they have [20]");
}

/// Weights beside what an optimizer must not touch.
#[derive(Module, Debug)]
struct Mixed {
    weight: Param<Tensor<1>>,
    frozen: Param<Tensor<1>>,
    norm: BatchNorm,
}

#[test]
fn what_is_not_trained_stays_as_it_is() {
    everywhere(2, |group| {
        let ones = || Tensor::<1>::ones([3], &device()) * (1 + group.rank()) as f32;
        let mut model = Mixed {
            weight: Param::from_tensor(ones().require_grad()),
            frozen: Param::from_tensor(ones()).set_require_grad(false),
            norm: BatchNormConfig::new(3).init(&device()),
        };
        let mut zero = Sharded::new(&mut model, &group, ShardConfig::default()).unwrap();
        assert_eq!(numbers(model.frozen.val()), [1.0; 3], "rank 0's");
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.5).init();
        let x = Tensor::<2>::full([4, 3], 2.0, &device());
        for _ in 0..2 {
            let out = model.norm.forward(x.clone() * model.weight.val().unsqueeze());
            let loss = (out * model.frozen.val().unsqueeze()).square().mean() + model.weight.val().sum();
            let grads = zero.backward(&model, loss).unwrap();
            model = zero.step(&mut optimizer, 0.1, model, grads).unwrap();
        }
        assert_eq!(numbers(model.frozen.val()), [1.0; 3]);
        assert!(model.weight.val().is_require_grad() && !model.frozen.val().is_require_grad());
        assert!(numbers(model.weight.val()).iter().all(|weight| *weight < 1.0));
        let mean = numbers(model.norm.running_mean.value_sync());
        assert!(
            mean.iter().all(|mean| (0.2..0.4).contains(mean)),
            "a tenth of 2, and of a little less: {mean:?}"
        );
    });
}

#[test]
fn weights_of_16_bits_are_kept_in_32() {
    everywhere(2, |group| {
        let value = Tensor::<1>::from_data([1.0, 1.0], (&device(), DType::BF16)).require_grad();
        let mut weight = Param::from_tensor(value);
        let mut zero = Sharded::new(&mut weight, &group, ShardConfig::default()).unwrap();
        let mut sgd: ModuleOptimizer = SgdConfig::new().init();
        // Each step is too small for bf16, whose next number below 1 is 0.996.
        for _ in 0..10 {
            let grads = zero.backward(&weight, weight.val().sum()).unwrap();
            weight = zero.step(&mut sgd, 0.001, weight, grads).unwrap();
        }
        assert_eq!(weight.val().dtype(), DType::BF16);
        assert!(
            numbers(weight.val()).iter().all(|x| (x - 0.99).abs() < 0.003),
            "{:?}",
            numbers(weight.val())
        );
        let shard = zero.shards().next().unwrap().as_slice::<f32>().unwrap()[0];
        assert!((shard - 0.99).abs() < 1e-5, "{shard}");
    });
}

#[test]
fn what_does_not_fit_is_refused_and_hurts_nobody() {
    everywhere(2, |group| {
        let weight = |len| Param::from_tensor(Tensor::<1>::ones([len], &device()).require_grad());
        let mut model = [weight(4), weight(2)];
        let config = ShardConfig::default().missing_gradients(MissingGradients::Error);
        let refused = Sharded::new(&mut model, &group, config.stage(Stage::Weights)).unwrap_err();
        assert!(refused.to_string().contains("units of a library's graph"), "{refused}");

        let mut zero = Sharded::new(&mut model, &group, config).unwrap();
        let error = zero.backward(&model, model[0].val().sum()).unwrap_err();
        assert!(matches!(&error, Error::NoGradient { names, .. } if names == &["1"]), "{error}");

        let other = [weight(4), weight(3)];
        let error = zero.reduce(&other, GradientsParams::new(), Share::EQUAL).unwrap_err().to_string();
        assert!(error.contains("`1` is f32 [3], and was f32 [2] when it was wrapped"), "{error}");

        let mut sgd: ModuleOptimizer = SgdConfig::new().init();
        let shards: Vec<Array> = zero.shards().cloned().collect();
        for grads in [vec![], vec![Some(Array::from(vec![1f32; 2]))], vec![Some(Array::from(vec![1f64; 3]))]]
        {
            let error = zero.step(&mut sgd, 1.0, model.clone(), grads).unwrap_err();
            assert!(matches!(&error, Error::Group(phalanx::Error::Config { .. })), "{error}");
        }
        let right = vec![Some(Array::from(vec![1f32; 3]))];
        let error = zero.step(&mut sgd, 1.0, other, right.clone()).unwrap_err();
        assert!(matches!(&error, Error::Group(phalanx::Error::Misuse { .. })), "{error}");
        assert!(zero.shards().eq(&shards), "nothing was changed");

        let [first, second] = zero.step(&mut sgd, 1.0, model, right).unwrap();
        assert_eq!([numbers(first.val()), numbers(second.val())].concat(), [0.0; 6]);

        let mut other = [weight(1), weight(2 + group.rank())];
        let error = Sharded::new(&mut other, &group, config).unwrap_err();
        assert!(matches!(&error, Error::ModelMismatch { name, .. } if name == "1"), "{error}");
        sync_model(&mut [weight(1)], &group, 0).unwrap(); // the group is fine
    });
}
