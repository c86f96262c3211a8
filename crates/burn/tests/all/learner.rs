//! Burn's own training loop on several ranks comes to what it comes to in one process.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_train::metric::LossMetric;
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::{
    InferenceStep, Interrupter, Learner, LearningResult, MetricEarlyStoppingStrategy, RegressionOutput,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};
use phalanx::ProcessGroup;
use phalanx_burn::learner::DataParallel;
use phalanx_testkit::World;
use std::path::Path;
use std::sync::Arc;

type Sample = [f32; 3]; // x, and y of two numbers

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self { hidden: LinearConfig::new(1, 8).init(device), output: LinearConfig::new(8, 2).init(device) }
    }

    fn losses(&self, (x, y): (Tensor<2>, Tensor<2>)) -> RegressionOutput {
        let found = self.output.forward(self.hidden.forward(x).tanh());
        let loss = (found.clone() - y.clone()).square().mean();
        RegressionOutput::new(loss, found, y)
    }

    fn weights(&self) -> Vec<f32> {
        let layers = [&self.hidden, &self.output];
        layers.map(|layer| layer.weight.val().into_data().try_into_vec().unwrap()).concat()
    }
}

impl TrainStep for Mlp {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = RegressionOutput;

    fn step(&self, batch: Self::Input) -> TrainOutput<RegressionOutput> {
        let output = self.losses(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Mlp {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = RegressionOutput;

    fn step(&self, batch: Self::Input) -> RegressionOutput {
        self.losses(batch)
    }
}

struct Rows;

impl Batcher<Sample, (Tensor<2>, Tensor<2>)> for Rows {
    fn batch(&self, rows: Vec<Sample>, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let n = rows.len();
        let matrix = |values: Vec<f32>| {
            let columns = values.len() / n;
            Tensor::from_data(TensorData::new(values, [n, columns]), device)
        };
        (
            matrix(rows.iter().map(|row| row[0]).collect()),
            matrix(rows.iter().flat_map(|row| [row[1], row[2]]).collect()),
        )
    }
}

fn sample(i: usize) -> Sample {
    let x = i as f32 / 10.0 - 2.0;
    [x, x.sin(), x * x / 4.0]
}

fn loader(samples: Vec<Sample>, batch: usize) -> Arc<dyn DataLoader<(Tensor<2>, Tensor<2>)>> {
    DataLoaderBuilder::new(Rows).batch_size(batch).build(InMemDataset::new(samples))
}

fn training(folder: &Path, samples: Vec<Sample>, batch: usize) -> SupervisedTraining<Mlp> {
    SupervisedTraining::new(folder, loader(samples, batch), loader((0..8).map(sample).collect(), 4))
        .with_application_logger(None)
        .num_epochs(4)
}

fn learner(model: &Mlp) -> Learner<Mlp> {
    Learner::new(model.clone(), AdamConfig::new().init(), 0.01)
}

fn close(found: &[f32], expected: &[f32]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-5)
}

/// The samples as one process has to see them, so that its batches are those of all ranks together.
fn of_all_ranks(samples: &[Sample], ranks: usize, batch: usize) -> Vec<Sample> {
    let parts: Vec<&[Sample]> =
        (0..ranks).map(|r| &samples[samples.len() * r / ranks..samples.len() * (r + 1) / ranks]).collect();
    let steps = parts.iter().map(|part| part.len().div_ceil(batch)).max().unwrap_or(0);
    let of_step = |step: usize| parts.iter().filter_map(move |part| part.chunks(batch).nth(step)).flatten();
    (0..steps).flat_map(of_step).copied().collect()
}

/// Each rank of a world with what burn's loop has left it.
fn on_ranks(
    world: &World,
    ranks: usize,
    train: impl Fn(&ProcessGroup, &Path) -> LearningResult<Mlp> + Clone + Send + Sync + 'static,
) -> Vec<(Vec<f32>, Option<String>)> {
    world.run(ranks, move |group| {
        let folder = tempfile::tempdir().unwrap();
        let result = train(&group, folder.path());
        let ended = result.error.map(|error| error.to_string());
        let ended = ended.or(result.interrupted.and_then(|interruption| interruption.reason));
        (result.model.weights(), ended)
    })
}

/// 25 samples: the runs of two and of three ranks differ in length, and their last batches too.
#[test]
fn weights_are_those_of_one_process() {
    const BATCH: usize = 3;
    let samples: Vec<Sample> = (0..25).map(sample).collect();
    for (world, ranks) in [(World::thread(), 2), (World::thread(), 3), (World::shm(), 2), (World::tcp(), 2)] {
        let model = Mlp::new(&Device::default().autodiff());
        let folder = tempfile::tempdir().unwrap();
        let whole = of_all_ranks(&samples, ranks, BATCH);
        // One process has batches of one size, but the last: as many ranks have them while all have whole batches.
        let whole_steps = samples.len() / ranks / BATCH;
        let whole = whole[..whole_steps * BATCH * ranks].to_vec();
        let alone = training(folder.path(), whole.clone(), BATCH * ranks).launch(learner(&model));
        assert!(alone.error.is_none());

        let per_rank = whole_steps * BATCH;
        let cut: Vec<Sample> = (0..ranks)
            .flat_map(|rank| samples[samples.len() * rank / ranks..][..per_rank].to_vec())
            .collect();
        let found = on_ranks(&world, ranks, move |group, folder| {
            training(folder, cut.clone(), BATCH)
                .with_training_strategy(DataParallel::new(group, Device::default()).into())
                .launch(learner(&model))
        });
        for (weights, ended) in found {
            assert_eq!(ended, None);
            assert!(close(&weights, &alone.model.weights()), "{weights:?}\n{:?}", alone.model.weights());
        }
    }
}

#[test]
fn ranks_whose_runs_differ_in_length_end_together_with_the_same_weights() {
    let found = on_ranks(&World::thread(), 3, |group, folder| {
        training(folder, (0..25).map(sample).collect(), 3)
            .with_training_strategy(DataParallel::new(group, Device::default()).into())
            .launch(learner(&Mlp::new(&Device::default().autodiff()))) // at random: different on each rank
    });
    assert!(found.iter().all(|of_rank| *of_rank == found[0]), "{found:?}");
    assert_eq!(found[0].1, None);
}

/// Two batches of three samples each, added up, are as one of six, but for a factor of two that Adam takes no notice of.
#[test]
fn gradients_of_several_batches_are_sent_once() {
    let model = Mlp::new(&Device::default().autodiff());
    let run = |batch: usize, sum: usize| {
        let model = model.clone();
        on_ranks(&World::thread(), 2, move |group, folder| {
            training(folder, (0..24).map(sample).collect(), batch)
                .with_training_strategy(DataParallel::new(group, Device::default()).into())
                .grads_accumulation(sum)
                .launch(learner(&model))
        })
    };
    let (once, twice) = (run(6, 1), run(3, 2));
    assert_eq!(twice[0], twice[1]);
    let off = once[0].0.iter().zip(&twice[0].0).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-3, "{off}");
}

#[test]
fn all_ranks_end_when_one_is_stopped_and_say_which() {
    let found = on_ranks(&World::thread(), 3, |group, folder| {
        let interrupter = Interrupter::new();
        if group.rank() == 1 {
            interrupter.stop(Some("enough"));
        }
        training(folder, (0..24).map(sample).collect(), 3)
            .with_interrupter(interrupter)
            .with_training_strategy(DataParallel::new(group, Device::default()).into())
            .launch(learner(&Mlp::new(&Device::default().autodiff())))
    });
    let ended: Vec<_> = found.into_iter().map(|(_, ended)| ended.unwrap()).collect();
    assert_eq!(ended, ["rank 1 was stopped", "enough", "rank 1 was stopped"]);
}

/// Rank 0 alone is to stop when its loss gets no higher, which is soon. Nobody makes a million epochs.
#[test]
fn early_stopping_is_decided_by_rank_0_for_all() {
    let found = on_ranks(&World::thread(), 2, |group, folder| {
        let mut training = training(folder, (0..24).map(sample).collect(), 3)
            .metric_valid_numeric(LossMetric::new())
            .num_epochs(1_000_000)
            .with_training_strategy(DataParallel::new(group, Device::default()).into());
        if group.rank() == 0 {
            training = training.early_stopping(MetricEarlyStoppingStrategy::new(
                &LossMetric::new(),
                Aggregate::Mean,
                Direction::Highest,
                Split::Valid,
                StoppingCondition::NoImprovementSince { n_epochs: 1 },
            ));
        }
        training.launch(learner(&Mlp::new(&Device::default().autodiff())))
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].1, None);
}

#[test]
fn another_model_is_told_by_name() {
    let found = on_ranks(&World::thread(), 2, |group, folder| {
        let width = 8 + group.rank();
        let device = Device::default().autodiff();
        let model = Mlp {
            hidden: LinearConfig::new(1, width).init(&device),
            output: LinearConfig::new(width, 2).init(&device),
        };
        training(folder, (0..24).map(sample).collect(), 3)
            .with_training_strategy(DataParallel::new(group, Device::default()).into())
            .launch(learner(&model))
    });
    for (_, ended) in found {
        let ended = ended.unwrap();
        assert!(ended.contains("parameter `hidden.bias` differs"), "{ended}");
    }
}
