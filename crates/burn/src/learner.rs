//! The training loop of `burn-train` on several ranks.

use crate::{DdpConfig, DistributedDataParallel, Error, Result, Share};
use burn_core::data::dataloader::DataLoaderIterator;
use burn_core::tensor::Device;
use burn_optim::{GradientsAccumulator, GradientsParams};
use burn_train::train::WorkerFailure;
use burn_train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents,
    TrainingError, TrainingItem, TrainingStrategy, ValidLoader,
};
use phalanx::{CallSite, ProcessGroup};
use std::sync::Arc;

/// A strategy for burn's `SupervisedTraining`: each rank trains on its part of the training set, with the gradients of all.
///
/// Pass it by one line: `training.with_training_strategy(DataParallel::new(&group, device).into())`. All the rest of the program stays, on every rank:
///
/// - The training set is cut into as many runs as there are ranks. A batch of the loader is a rank's: all ranks together make steps of `world_size` times its
///   size. Gradients count by the items of the batch, so runs of different lengths are no trouble.
/// - Training metrics are those of the rank's own batches. Each rank validates on the whole validation set, so these metrics are the same on all ranks, and
///   so is what is decided by them.
/// - With burn's accumulation of gradients, they are sent once for so many batches, which count alike.
/// - Each rank needs a directory of its own, for logs and for checkpoints, from which as many ranks go on.
/// - When one rank is stopped, or ends with an error, all of them end, and burn's result says why.
///
/// # Examples
/// ```
/// use burn::data::dataloader::DataLoaderBuilder;
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::data::dataset::InMemDataset;
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_train::{InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep};
/// use phalanx_burn::learner::DataParallel;
///
/// #[derive(Module, Debug)]
/// struct Line {
///     layer: Linear,
/// }
///
/// impl TrainStep for Line {
///     type Input = Tensor<2>; // points x, of which y is 3x + 1
///     type Output = RegressionOutput;
///
///     fn step(&self, x: Tensor<2>) -> TrainOutput<RegressionOutput> {
///         let output = InferenceStep::step(self, x);
///         TrainOutput::new(self, output.loss.backward(), output)
///     }
/// }
///
/// impl InferenceStep for Line {
///     type Input = Tensor<2>;
///     type Output = RegressionOutput;
///
///     fn step(&self, x: Tensor<2>) -> RegressionOutput {
///         let (y, found) = (x.clone() * 3.0 + 1.0, self.layer.forward(x));
///         RegressionOutput::new((found.clone() - y.clone()).square().mean(), found, y)
///     }
/// }
///
/// struct Points;
///
/// impl Batcher<f32, Tensor<2>> for Points {
///     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<2> {
///         let n = items.len();
///         Tensor::<1>::from_data(&items[..], device).reshape([n, 1])
///     }
/// }
///
/// let slopes = phalanx::on_threads(2, |group| {
///     let device = Device::default().autodiff();
///     let loader = |points: std::ops::Range<i32>| {
///         let points = InMemDataset::new(points.map(|i| i as f32 / 16.0).collect());
///         DataLoaderBuilder::new(Points).batch_size(4).build(points)
///     };
///     let folder = tempfile::tempdir().unwrap(); // each rank's own
///     let training = SupervisedTraining::new(folder.path(), loader(-16..16), loader(0..4))
///         .with_training_strategy(DataParallel::new(&group, device.clone()).into()) // the line
///         .with_application_logger(None)
///         .num_epochs(50);
///     let model = Line { layer: LinearConfig::new(1, 1).init(&device) }; // at random: different on each rank
///     let result = training.launch(Learner::new(model, SgdConfig::new().init(), 0.1));
///     assert!(result.error.is_none());
///     Ok(result.model.layer.weight.val().into_scalar::<f32>())
/// })?;
/// assert_eq!(slopes[0], slopes[1]);
/// assert!((slopes[0] - 3.0).abs() < 1e-2);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug)]
pub struct DataParallel {
    group: ProcessGroup,
    device: Device,
    config: DdpConfig,
    site: CallSite,
}

impl DataParallel {
    /// Trains as one of the ranks of `group`, on `device`, which is this rank's. As for burn's own loop, the model is made on one with `autodiff()`.
    #[track_caller]
    pub fn new(group: &ProcessGroup, device: Device) -> Self {
        Self::with_config(group, device, DdpConfig::default())
    }

    /// As [`new`](Self::new), with settings, which are the same on all ranks.
    #[track_caller]
    pub fn with_config(group: &ProcessGroup, device: Device, config: DdpConfig) -> Self {
        Self { group: group.clone(), device: device.autodiff(), config, site: CallSite::caller() }
    }

    /// This rank's failure, as burn tells it.
    fn failure(&self, error: &Error) -> TrainingError {
        TrainingError::Workers(vec![WorkerFailure {
            device_id: self.group.rank(),
            message: error.to_string(),
        }])
    }
}

impl<M: LearnerModel> From<DataParallel> for TrainingStrategy<M> {
    fn from(ranks: DataParallel) -> Self {
        Self::Custom(Arc::new(ranks))
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for DataParallel {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let (rank, ranks) = (self.group.rank(), self.group.world_size());
        let items = train.num_items();
        let train = train.slice(items * rank / ranks, items * (rank + 1) / ranks).to_device(&self.device);
        let valid = valid.to_device(&self.device.clone().inner());
        learner.fork(&self.device);

        let group = self.group.with_call_site(self.site.clone());
        let mut model = learner.model();
        let ddp = match DistributedDataParallel::new(&mut model, &group, self.config) {
            Ok(ddp) => ddp,
            Err(error) => {
                components.interrupter.fail(self.failure(&error));
                return (model, components.event_processor);
            }
        };
        learner.load_model(model.into_record()); // rank 0's
        let mut run = Run { group, ddp, learner, train, valid, components };
        if let Err(error) = run.all_epochs(starting_epoch) {
            run.components.interrupter.fail(self.failure(&error));
        }
        (run.learner.model(), run.components.event_processor)
    }
}

/// A training on one of the ranks.
struct Run<M: LearnerModel> {
    group: ProcessGroup,
    ddp: DistributedDataParallel,
    learner: Learner<M>,
    train: TrainLoader<M>,
    valid: ValidLoader<M>,
    components: TrainingComponents<M>,
}

impl<M: LearnerModel> Run<M> {
    fn all_epochs(&mut self, starting_epoch: usize) -> Result<()> {
        for epoch in starting_epoch..=self.components.num_epochs {
            let total_items = self.train.num_items();
            self.tell_train(LearnerEvent::StartSplit { epoch_number: epoch, total_items });
            let is_over = self.train_epoch()?;
            self.tell_train(LearnerEvent::EndSplit(epoch));
            if is_over {
                break;
            }
            self.validate(epoch);
            if self.end_epoch(epoch)? {
                break;
            }
        }
        Ok(())
    }

    /// An epoch on the training set. Returns whether the training ends with it, which all ranks agree on.
    fn train_epoch(&mut self) -> Result<bool> {
        let train = self.train.clone();
        let (mut batches, mut iteration) = (train.iter(), 0);
        loop {
            let mut outputs = Vec::new();
            let before = batches.progress().items_processed;
            let grads = self.gradients(&mut *batches, &mut iteration, &mut outputs);
            let items = batches.progress().items_processed - before;
            let Some(all) = self.agree(items)? else { return Ok(true) };
            if all == 0 {
                return Ok(false);
            }
            let grads = self.ddp.sync_gradients(&self.learner.model(), grads, Share::new(items, all))?;
            self.learner.lr_step();
            self.learner.optimizer_step(grads);
            for output in outputs {
                let output = TrainingItem { lr: Some(self.learner.lr_current()), ..output };
                self.tell_train(LearnerEvent::ProcessedItem(output));
            }
        }
    }

    /// The gradients of the next batches, as many as are to be added up; none, if there are no more.
    fn gradients(
        &self,
        batches: &mut dyn DataLoaderIterator<<M as TrainStep>::Input>,
        iteration: &mut usize,
        outputs: &mut Vec<TrainingItem<<M as TrainStep>::Output>>,
    ) -> GradientsParams {
        let mut sum = GradientsAccumulator::new();
        for _ in 0..self.components.grad_accumulation.unwrap_or(1) {
            let batch = match batches.next() {
                Some(Ok(batch)) => batch,
                Some(Err(error)) => {
                    self.components.interrupter.fail(error);
                    break;
                }
                None => break,
            };
            *iteration += 1;
            let output = self.learner.train_step(batch);
            sum.accumulate(&self.learner.model(), output.grads);
            outputs.push(TrainingItem::new(output.item, batches.progress(), Some(*iteration), None));
        }
        sum.grads()
    }

    /// The items of all ranks in this step; `None` if one of the ranks was stopped.
    fn agree(&self, items: usize) -> Result<Option<usize>> {
        let interrupter = &self.components.interrupter;
        let mine = [items as u64, u64::from(interrupter.should_stop())];
        let mut all = vec![0; mine.len() * self.group.world_size()];
        self.group.all_gather(&mine, &mut all)?;
        if let Some(rank) = all.chunks_exact(2).position(|of_rank| of_rank[1] != 0) {
            stop(interrupter, &format!("rank {rank} was stopped"));
            return Ok(None);
        }
        Ok(Some(all.chunks_exact(2).map(|of_rank| of_rank[0] as usize).sum()))
    }

    /// A pass over the validation set.
    fn validate(&mut self, epoch: usize) {
        let valid = self.valid.clone();
        let total_items = valid.num_items();
        self.tell_valid(LearnerEvent::StartSplit { epoch_number: epoch, total_items });
        let model = self.learner.model().valid();
        let (mut batches, mut iteration) = (valid.iter(), 0);
        while let Some(batch) = batches.next() {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    self.components.interrupter.fail(error);
                    break;
                }
            };
            iteration += 1;
            let output = InferenceStep::step(&model, batch);
            let item = TrainingItem::new(output, batches.progress(), Some(iteration), None);
            self.tell_valid(LearnerEvent::ProcessedItem(item));
            if self.components.interrupter.should_stop() {
                break;
            }
        }
        self.tell_valid(LearnerEvent::EndSplit(epoch));
    }

    /// Saves, if it is time to. Returns whether the training ends: rank 0 decides whether it is good enough.
    fn end_epoch(&mut self, epoch: usize) -> Result<bool> {
        self.tell_train(LearnerEvent::EndEpoch(epoch));
        let components = &mut self.components;
        if components.checkpointer.is_some() || components.early_stopping.is_some() {
            components.interrupter.fail_on_error(components.event_processor.flush());
        }
        if self.agree(0)?.is_none() {
            return Ok(true);
        }
        let components = &mut self.components;
        if let Some(checkpointer) = &mut components.checkpointer {
            checkpointer.checkpoint(&self.learner, epoch, &components.event_store);
        }
        let store = &components.event_store;
        let is_enough =
            components.early_stopping.as_mut().is_some_and(|stopping| stopping.should_stop(epoch, store));
        let mut of_rank_0 = [u8::from(is_enough)];
        self.group.broadcast(&mut of_rank_0, 0)?;
        Ok(of_rank_0[0] != 0)
    }

    fn tell_train(&mut self, event: LearnerEvent<<M as TrainStep>::Output>) {
        let components = &mut self.components;
        components.interrupter.fail_on_error(components.event_processor.process_train(event));
    }

    fn tell_valid(&mut self, event: LearnerEvent<<M as InferenceStep>::Output>) {
        let components = &mut self.components;
        components.interrupter.fail_on_error(components.event_processor.process_valid(event));
    }
}

/// Stops this rank too, unless it is the one that was stopped.
fn stop(interrupter: &Interrupter, why: &str) {
    if !interrupter.should_stop() {
        interrupter.stop(Some(why));
    }
}
