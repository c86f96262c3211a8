//! The loop of each rank: its share of each batch, and the gradients of all.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use crate::model::{Cnn, batch, loss, right};
use examples_common::checksum_of;
use examples_common::digits::cli::Options;
use examples_common::digits::progress::Progress;
use examples_common::digits::report::Report;
use examples_common::digits::{images, plot};
use ferrotorch_nn::Module;
use ferrotorch_optim::{Optimizer, Sgd, SgdConfig};
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_ferrotorch::{DDP, DistributedSampler, Group};
use std::sync::Arc;

/// How much of the last step is carried into the next.
const MOMENTUM: f64 = 0.9;

/// Trains as one of the ranks of `group`.
pub(crate) fn train(group: &ProcessGroup, options: &Options) -> anyhow::Result<()> {
    let Options { epochs, batch_size, seed, lr, plot, json } = options;
    let (rank, ranks) = (group.rank(), group.world_size());
    anyhow::ensure!(ranks <= *batch_size, "a batch of {batch_size} is too small for {ranks} ranks");
    let (train, test) = images::load()?;

    let mut ddp = DDP::new(Cnn::new(*seed)?, Arc::new(Group::from(group.clone())));
    ddp.broadcast_parameters(0)?;
    let parameters = ddp.parameters().into_iter().cloned().collect();
    let mut optimizer = Sgd::new(parameters, SgdConfig::new(*lr).momentum(MOMENTUM));
    let sampler = DistributedSampler::new(train.len(), *batch_size, rank, ranks)?.seed(*seed);

    if rank == 0 {
        println!("gradients are all_reduced over {}", group.describe());
    }
    let mut progress = (rank == 0).then(|| Progress::new(*epochs, sampler.batches()));
    let mut epoch_losses = Vec::new();
    for epoch in 0..*epochs {
        let (mut sum, mut seen) = ([0.0], 0);
        for (step, share) in sampler.epoch(epoch).enumerate() {
            let (pixels, labels) = batch(&train, &share.indices)?;
            let loss = loss(&ddp.forward(&pixels)?, &labels)?;
            let value = loss.item()?;
            optimizer.zero_grad()?;
            ddp.backward_share(&loss, share.share())?;
            optimizer.step()?;

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

    ddp.verify_parameters()?;
    let named = ddp.named_parameters().into_iter();
    let named = named.map(|(name, parameter)| Ok((name, parameter.data_vec()?)));
    let weights = checksum_of(named.collect::<anyhow::Result<Vec<_>>>()?);
    let weights = group.all_gather_object(&weights)?;
    if let Some(progress) = progress {
        let seconds = progress.elapsed().as_secs_f64();
        let all = |images: &images::Images| batch(images, &Vec::from_iter(0..images.len()));
        let ((pixels, labels), (held_out, shown)) = (all(&train)?, all(&test)?);
        let final_loss = loss(&ddp.forward(&pixels)?, &labels)?.item()?;
        let test_accuracy = right(&ddp.forward(&held_out)?, &shown)? as f64 / test.len() as f64;
        let report = Report { epoch_losses, final_loss, test_accuracy, weights, seconds };
        println!("{report}");
        plot::loss_curve(&report.epoch_losses, &format!("digits with ferrotorch on {ranks} ranks"), plot)?;
        println!("loss curve: {}", plot.display());
        json.as_deref().map_or(Ok(()), |path| report.save(path))?;
    }
    Ok(())
}
