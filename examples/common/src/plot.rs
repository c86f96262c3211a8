//! Loss curves as a picture.

use plotters::prelude::*;
use std::path::Path;

/// One of the curves.
#[derive(Debug)]
pub struct Curve<'a> {
    /// The label in the legend.
    pub name: &'a str,
    /// Where along the axis, and the loss there.
    pub points: &'a [(f64, f64)],
}

/// Draws losses to an SVG file, over what `along` says; with a legend if there are several curves.
///
/// # Errors
/// If the file cannot be written.
pub fn losses(curves: &[Curve<'_>], title: &str, along: &str, path: &Path) -> anyhow::Result<()> {
    let points = || curves.iter().flat_map(|curve| curve.points);
    let first = points().map(|&(x, _)| x).fold(f64::INFINITY, f64::min).min(1.0);
    let last = points().map(|&(x, _)| x).fold(first + 1.0, f64::max);
    let top = points().map(|&(_, y)| y).filter(|y| y.is_finite()).fold(f64::MIN_POSITIVE, f64::max) * 1.05;

    let area = SVGBackend::new(path, (720, 440)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(first..last, 0.0..top)?;
    let whole = |x: &f64| format!("{x:.0}");
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(WHITE).x_label_formatter(&whole).x_desc(along).y_desc("mean loss").draw()?;
    for (curve, color) in curves.iter().zip([BLUE, RED, GREEN, MAGENTA].iter().cycle()) {
        let style = color.stroke_width(2);
        let line = LineSeries::new(curve.points.iter().copied(), style).point_size(2);
        let key = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style);
        chart.draw_series(line)?.label(curve.name).legend(key);
    }
    if curves.len() > 1 {
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    }
    area.present()?;
    Ok(())
}
