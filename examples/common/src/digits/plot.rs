//! The loss curve as a picture.

use crate::plot::{Curve, losses};
use std::path::Path;

/// Draws the mean loss of each epoch to an SVG file.
///
/// # Errors
/// If the file cannot be written.
pub fn loss_curve(epoch_losses: &[f64], title: &str, path: &Path) -> anyhow::Result<()> {
    let points: Vec<_> = (1..).map(f64::from).zip(epoch_losses.iter().copied()).collect();
    losses(&[Curve { name: "training", points: &points }], title, "epoch", path)
}
