//! The loss curve as a picture.

use plotters::prelude::*;
use std::path::Path;

/// Draws the mean loss of each epoch to an SVG file.
///
/// # Errors
/// If the file cannot be written.
pub fn loss_curve(losses: &[f64], title: &str, path: &Path) -> anyhow::Result<()> {
    let area = SVGBackend::new(path, (720, 440)).into_drawing_area();
    area.fill(&WHITE)?;
    let top = losses.iter().copied().fold(0.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(1..losses.len().max(2), 0.0..top.max(f64::MIN_POSITIVE))?;
    chart.configure_mesh().light_line_style(WHITE).x_desc("epoch").y_desc("mean training loss").draw()?;
    let points = (1..).zip(losses.iter().copied());
    chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)).point_size(3))?;
    area.present()?;
    Ok(())
}
