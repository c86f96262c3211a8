//! How far the training is, in epochs and images.

use crate::progress;
use std::time::Duration;

/// Shows epoch, loss and speed.
#[derive(Debug)]
pub struct Progress {
    shown: progress::Progress,
    epochs: u64,
    /// In an epoch.
    steps: u64,
    images: usize,
}

impl Progress {
    /// Begins to show a run of `epochs` epochs of `steps` steps.
    pub fn new(epochs: u64, steps: usize) -> Self {
        let steps = steps as u64;
        Self { shown: progress::Progress::new(epochs * steps), epochs, steps, images: 0 }
    }

    /// Step `step` of epoch `epoch` (both from 0) over `images` images is done; their mean loss was `loss`.
    pub fn step(&mut self, epoch: u64, step: usize, loss: f64, images: usize) {
        self.images += images;
        let message = format!("{}, loss {loss:.4}, {:.0} images/s", self.epoch_of(epoch), self.speed());
        self.shown.step(epoch * self.steps + step as u64 + 1, &message);
    }

    /// Epoch `epoch` (from 0) is done; its mean loss was `loss`.
    pub fn epoch(&self, epoch: u64, loss: f64) {
        self.shown.line(&format!("{}  loss {loss:.6}  {:.0} images/s", self.epoch_of(epoch), self.speed()));
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.shown.elapsed()
    }

    fn epoch_of(&self, epoch: u64) -> String {
        format!("epoch {:>2}/{}", epoch + 1, self.epochs)
    }

    fn speed(&self) -> f64 {
        self.images as f64 / self.elapsed().as_secs_f64().max(1e-9)
    }
}
