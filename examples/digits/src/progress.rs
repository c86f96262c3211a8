//! How far the training is: a bar on a terminal, a line an epoch elsewhere.
#![allow(clippy::print_stdout, reason = "showing progress is what this is for")]

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Shows epoch, loss and speed.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    epochs: u64,
    started: Instant,
    images: usize,
}

impl Progress {
    /// Begins to show a run of `epochs` epochs of `steps` steps.
    ///
    /// # Panics
    /// Never: the template is a constant.
    pub fn new(epochs: u64, steps: usize) -> Self {
        let style = "{prefix} {bar:32} {pos}/{len} steps, {msg}, {eta} left";
        // Draws to the standard error output, and only if that is a terminal.
        let bar = ProgressBar::new(epochs * steps as u64)
            .with_style(ProgressStyle::with_template(style).expect("the template is valid"));
        Self { bar, epochs, started: Instant::now(), images: 0 }
    }

    /// A step of epoch `epoch` (from 0) over `images` images is done; their mean loss was `loss`.
    pub fn step(&mut self, epoch: u64, loss: f64, images: usize) {
        self.images += images;
        self.bar.set_prefix(format!("epoch {:>2}/{}", epoch + 1, self.epochs));
        self.bar.set_message(format!("loss {loss:.4}, {:.0} images/s", self.speed()));
        self.bar.inc(1);
    }

    /// Epoch `epoch` (from 0) is done; its mean loss was `loss`.
    pub fn epoch(&self, epoch: u64, loss: f64) {
        if self.bar.is_hidden() {
            println!("epoch {:>2}/{}  loss {loss:.6}  {:.0} images/s", epoch + 1, self.epochs, self.speed());
        }
    }

    /// Training is done. Returns how long it took.
    pub fn finish(self) -> Duration {
        self.bar.finish();
        self.started.elapsed()
    }

    fn speed(&self) -> f64 {
        self.images as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
    }
}
