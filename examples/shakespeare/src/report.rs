//! What a run ends with, for people and for programs.

use anyhow::Context;
use examples_common::plot::{Curve, losses};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Losses of all ranks at some step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) step: u64,
    /// Mean since the point before.
    pub(crate) training: f64,
    /// Of the held-out text.
    pub(crate) held_out: f64,
}

/// The outcome of a training run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// At least one.
    pub(crate) points: Vec<Point>,
    /// How many weights the model has.
    pub(crate) parameters: usize,
    /// Checksum of the weights of each rank that has them all.
    pub(crate) weights: Vec<String>,
    /// Bytes of gradients that a rank has sent; 0 if they were not counted.
    pub(crate) bytes_sent: u64,
    /// Time spent on training since the program began, without start and evaluation.
    pub(crate) seconds: f64,
}

impl Report {
    /// Whether all ranks have the same weights, bit for bit.
    pub(crate) fn weights_agree(&self) -> bool {
        self.weights.iter().all(|w| *w == self.weights[0])
    }

    pub(crate) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))
    }

    pub(crate) fn draw(&self, title: &str, path: &Path) -> anyhow::Result<()> {
        let curve = |loss: fn(&Point) -> f64| -> Vec<_> {
            self.points.iter().map(|point| (point.step as f64, loss(point))).collect()
        };
        let (training, held_out) = (curve(|point| point.training), curve(|point| point.held_out));
        let curves =
            [Curve { name: "training", points: &training }, Curve { name: "held out", points: &held_out }];
        losses(&curves, title, "step", path)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { step, training, held_out } = self.points[self.points.len() - 1];
        writeln!(f, "steps          {step}, {} weights", self.parameters)?;
        writeln!(f, "training loss  {training:.4}")?;
        writeln!(f, "held-out loss  {held_out:.4}")?;
        writeln!(f, "training time  {:.1} s", self.seconds)?;
        if self.bytes_sent > 0 {
            writeln!(f, "sent           {:.1} MB a rank", self.bytes_sent as f64 / 1e6)?;
        }
        match (self.weights.len(), self.weights_agree()) {
            (1, _) => write!(f, "weights        {}", self.weights[0]),
            (n, true) => write!(f, "all {n} ranks have the same weights, bit for bit: {}", self.weights[0]),
            (_, false) => f.write_str("THE RANKS HAVE DIFFERENT WEIGHTS"),
        }
    }
}
