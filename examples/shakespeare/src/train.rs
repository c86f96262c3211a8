//! What each rank does: its share of each batch, a look at the held-out text now and then, checkpoints.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use crate::flags::Flags;
use crate::report::{Point, Report};
use crate::text::{self, Text};
use crate::trainer::{self, Trainer};
use crate::{rate, write};
use examples_common::checksum;
use examples_common::progress::Progress;
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_candle::checkpoint::{Checkpoints, State};
use phalanx_candle::{DistributedSampler, SamplerState};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Windows of the held-out text to look at, all ranks together.
const HELD_OUT: usize = 128;

/// How far the training is: what goes into a checkpoint besides the trainer.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    step: u64,
    data: SamplerState,
    points: Vec<Point>,
    /// Losses since the last point, of all ranks' windows, and how many those were.
    losses: [f64; 2],
}

/// Trains as one of the ranks that the environment tells of.
pub(crate) fn train(flags: &Flags) -> anyhow::Result<()> {
    let group = phalanx::init()?;
    let (rank, ranks) = (group.rank(), group.world_size());
    anyhow::ensure!(ranks <= flags.batch_size, "{ranks} ranks can't share batches of {}", flags.batch_size);
    let (train, held_out, alphabet) = text::load(flags.size.context)?;
    let sampler = DistributedSampler::new(train.windows(), flags.batch_size, rank, ranks)?.seed(flags.seed);
    anyhow::ensure!(
        sampler.batches() > 0,
        "the text has {} windows of {} characters, too few for one batch of {}",
        train.windows(),
        flags.size.context,
        flags.batch_size
    );

    let mut trainer = trainer::new(flags, alphabet.len(), &group)?;
    let mut place = Place { step: 0, data: sampler.start(), points: Vec::new(), losses: [0.0; 2] };
    let open = |folder| Checkpoints::open(folder, &group).map(|checkpoints| checkpoints.keep(2));
    let mut checkpoints = flags.checkpoint.as_deref().map(open).transpose()?;
    if let Some(found) = checkpoints.as_mut().map(Checkpoints::latest_good).transpose()?.flatten() {
        trainer.load(&found)?;
        place = found.value("place")?;
        if rank == 0 {
            println!("going on after step {}, saved by {} ranks", found.step(), found.world_size());
        }
        let (done, ends) = (place.step, flags.steps);
        anyhow::ensure!(
            done < ends || place.points.last().is_some_and(|point| point.step == ends),
            "step {done} is saved already, and this training is to end at step {ends}"
        );
    }

    if rank == 0 {
        println!("training {} over {}", flags.described(), group.describe());
    }
    let progress = (rank == 0).then(|| Progress::new(flags.steps));
    let (begun, mut evaluating) = (Instant::now(), 0.0);
    let mut batches = sampler.resume(&place.data)?;
    // Of this rank, since `place.losses` was last brought up to date.
    let mut losses = [0.0; 2];
    while place.step < flags.steps {
        let Some(batch) = batches.next() else {
            batches = sampler.resume(&batches.state())?; // the next epoch
            continue;
        };
        let rate = rate::at(place.step, flags.steps, flags.lr);
        let loss = trainer.step(&train.batch(&batch.indices)?, batch.share(), rate)?;
        losses[0] += loss * batch.indices.len() as f64;
        losses[1] += batch.indices.len() as f64;
        (place.step, place.data) = (place.step + 1, batches.state());
        if let Some(progress) = &progress {
            // The loss of this rank's share: that of all would cost a message each step.
            progress.step(place.step, &format!("loss {loss:.3}"));
        }

        if place.step == flags.steps {
            trainer.finish()?;
        }
        let evaluates = place.step.is_multiple_of(flags.evaluate_every) || place.step == flags.steps;
        let saves = place.step.is_multiple_of(flags.checkpoint_every);
        if evaluates || saves {
            group.all_reduce(&mut losses, ReduceOp::Sum)?;
            let [sum, windows] = std::mem::take(&mut losses);
            place.losses = [place.losses[0] + sum, place.losses[1] + windows];
        }
        if evaluates {
            let begun = Instant::now();
            let [sum, windows] = std::mem::take(&mut place.losses);
            let point = Point {
                step: place.step,
                training: sum / windows,
                held_out: evaluate(trainer.as_ref(), &held_out, &group)?,
            };
            place.points.push(point);
            evaluating += begun.elapsed().as_secs_f64();
            if let Some(progress) = &progress {
                let Point { step, training, held_out } = point;
                progress.line(&format!("step {step:>5}  training {training:.4}  held out {held_out:.4}"));
            }
        }
        if let Some(checkpoints) = checkpoints.as_mut().filter(|_| saves) {
            let mut state = State::new();
            trainer.save(&mut state)?;
            state.value("place", &place)?;
            checkpoints.save_async(place.step, state)?; // writes while the next steps are trained
        }
    }
    if let Some(checkpoints) = &mut checkpoints {
        checkpoints.wait()?;
    }
    let seconds = begun.elapsed().as_secs_f64() - evaluating;

    let varmap = trainer.weights()?;
    let weights = group.all_gather_object(&varmap.as_ref().map(checksum).transpose()?)?;
    let mut written = String::new();
    trainer.with_model(&mut |model| {
        written = write::write(model, &alphabet, flags.size.context, flags.write, flags.seed)?;
        Ok(())
    })?;
    if let Some(varmap) = varmap.filter(|_| rank == 0) {
        let weights = weights.into_iter().flatten().collect();
        let parameters = varmap.all_vars().iter().map(|var| var.elem_count()).sum();
        let bytes_sent = trainer.bytes_sent().unwrap_or(0);
        let report = Report { points: place.points, parameters, weights, bytes_sent, seconds };
        println!("{written}\n\n{report}");
        report.draw(&format!("Shakespeare on {ranks} ranks, {}", flags.described()), &flags.plot)?;
        println!("loss curves: {}", flags.plot.display());
        flags.json.as_deref().map_or(Ok(()), |path| report.save(path))?;
        anyhow::ensure!(report.weights_agree(), "the ranks have different weights");
    }
    group.finalize()?;
    Ok(())
}

/// Mean loss of the first windows of the held-out text, each rank having looked at its part of them.
fn evaluate(trainer: &dyn Trainer, held_out: &Text, group: &ProcessGroup) -> anyhow::Result<f64> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let mut mine: Vec<usize> = (rank..HELD_OUT.min(held_out.windows())).step_by(ranks).collect();
    let counted = mine.len() as f64;
    if mine.is_empty() {
        // All ranks let the model work, for some have a part of it only. Here it counts for nothing.
        mine.push(0);
    }
    let (now, next) = held_out.batch(&mine)?;
    let mut loss = [0.0, counted];
    trainer.with_model(&mut |model| {
        loss[0] = f64::from(model.loss(&now, &next)?.to_scalar::<f32>()?) * counted;
        Ok(())
    })?;
    group.all_reduce(&mut loss, ReduceOp::Sum)?;
    Ok(loss[0] / loss[1])
}
