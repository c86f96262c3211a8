//! What each rank does: the loop of `plain.rs`, with its share of each batch and the gradients of all.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use candle_nn::VarMap;
use digits_common::cli::Options;
use digits_common::model::Cnn;
use digits_common::optimizer::Sgd;
use digits_common::progress::Progress;
use digits_common::report::{Report, checksum};
use digits_common::{data, plot};
use phalanx::ReduceOp;
use phalanx_candle::{DistributedDataParallel, DistributedSampler};

/// Trains as one of the ranks that the environment tells of.
pub(crate) fn train(options: &Options) -> anyhow::Result<()> {
    let Options { epochs, batch_size, seed, lr, plot, json } = options;
    let group = phalanx::init()?;
    let (rank, ranks) = (group.rank(), group.world_size());
    let (train, test) = data::load()?;

    let varmap = VarMap::new();
    let model = Cnn::new(&varmap, *seed)?;
    let mut optimizer = Sgd::new(&varmap, *lr)?;
    let ddp = DistributedDataParallel::new(&varmap, &group, Default::default())?;
    let sampler = DistributedSampler::new(train.len(), *batch_size, rank, ranks)?.seed(*seed);

    if rank == 0 {
        println!("gradients are all_reduced over {}", group.describe());
    }
    let mut epoch_losses = Vec::new();
    let mut progress = (rank == 0).then(|| Progress::new(*epochs, sampler.batches()));
    for epoch in 0..*epochs {
        let mut sum = [0.0];
        for (step, batch) in sampler.epoch(epoch).enumerate() {
            let (images, labels) = train.batch(&batch.indices)?;
            let (loss, _) = model.evaluate(&images, &labels)?;
            let grads = ddp.backward_share(&loss, batch.share())?;
            optimizer.step(&grads)?;

            let loss = loss.to_scalar::<f64>()?;
            sum[0] += loss * batch.indices.len() as f64;
            if let Some(progress) = &mut progress {
                // The loss of this rank's share: that of all would cost a message each step.
                progress.step(epoch, step, loss, batch.global_len);
            }
        }
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        let loss = sum[0] / (sampler.batches() * batch_size) as f64;
        epoch_losses.push(loss);
        if let Some(progress) = &progress {
            progress.epoch(epoch, loss);
        }
    }

    let weights = group.all_gather_object(&checksum(&varmap)?)?;
    if let Some(progress) = progress {
        let seconds = progress.elapsed().as_secs_f64();
        let (images, labels) = train.all()?;
        let final_loss = model.evaluate(&images, &labels)?.0.to_scalar()?;
        let (images, labels) = test.all()?;
        let test_accuracy = model.evaluate(&images, &labels)?.1 as f64 / test.len() as f64;
        let report = Report { epoch_losses, final_loss, test_accuracy, weights, seconds };
        println!("{report}");
        plot::loss_curve(&report.epoch_losses, &format!("digits on {ranks} ranks"), plot)?;
        println!("loss curve: {}", plot.display());
        json.as_deref().map_or(Ok(()), |path| report.save(path))?;
        anyhow::ensure!(report.weights_agree(), "the ranks have different weights");
    }
    group.finalize()?;
    Ok(())
}
