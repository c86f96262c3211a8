//! The loop of each rank: its share of each batch, and the gradients of all.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use crate::model::{Cnn, batch};
use examples_common::checksum_of;
use examples_common::digits::cli::Options;
use examples_common::digits::progress::Progress;
use examples_common::digits::report::Report;
use examples_common::digits::{images, plot};
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_tch::{DistributedDataParallel, DistributedSampler};
use tch::Device;
use tch::nn::{self, OptimizerConfig, VarStore};

/// How much of the last step is carried into the next.
const MOMENTUM: f64 = 0.9;

/// Trains as one of the ranks of `group`.
pub(crate) fn train(group: &ProcessGroup, options: &Options) -> anyhow::Result<()> {
    let Options { epochs, batch_size, seed, lr, plot, json } = options;
    let (rank, ranks) = (group.rank(), group.world_size());
    anyhow::ensure!(ranks <= *batch_size, "a batch of {batch_size} is too small for {ranks} ranks");
    let (train, test) = images::load()?;

    let mut store = VarStore::new(Device::Cpu);
    let model = Cnn::new(&mut store, *seed);
    let mut optimizer = nn::sgd(MOMENTUM, 0.0, 0.0, false).build(&store, *lr)?;
    let sampler = DistributedSampler::new(train.len(), *batch_size, rank, ranks)?.seed(*seed);
    let mut ddp = DistributedDataParallel::new(&store, group, Default::default())?;

    if rank == 0 {
        println!("gradients are all_reduced over {}", group.describe());
    }
    let mut progress = (rank == 0).then(|| Progress::new(*epochs, sampler.batches()));
    let mut epoch_losses = Vec::new();
    for epoch in 0..*epochs {
        let (mut sum, mut seen) = ([0.0], 0);
        for (step, share) in sampler.epoch(epoch).enumerate() {
            let loss = model.loss(&batch(&train, &share.indices));
            let value = f64::try_from(&loss)?;
            optimizer.zero_grad();
            ddp.backward_share(&loss, share.share())?;
            optimizer.step();

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
    let weights = group.all_gather_object(&checksum(&store)?)?;
    if let Some(progress) = progress {
        let seconds = progress.elapsed().as_secs_f64();
        let all = |images: &images::Images| batch(images, &Vec::from_iter(0..images.len()));
        let (final_loss, right) = tch::no_grad(|| (model.loss(&all(&train)), model.right(&all(&test))));
        let final_loss = f64::try_from(final_loss)?;
        let test_accuracy = right as f64 / test.len() as f64;
        let report = Report { epoch_losses, final_loss, test_accuracy, weights, seconds };
        println!("{report}");
        plot::loss_curve(&report.epoch_losses, &format!("digits with tch on {ranks} ranks"), plot)?;
        println!("loss curve: {}", plot.display());
        json.as_deref().map_or(Ok(()), |path| report.save(path))?;
    }
    Ok(())
}

/// Of all weights, in the order of their names.
fn checksum(store: &VarStore) -> anyhow::Result<String> {
    let mut named: Vec<_> = store.variables().into_iter().collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let values = named.into_iter().map(|(name, var)| Ok((name, Vec::<f64>::try_from(var.reshape(-1))?)));
    Ok(checksum_of(values.collect::<anyhow::Result<Vec<_>>>()?))
}
