//! The ratios of a comparison as a picture: an operation a row, a size a column, and the colour says who is faster.

use crate::compare::Row;
use crate::plot::{FONT, write};
use crate::report::Case;
use crate::sizes::short;
use crate::table::ratio;
use phalanx::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// The width and height of a cell, and the room for the names beside and above.
const CELL: (i32, i32) = (64, 26);
const NAMES: i32 = 130;
const HEAD: i32 = 56;

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// One grid: a backend, a number of ranks, and one of our own.
struct Grid<'a> {
    title: String,
    rows: Vec<&'a Row>,
}

/// Draws an SVG or a PNG, by the file's name: a grid for each backend and number of ranks.
///
/// # Errors
/// `Io`: the file cannot be written. `Unavailable`: a PNG needs a font, and there is none.
pub(crate) fn draw(rows: &[Row], path: &Path) -> Result<()> {
    write(svg(rows), path)
}

fn svg(rows: &[Row]) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let grids = grids(rows);
    let heights: Vec<i32> = grids.iter().map(|grid| HEAD + CELL.1 * ops(grid).len() as i32).collect();
    let columns = grids.iter().map(|grid| sizes(grid).len()).max().unwrap_or(1) as i32;
    let size = ((NAMES + CELL.0 * columns + 10) as u32, (heights.iter().sum::<i32>() + 10).max(40) as u32);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut top = 0;
        for (grid, height) in grids.iter().zip(heights) {
            draw_grid(&area, top, grid)?;
            top += height;
        }
        area.present()?;
    }
    Ok(text)
}

fn draw_grid(area: &DrawingArea<SVGBackend<'_>, Shift>, top: i32, grid: &Grid<'_>) -> Drawn {
    let (ops, sizes) = (ops(grid), sizes(grid));
    let text = |what: &str, (x, y), size: i32, h_pos| {
        let style = (FONT, size).into_font().color(&BLACK).pos(Pos::new(h_pos, VPos::Center));
        area.draw(&Text::new(what.to_owned(), (x, y), style))
    };
    text(&grid.title, (10, top + 18), 15, HPos::Left)?;
    for (column, bytes) in (0..).zip(&sizes) {
        let label = if *bytes > 0 { short(*bytes) } else { String::new() };
        text(&label, (NAMES + CELL.0 * column + CELL.0 / 2, top + HEAD - 12), 12, HPos::Center)?;
    }
    for (line, op) in (0..).zip(&ops) {
        let y = top + HEAD + CELL.1 * line;
        text(op, (NAMES - 8, y + CELL.1 / 2), 13, HPos::Right)?;
        for row in grid.rows.iter().filter(|row| row.case.op.name() == *op) {
            let (Some(best), Some(column)) =
                (&row.best, sizes.iter().position(|bytes| *bytes == row.case.asked_bytes))
            else {
                continue;
            };
            let x = NAMES + CELL.0 * column as i32;
            let color = color(best.ratio);
            area.draw(&Rectangle::new([(x + 1, y + 1), (x + CELL.0 - 1, y + CELL.1 - 1)], color.filled()))?;
            text(&ratio(best.ratio), (x + CELL.0 / 2, y + CELL.1 / 2), 12, HPos::Center)?;
        }
    }
    Ok(())
}

/// Green where we take less time than the best of the others, white where as much, red where more; full at a half and at twice the time.
fn color(ratio: f64) -> RGBColor {
    let strength = ratio.log2().clamp(-1.0, 1.0);
    let (red, green, blue) = if strength < 0.0 { (64.0, 168.0, 96.0) } else { (224.0, 88.0, 72.0) };
    let mixed = |full: f64| (255.0 + (full - 255.0) * strength.abs()).round() as u8;
    RGBColor(mixed(red), mixed(green), mixed(blue))
}

fn grids(rows: &[Row]) -> Vec<Grid<'_>> {
    let mut grids: Vec<Grid<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.best.is_some()) {
        let Case { ranks, .. } = row.case;
        let title = format!(
            "{}, {}, {ranks} ranks: time / that of the fastest other library",
            row.library, row.transport
        );
        match grids.iter_mut().find(|grid| grid.title == title) {
            Some(grid) => grid.rows.push(row),
            None => grids.push(Grid { title, rows: vec![row] }),
        }
    }
    grids
}

/// In the order of the measurements.
fn ops(grid: &Grid<'_>) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for name in grid.rows.iter().map(|row| row.case.op.name()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn sizes(grid: &Grid<'_>) -> Vec<usize> {
    let mut sizes: Vec<_> = grid.rows.iter().map(|row| row.case.asked_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows;
    use crate::op::Op;
    use crate::report::tests::{case, measured, report};

    #[test]
    fn a_grid_has_a_row_an_operation_and_a_coloured_number_a_cell() {
        let of = |op, bytes, ours, theirs| {
            let case = case(op, bytes);
            [measured("phalanx", case, 0, ours), measured("mpich", case, 0, theirs)]
        };
        let all = [
            of(Op::AllReduce, 4, 1.0, 2.0),
            of(Op::AllReduce, 1024, 4.0, 4.0),
            of(Op::SendRecv, 4, 5.0, 2.5),
            of(Op::Barrier, 0, 1.0, 4.0),
        ];
        let text = svg(&rows(&report(all.into_iter().flatten().collect()))).unwrap();
        for word in [
            "phalanx, tcp, 2 ranks",
            "all_reduce",
            "send_recv",
            "barrier",
            "1 KiB",
            "0.50",
            "1.00",
            "2.00",
            "0.25",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        for (ratio, hex) in [(0.5, "#40A860"), (1.0, "#FFFFFF"), (2.0, "#E05848"), (8.0, "#E05848")] {
            let RGBColor(red, green, blue) = color(ratio);
            assert_eq!(format!("#{red:02X}{green:02X}{blue:02X}"), hex);
            assert!(text.contains(hex), "{hex}");
        }
    }

    #[test]
    fn nothing_compared_is_an_empty_picture() {
        assert!(svg(&[]).unwrap().contains("</svg>"));
    }
}
