//! What each rank does: the loop of `plain.rs`, with its share of each batch and the gradients of all.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use crate::saving::Saving;
use candle_core::Device;
use candle_nn::VarMap;
use digits_common::cli::Options;
use digits_common::model::Cnn;
use digits_common::optimizer::Sgd;
use digits_common::progress::Progress;
use digits_common::report::Report;
use digits_common::{data, plot};
use examples_common::checksum;
use phalanx::ReduceOp;
use phalanx_candle::checkpoint::{Checkpoints, State, load_vars, save_vars};
use phalanx_candle::{DistributedDataParallel, DistributedSampler, Group, SamplerState};
use serde::{Deserialize, Serialize};

/// How far the training is: what goes into a checkpoint besides weights and velocities.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    step: u64,
    data: SamplerState,
    epoch_losses: Vec<f64>,
    /// Losses of this epoch until now, over the images of all ranks, and how many these are.
    sum: f64,
    images: usize,
}

impl Place {
    /// An epoch is over, and the next begins at `data`.
    fn end_epoch(&mut self, data: SamplerState, progress: Option<&Progress>) {
        let loss = std::mem::take(&mut self.sum) / std::mem::take(&mut self.images) as f64;
        if let Some(progress) = progress {
            progress.epoch(self.epoch_losses.len() as u64, loss);
        }
        self.epoch_losses.push(loss);
        self.data = data;
    }
}

/// Trains as one of the ranks of `all`, with the model on `device`.
pub(crate) fn train(
    all: &impl Group,
    device: &Device,
    options: &Options,
    saving: &Saving,
) -> anyhow::Result<()> {
    let Options { epochs, batch_size, seed, lr, plot, json } = options;
    let group = all.host();
    let (rank, ranks) = (group.rank(), group.world_size());
    anyhow::ensure!(ranks <= *batch_size, "a batch of {batch_size} is too small for {ranks} ranks");
    let (train, test) = data::load()?;

    let varmap = VarMap::new();
    let model = Cnn::on(device, &varmap, *seed)?;
    let mut optimizer = Sgd::new(&varmap, *lr)?;
    let sampler = DistributedSampler::new(train.len(), *batch_size, rank, ranks)?.seed(*seed);

    let mut place = Place { step: 0, data: sampler.start(), epoch_losses: Vec::new(), sum: 0.0, images: 0 };
    let open = |folder| Checkpoints::open(folder, group).map(|checkpoints| checkpoints.keep(2));
    let mut checkpoints = saving.checkpoint.as_deref().map(open).transpose()?;
    if let Some(found) = checkpoints.as_mut().map(Checkpoints::latest_good).transpose()?.flatten() {
        load_vars(&varmap, "model", &found)?;
        found.restore("optimizer", &mut optimizer)?;
        place = found.value("place")?;
        if rank == 0 {
            println!("going on after step {}, saved by {} ranks", found.step(), found.world_size());
        }
    }
    let ddp = DistributedDataParallel::new(&varmap, all, Default::default())?;

    if rank == 0 {
        println!("gradients are all_reduced over {}", all.describe());
    }
    let mut progress = (rank == 0).then(|| Progress::new(*epochs, sampler.batches()));
    while place.data.epoch < *epochs {
        let epoch = place.data.epoch;
        let mut batches = sampler.resume(&place.data)?;
        // Of this rank, since `place.sum` was last brought up to date.
        let mut sum = [0.0];
        while let Some(batch) = batches.next() {
            let (images, labels) = train.batch(&batch.indices)?;
            let (loss, _) = model.evaluate(&images, &labels)?;
            let grads = ddp.backward_share(&loss, batch.share())?;
            optimizer.step(&grads)?;

            let loss = loss.to_scalar::<f64>()?;
            sum[0] += loss * batch.indices.len() as f64;
            if let Some(progress) = &mut progress {
                // The loss of this rank's share: that of all would cost a message each step.
                progress.step(epoch, sampler.batches() - batches.len() - 1, loss, batch.global_len);
            }

            (place.step, place.data) = (place.step + 1, batches.state());
            place.images += batch.global_len;
            let (ends, saves) = (batches.len() == 0, place.step.is_multiple_of(saving.checkpoint_every));
            if ends || saves {
                group.all_reduce(&mut sum, ReduceOp::Sum)?;
                place.sum += std::mem::take(&mut sum[0]);
            }
            if ends {
                place.end_epoch(batches.state(), progress.as_ref());
            }
            if let Some(checkpoints) = checkpoints.as_mut().filter(|_| saves) {
                let mut state = State::new();
                save_vars(&varmap, "model", &mut state)?;
                state.add("optimizer", &optimizer)?;
                state.value("place", &place)?;
                checkpoints.save_async(place.step, state)?; // writes while the next steps are trained
            }
        }
        if place.data.epoch == epoch {
            // It goes on with larger batches than it was saved with, and what was left made none of these.
            place.end_epoch(batches.state(), progress.as_ref());
        }
    }
    if let Some(checkpoints) = &mut checkpoints {
        checkpoints.wait()?;
    }

    let weights = group.all_gather_object(&checksum(&varmap)?)?;
    if let Some(progress) = progress {
        let seconds = progress.elapsed().as_secs_f64();
        let (images, labels) = train.all()?;
        let final_loss = model.evaluate(&images, &labels)?.0.to_scalar()?;
        let (images, labels) = test.all()?;
        let test_accuracy = model.evaluate(&images, &labels)?.1 as f64 / test.len() as f64;
        let report = Report { epoch_losses: place.epoch_losses, final_loss, test_accuracy, weights, seconds };
        println!("{report}");
        plot::loss_curve(&report.epoch_losses, &format!("digits on {ranks} ranks"), plot)?;
        println!("loss curve: {}", plot.display());
        json.as_deref().map_or(Ok(()), |path| report.save(path))?;
        anyhow::ensure!(report.weights_agree(), "the ranks have different weights");
    }
    Ok(())
}
