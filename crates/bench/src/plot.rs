//! Latency and bandwidth over size, as a picture.

use crate::cells::Cells;
use crate::op::Place;
use crate::report::{Case, Report};
use crate::sizes::short;
use crate::subject::Subject;
use phalanx::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::{tiny_skia, usvg};
use std::path::Path;

/// The width and height of a panel.
const PANEL: (u32, u32) = (560, 320);
/// The width of the names beside the panels of a row.
const LEGEND: u32 = 170;
pub(crate) const FONT: &str = "sans-serif";

/// The sizes of what stands around the lines of a panel, in pixels, or in characters where it is text.
struct Margins {
    caption: u32,
    around: u32,
    below: u32,
    left: u32,
    line: u32,
    point: u32,
    tick: u32,
}

const OF_PICTURES: Margins =
    Margins { caption: 17, around: 10, below: 36, left: 60, line: 2, point: 3, tick: 5 };
const OF_TEXT: Margins = Margins { caption: 1, around: 0, below: 3, left: 12, line: 1, point: 0, tick: 1 };

/// One line of a panel: a name, and (size, time in µs, bus bandwidth in GB/s) for each case.
struct Series {
    name: String,
    points: Vec<(f64, f64, f64)>,
}

/// Draws an SVG or a PNG, by the file's name: an operation a row, latency on the left, bus bandwidth on the right, with a line
/// for each library, or for each backend and number of ranks.
///
/// # Errors
/// `Io`: the file cannot be written. `Unavailable`: a PNG needs a font, and there is none.
pub(crate) fn draw(report: &Report, path: &Path) -> Result<()> {
    write(svg(report), path)
}

/// Writes a picture that was drawn as an SVG to a file, as a PNG if that is its name's ending.
///
/// # Errors
/// As [`draw`]; `Internal`: it could not be drawn.
pub(crate) fn write(
    drawn: std::result::Result<String, Box<dyn std::error::Error>>,
    path: &Path,
) -> Result<()> {
    let svg = drawn.map_err(|error| Error::Internal { what: format!("drawing: {error}") })?;
    let bytes = match path.extension().and_then(|end| end.to_str()) {
        Some("png") => png(&svg)?,
        _ => svg.into_bytes(),
    };
    std::fs::write(path, bytes).map_err(|error| Error::io(format!("writing {}", path.display()), error))
}

/// The picture as the text of an SVG.
pub(crate) fn svg(report: &Report) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let rows = panels(report);
    let mut text = String::new();
    {
        let size = (2 * PANEL.0 + LEGEND, PANEL.1 * rows.len().max(1) as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        for (row, (title, series)) in area.split_evenly((rows.len().max(1), 1)).iter().zip(&rows) {
            let (left, rest) = row.split_horizontally(PANEL.0);
            let (right, names) = rest.split_horizontally(PANEL.0);
            panel(&left, &OF_PICTURES, title, "µs", &lines(series, |(size, time, _)| (size, time)))?;
            let bandwidth = lines(series, |(size, _, bandwidth)| (size, bandwidth));
            panel(&right, &OF_PICTURES, title, "GB/s on the bus", &bandwidth)?;
            legend(&names, series)?;
        }
        area.present()?;
    }
    Ok(text)
}

/// The names of the lines, with their colours, from the top.
fn legend(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    series: &[Series],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    for (number, Series { name, .. }) in series.iter().enumerate() {
        let y = 40 + 18 * number as i32;
        let line = Palette99::pick(number).stroke_width(OF_PICTURES.line);
        area.draw(&PathElement::new([(0, y), (16, y)], line))?;
        let style = (FONT, 12).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(name.clone(), (22, y), style))?;
    }
    Ok(())
}

/// A line of a panel: its name and its points.
pub(crate) type Line = (String, Vec<(f64, f64)>);

fn lines(series: &[Series], axes: impl Fn((f64, f64, f64)) -> (f64, f64)) -> Vec<Line> {
    let line = |of: &Series| (of.name.clone(), of.points.iter().map(|&point| axes(point)).collect());
    series.iter().map(line).collect()
}

/// The panel as text, its axes named in the title, `width` characters wide and `height` lines high, with a letter for each line: `a` for the first one.
pub(crate) fn text(title: &str, unit: &str, lines: &[Line], (width, height): (u32, u32)) -> Result<String> {
    let letters: Vec<_> =
        (0..lines.len()).map(|number| (Palette99::pick(number).rgb(), letter(number))).collect();
    let mut cells = Cells::new(width, height, letters);
    let title = format!("{title}: {unit} over size");
    panel(&(&mut cells).into_drawing_area(), &OF_TEXT, &title, "", lines)
        .map_err(|error| Error::Internal { what: format!("drawing: {error}") })?;
    let names = lines.iter().enumerate().map(|(number, (name, _))| format!("  {} {name}\n", letter(number)));
    Ok(cells.text() + &names.collect::<String>())
}

fn letter(number: usize) -> char {
    char::from_u32('a' as u32 + number as u32 % 26).unwrap_or('*')
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    margins: &Margins,
    title: &str,
    unit: &str,
    lines: &[Line],
) -> std::result::Result<(), Box<dyn std::error::Error>>
where
    B::ErrorType: 'static,
{
    let points = || lines.iter().flat_map(|(_, points)| points).copied();
    let around = |values: &mut dyn Iterator<Item = f64>, margin: f64| {
        let (least, most) = values.fold((f64::INFINITY, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
        (least / margin..most * margin).log_scale()
    };
    let x = around(&mut points().map(|point| point.0), 1.5).base(4.0);
    let y = around(&mut points().map(|point| point.1), 2.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, margins.caption))
        .margin(margins.around)
        .x_label_area_size(margins.below)
        .y_label_area_size(margins.left)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .set_all_tick_mark_size(margins.tick)
        .x_desc(if unit.is_empty() { "" } else { "size" })
        .y_desc(unit)
        .x_label_formatter(&|bytes| short(bytes.round() as usize))
        .y_label_formatter(&|value| decimal(*value))
        .draw()?;
    for (number, (_, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let line =
            LineSeries::new(points.clone(), color.stroke_width(margins.line)).point_size(margins.point);
        chart.draw_series(line)?;
    }
    Ok(())
}

/// A power of ten without an exponent, and without what is beyond its precision.
fn decimal(value: f64) -> String {
    let digits = (-value.log10() - 1e-9).ceil().max(0.0) as usize;
    format!("{value:.digits$}")
}

/// The rows of the picture with their lines. A barrier has no size and no place in it.
fn panels(report: &Report) -> Vec<(String, Vec<Series>)> {
    let libraries = report.libraries();
    let compares = libraries.len() > 1;
    let mut panels: Vec<(String, Vec<Series>)> = Vec::new();
    for case in report.cases().into_iter().filter(|case| case.asked_bytes > 0) {
        let Case { op, ranks, backend, .. } = case;
        let setting = format!("{}, {ranks} ranks", backend.name());
        let title = if compares { format!("{op}, {setting}") } else { op.to_string() };
        for library in libraries.iter().filter_map(|&library| report.typical(case, library, &Place::BOTH)) {
            let name = match compares {
                true if Subject::of(library.library).is_some() => library.library.to_owned(),
                true => format!("{} ({})", library.library, library.transport),
                false => format!("{}, {ranks} ranks", library.transport),
            };
            let point = (library.bytes as f64, library.stats.p50_us, library.busbw());
            let row = find_or_add(&mut panels, |row| row.0 == title, || (title.clone(), Vec::new()));
            let line = find_or_add(
                &mut row.1,
                |s| s.name == name,
                || Series { name: name.clone(), points: Vec::new() },
            );
            line.points.push(point);
        }
    }
    panels
}

fn find_or_add<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = all.iter().position(is).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[at]
}

/// The picture in pixels, two for each unit of length.
fn png(svg: &str) -> Result<Vec<u8>> {
    let failed = |what: String| Error::Internal { what: format!("drawing a PNG: {what}") };
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    let Some(family) = fonts.faces().next().map(|face| face.families[0].0.clone()) else {
        let tried = "the system's fonts; install one, such as fonts-dejavu-core, or name an .svg file".into();
        return Err(Error::Unavailable { what: "a font for the PNG".into(), tried });
    };
    let has_sans_serif = {
        let families = &[usvg::fontdb::Family::SansSerif];
        fonts.query(&usvg::fontdb::Query { families, ..Default::default() }).is_some()
    };
    if !has_sans_serif {
        let sans = |face: &&usvg::fontdb::FaceInfo| face.families[0].0.ends_with("Sans");
        let sans = fonts.faces().find(sans).map(|face| face.families[0].0.clone());
        fonts.set_sans_serif_family(sans.unwrap_or(family));
    }
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| failed(error.to_string()))?;
    let size = tree.size().to_int_size();
    let pixels = tiny_skia::Pixmap::new(2 * size.width(), 2 * size.height());
    let mut pixels = pixels.ok_or_else(|| failed("it is too large".to_owned()))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(2.0, 2.0), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::report::tests::{case, measured, report};

    fn two_libraries() -> Report {
        let cases = [4, 1 << 10, 1 << 20].map(|bytes| case(Op::AllReduce, bytes));
        let of = |library, time: f64| cases.map(|case| measured(library, case, 0, time));
        let barrier = measured("phalanx", case(Op::Barrier, 0), 0, 1.0);
        report([of("phalanx", 1.0), of("mpich", 2.0)].into_iter().flatten().chain([barrier]).collect())
    }

    #[test]
    fn a_picture_names_what_it_shows() {
        let text = svg(&two_libraries()).unwrap();
        for name in ["all_reduce, tcp, 2 ranks", "phalanx", "mpich (tcp)", "1 KiB", "GB/s", "size"] {
            assert!(text.contains(name), "{name}");
        }
        assert!(!text.contains("barrier"));
    }

    #[test]
    fn panels_hold_a_line_a_library() {
        let panels = panels(&two_libraries());
        let lines: Vec<_> = panels[0].1.iter().map(|line| (line.name.as_str(), line.points.len())).collect();
        assert_eq!((panels.len(), lines), (1, vec![("phalanx", 3), ("mpich (tcp)", 3)]));
    }

    #[test]
    fn a_panel_of_text_has_a_letter_for_each_line() {
        let line = |name: &str, factor: f64| {
            (name.to_owned(), (1..=6).map(|shift| (4f64.powi(shift), factor * f64::from(shift))).collect())
        };
        let text = text("all_reduce", "µs", &[line("ring", 100.0), line("flat", 1.0)], (60, 14)).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn axes_are_labelled_in_decimals() {
        for (value, text) in
            [(1e-5, "0.00001"), (0.000_009_999_999_999_9, "0.00001"), (1.0, "1"), (1e4, "10000")]
        {
            assert_eq!(decimal(value), text);
        }
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        assert!(svg(&report(Vec::new())).unwrap().contains("</svg>"));
    }
}
