//! The same training by burn's own loop, which takes the ranks with one line.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use crate::model::{Cnn, batch};
use crate::train::{momentum, report};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Int, Tensor};
use burn_train::metric::LossMetric;
use burn_train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};
use examples_common::digits::cli::Options;
use examples_common::digits::images::{self, Images};
use phalanx::ProcessGroup;
use phalanx_burn::learner::DataParallel;
use std::sync::Arc;
use std::time::Instant;

type Batch = (Tensor<4>, Tensor<1, Int>);

impl TrainStep for Cnn {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Cnn {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, (images, labels): Batch) -> ClassificationOutput {
        let logits = self.forward(images);
        ClassificationOutput::new(Self::criterion(logits.clone(), labels.clone()), logits, labels)
    }
}

/// Makes batches of images by their numbers.
struct ByNumber(Arc<Images>);

impl Batcher<usize, Batch> for ByNumber {
    fn batch(&self, numbers: Vec<usize>, device: &Device) -> Batch {
        batch(&self.0, &numbers, device)
    }
}

fn loader(images: &Arc<Images>, batch_size: usize, seed: Option<u64>) -> Arc<dyn DataLoader<Batch>> {
    let loader = DataLoaderBuilder::new(ByNumber(images.clone())).batch_size(batch_size);
    let loader = seed.into_iter().fold(loader, DataLoaderBuilder::shuffle);
    loader.build(InMemDataset::new((0..images.len()).collect()))
}

/// Trains as one of the ranks of `group`.
pub(crate) fn train(group: &ProcessGroup, options: &Options) -> anyhow::Result<()> {
    let Options { epochs, batch_size, seed, lr, .. } = options;
    let (rank, ranks) = (group.rank(), group.world_size());
    anyhow::ensure!(ranks <= *batch_size, "a batch of {batch_size} is too small for {ranks} ranks");
    let (train, test) = images::load()?;
    let (train, test) = (Arc::new(train), Arc::new(test));
    let device = Device::default();
    let folder = std::env::temp_dir().join(format!("digits-burn-{}-{rank}", std::process::id())); // each rank's own

    if rank == 0 {
        println!("gradients are all_reduced over {}", group.describe());
    }
    let start = Instant::now();
    let optimizer: ModuleOptimizer = momentum().init();
    let (batches, held_out) = (loader(&train, batch_size / ranks, Some(*seed)), loader(&test, 360, None));
    let training = SupervisedTraining::new(&folder, batches, held_out)
        .with_training_strategy(DataParallel::new(group, device.clone()).into()) // the line
        .with_application_logger(None)
        .metric_valid_numeric(LossMetric::new())
        .num_epochs(*epochs as usize);
    let result = training.launch(Learner::new(Cnn::new(*seed, &device.autodiff()), optimizer, *lr));
    let seconds = start.elapsed().as_secs_f64();
    let _ = std::fs::remove_dir_all(&folder); // nobody reads burn's logs of an example
    if let Some(error) = result.error {
        anyhow::bail!("{error}");
    }
    report(group, &result.model, Vec::new(), seconds, options)
}
