//! The loop of each rank: its share of each batch, and the gradients of all.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use crate::model::{Cnn, batch};
use burn::module::Module;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::Device;
use examples_common::checksum_of;
use examples_common::digits::cli::Options;
use examples_common::digits::progress::Progress;
use examples_common::digits::report::Report;
use examples_common::digits::{images, plot};
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_burn::{DistributedDataParallel, DistributedSampler};

/// How much of the last step is carried into the next.
const MOMENTUM: f64 = 0.9;

/// Trains as one of the ranks of `group`.
pub(crate) fn train(group: &ProcessGroup, options: &Options) -> anyhow::Result<()> {
    let Options { epochs, batch_size, seed, lr, .. } = options;
    let (rank, ranks) = (group.rank(), group.world_size());
    anyhow::ensure!(ranks <= *batch_size, "a batch of {batch_size} is too small for {ranks} ranks");
    let (train, _) = images::load()?;
    let device = Device::default().autodiff();

    let mut model = Cnn::new(*seed, &device);
    let mut optimizer: ModuleOptimizer = momentum().init();
    let sampler = DistributedSampler::new(train.len(), *batch_size, rank, ranks)?.seed(*seed);
    let mut ddp = DistributedDataParallel::new(&mut model, group, Default::default())?;

    if rank == 0 {
        println!("gradients are all_reduced over {}", group.describe());
    }
    let mut progress = (rank == 0).then(|| Progress::new(*epochs, sampler.batches()));
    let mut epoch_losses = Vec::new();
    for epoch in 0..*epochs {
        let (mut sum, mut seen) = ([0.0], 0);
        for (step, share) in sampler.epoch(epoch).enumerate() {
            let loss = model.loss(batch(&train, &share.indices, &device));
            let value: f64 = loss.clone().into_scalar();
            let grads = ddp.backward_share(&model, loss, share.share())?;
            model = optimizer.step(*lr, model, grads);

            sum[0] += value * share.indices.len() as f64;
            seen += share.global_len;
            if let Some(progress) = &mut progress {
                // The loss of this rank's share: that of all would cost a message each step.
                progress.step(epoch, step, value, share.global_len);
            }
        }
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        epoch_losses.push(sum[0] / seen as f64);
        if let Some(progress) = &progress {
            progress.epoch(epoch, epoch_losses[epoch as usize]);
        }
    }

    ddp.verify_parameters(&model)?;
    let seconds = progress.map_or(0.0, |progress| progress.elapsed().as_secs_f64());
    report(group, &model.valid(), epoch_losses, seconds, options)
}

/// Gradient descent that keeps a part of the last step.
pub(crate) fn momentum() -> SgdConfig {
    let momentum = MomentumConfig::new().with_momentum(MOMENTUM).with_dampening(0.0);
    SgdConfig::new().with_momentum(Some(momentum))
}

/// Compares the ranks' weights, and has rank 0 evaluate the trained model and write what came of it.
pub(crate) fn report(
    group: &ProcessGroup,
    model: &Cnn,
    epoch_losses: Vec<f64>,
    seconds: f64,
    options: &Options,
) -> anyhow::Result<()> {
    let weights = group.all_gather_object(&checksum_of(model.weights()))?;
    if group.rank() != 0 {
        return Ok(());
    }
    let (train, test) = images::load()?;
    let device = Device::default();
    let all = |images: &images::Images| batch(images, &Vec::from_iter(0..images.len()), &device);
    let final_loss = model.loss(all(&train)).into_scalar();
    let test_accuracy = model.right(all(&test)) as f64 / test.len() as f64;
    let report = Report { epoch_losses, final_loss, test_accuracy, weights, seconds };
    println!("{report}");
    if !report.epoch_losses.is_empty() {
        let title = format!("digits with burn on {} ranks", group.world_size());
        plot::loss_curve(&report.epoch_losses, &title, &options.plot)?;
        println!("loss curve: {}", options.plot.display());
    }
    options.json.as_deref().map_or(Ok(()), |path| report.save(path))
}
