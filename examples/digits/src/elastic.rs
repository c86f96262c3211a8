//! The digits in a job that may lose ranks: the loop of `train.rs`, which after a loss goes on from where rank 0 was.
//!
//! The new rank 0 is a survivor if there is one. All take its place in the training, its weights and its optimizer's
//! velocities. The batch during which a rank was lost is done again, unless rank 0 had done it: no batch is left out, and none
//! is in the weights twice. A batch is the same images however many ranks share it.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use candle_nn::VarMap;
use digits_common::cli::Options;
use digits_common::data::Digits;
use digits_common::model::Cnn;
use digits_common::optimizer::Sgd;
use digits_common::progress::Progress;
use digits_common::report::Report;
use digits_common::{data, plot};
use examples_common::checksum;
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_candle::{DistributedDataParallel, DistributedSampler, sync_model, verify_parameters};
use serde::{Deserialize, Serialize};

/// How far the training is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Position {
    epoch: u64,
    /// Batches of this epoch that are done.
    batch: usize,
    epoch_losses: Vec<f64>,
    /// Groups until now.
    groups: u64,
}

/// Everything that goes on when the group does not.
struct Training<'a> {
    options: &'a Options,
    images: (Digits, Digits),
    varmap: VarMap,
    model: Cnn,
    optimizer: Sgd,
    position: Position,
    /// Of this rank in this epoch: losses, and of how many images. What lost ranks have found is lost with them.
    sum: [f64; 2],
    progress: Option<Progress>,
}

/// Trains as one of the ranks that the environment tells of, or as the replacement of one.
pub(crate) fn train(options: &Options) -> anyhow::Result<()> {
    let varmap = VarMap::new();
    let (model, optimizer) = (Cnn::new(&varmap, options.seed)?, Sgd::new(&varmap, options.lr)?);
    let (images, position) = (data::load()?, Position::default());
    let mut training =
        Training { options, images, varmap, model, optimizer, position, sum: [0.0; 2], progress: None };

    let mut group = phalanx::init()?;
    while let Err(error) = training.go_on(&group) {
        if !may_pass(&error) {
            return Err(error);
        }
        group = group.rejoin()?;
    }
    Ok(())
}

/// Whether the group has failed, and not this rank.
fn may_pass(error: &anyhow::Error) -> bool {
    let of_group = match error.downcast_ref::<phalanx_candle::Error>() {
        Some(phalanx_candle::Error::Group(error)) => Some(error),
        _ => error.downcast_ref::<phalanx::Error>(),
    };
    use phalanx::Error::{PeerLost, Poisoned, Timeout};
    matches!(of_group, Some(PeerLost { .. } | Timeout { .. } | Poisoned { .. }))
}

impl Training<'_> {
    /// Trains to the end with this group, from where its rank 0 is.
    fn go_on(&mut self, group: &ProcessGroup) -> anyhow::Result<()> {
        let Options { epochs, batch_size, seed, plot, json, .. } = self.options;
        let (rank, ranks) = (group.rank(), group.world_size());
        anyhow::ensure!(ranks <= *batch_size, "a batch of {batch_size} is too small for {ranks} ranks");
        self.position = group.broadcast_object(Some(self.position.clone()), 0)?;
        self.position.groups += 1;
        let ddp = DistributedDataParallel::new(&self.varmap, group, Default::default())?;
        sync_model(&self.optimizer.velocities(), group, 0)?;
        ddp.verify_parameters()?;
        verify_parameters(&self.optimizer.velocities(), group)?;

        let (train, test) = &self.images;
        let sampler = DistributedSampler::new(train.len(), *batch_size, rank, ranks)?.seed(*seed);
        if rank == 0 {
            let Position { epoch, batch, .. } = self.position;
            println!("from epoch {}, batch {batch}, over {}", epoch + 1, group.describe());
            self.progress.get_or_insert_with(|| Progress::new(*epochs, sampler.batches()));
        }
        while self.position.epoch < *epochs {
            let epoch = self.position.epoch;
            for batch in sampler.epoch(epoch).skip(self.position.batch) {
                let (images, labels) = train.batch(&batch.indices)?;
                let (loss, _) = self.model.evaluate(&images, &labels)?;
                // If a rank is lost, this fails before anything has changed.
                let grads = ddp.backward_share(&loss, batch.share())?;
                self.optimizer.step(&grads)?;

                let loss = loss.to_scalar::<f64>()?;
                self.sum[0] += loss * batch.indices.len() as f64;
                self.sum[1] += batch.indices.len() as f64;
                if let Some(progress) = self.progress.as_mut().filter(|_| rank == 0) {
                    progress.step(epoch, self.position.batch, loss, batch.global_len);
                }
                self.position.batch += 1;
            }
            let mut sum = self.sum;
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
            self.position.epoch_losses.push(sum[0] / sum[1].max(1.0));
            (self.position.epoch, self.position.batch, self.sum) = (epoch + 1, 0, [0.0; 2]);
        }

        let weights = group.all_gather_object(&checksum(&self.varmap)?)?;
        if let Some(progress) = self.progress.as_ref().filter(|_| rank == 0) {
            let seconds = progress.elapsed().as_secs_f64();
            let (images, labels) = train.all()?;
            let final_loss = self.model.evaluate(&images, &labels)?.0.to_scalar()?;
            let (images, labels) = test.all()?;
            let test_accuracy = self.model.evaluate(&images, &labels)?.1 as f64 / test.len() as f64;
            let epoch_losses = self.position.epoch_losses.clone();
            let report = Report { epoch_losses, final_loss, test_accuracy, weights, seconds };
            println!("{report}\n{} groups, one after the other", self.position.groups);
            plot::loss_curve(&report.epoch_losses, "digits on ranks that were lost and replaced", plot)?;
            println!("loss curve: {}", plot.display());
            json.as_deref().map_or(Ok(()), |path| report.save(path))?;
            anyhow::ensure!(report.weights_agree(), "the ranks have different weights");
        }
        group.clone().finalize()?;
        Ok(())
    }
}
