//! What a run ends with, for people and for programs.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// The outcome of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Mean loss of each epoch, measured while training.
    pub epoch_losses: Vec<f64>,
    /// Mean loss of the trained model over all training images.
    pub final_loss: f64,
    /// Part of the held-out images that the trained model recognises.
    pub test_accuracy: f64,
    /// Checksum of the weights of each rank.
    pub weights: Vec<String>,
    /// Time spent on training, without start and evaluation.
    pub seconds: f64,
}

impl Report {
    /// Whether all ranks have the same weights, bit for bit.
    pub fn weights_agree(&self) -> bool {
        self.weights.iter().all(|w| *w == self.weights[0])
    }

    /// Writes this as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "test accuracy  {:.2} %", 100.0 * self.test_accuracy)?;
        writeln!(f, "final loss     {:.9}", self.final_loss)?;
        writeln!(f, "training time  {:.1} s", self.seconds)?;
        for (rank, checksum) in self.weights.iter().enumerate() {
            writeln!(f, "rank {rank} weights {checksum}")?;
        }
        match (self.weights.len(), self.weights_agree()) {
            (1, _) => f.write_str("one rank"),
            (n, true) => write!(f, "all {n} ranks have the same weights, bit for bit"),
            (_, false) => f.write_str("THE RANKS HAVE DIFFERENT WEIGHTS"),
        }
    }
}
