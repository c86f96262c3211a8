//! Tables for people: that of nccl-tests, a case a line, and that of the comparison, in Markdown.

use crate::compare::Row;
use crate::op::Place;
use crate::report::{Case, Measurement, Report};
use crate::sizes::short;
use crate::stats::median;
use phalanx::{DType, ReduceOp};
use std::fmt::Write;

/// The lines above all tables.
pub(crate) fn preamble(report: &Report) -> String {
    let machine = &report.machine;
    format!(
        "# phalanx {} ({}), {}\n# {machine}\n# {}\n",
        env!("CARGO_PKG_VERSION"),
        machine.commit,
        machine.compiler,
        report.method,
    )
}

/// The lines above the rows of one operation, one backend and one number of ranks.
pub(crate) fn head(measurement: &Measurement) -> String {
    let Measurement { case: Case { ranks, op, .. }, transport, place, library, .. } = measurement;
    let place = match place {
        Place::InPlace => "in place",
        Place::OutOfPlace => "out of place",
    };
    format!(
        "#\n# {library}: {op}, {ranks} ranks, {transport}, {place}\n\
         #{:>11} {:>12} {:>6} {:>8} {:>5} {:>10} {:>10} {:>8} {:>8} {:>7}\n\
         #{:>11} {:>12} {:>6} {:>8} {:>5} {:>10} {:>10} {:>8} {:>8}\n",
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "p99",
        "algbw",
        "busbw",
        "#wrong",
        "(B)",
        "(elements)",
        "",
        "",
        "",
        "(us)",
        "(us)",
        "(GB/s)",
        "(GB/s)",
    )
}

/// One case.
pub(crate) fn line(measurement: &Measurement, dtype: DType, reduce: ReduceOp) -> String {
    let Measurement { case, count, bytes, wrong, stats, .. } = measurement;
    let reduce = if case.op.reduces() { reduce.name() } else { "none" };
    let root = if case.op.has_root() { "0" } else { "-1" };
    format!(
        "{bytes:>12} {count:>12} {:>6} {reduce:>8} {root:>5} {:>10} {:>10} {:>8} {:>8} {wrong:>7}\n",
        dtype.name(),
        time(stats.p50_us),
        time(stats.p99_us),
        bandwidth(measurement.algbw()),
        bandwidth(measurement.busbw()),
    )
}

/// The lines below all tables.
pub(crate) fn foot(report: &Report) -> String {
    let wrong = report.wrong();
    let verdict = if wrong == 0 { "OK" } else { "FAILED" };
    format!(
        "#\n# Wrong elements: {wrong} {verdict}\n# Average bus bandwidth: {:.4}\n",
        report.average_busbw()
    )
}

/// For each operation, backend and number of ranks, a Markdown table: a line a size with our times, the peers' and the
/// ratios, one for each of ours.
pub(crate) fn comparison(rows: &[Row]) -> String {
    let mut text = String::new();
    for group in rows.chunk_by(|a, b| Case { asked_bytes: 0, ..a.case } == Case { asked_bytes: 0, ..b.case })
    {
        let Row { case: Case { ranks, op, .. }, transport, .. } = &group[0];
        let ours = distinct(group.iter().map(|row| row.library));
        let peers = distinct(group.iter().flat_map(|row| &row.peers).map(|peer| peer.peer));
        let has_best = group.iter().any(|row| row.best.is_some());
        let ratios = ours.iter().filter(|_| has_best).map(|name| match ours.len() {
            1 => "ratio to the best".to_owned(),
            _ => format!("{name} to the best"),
        });
        let head = ["size"].iter().chain(&ours).chain(&peers).map(|&name| name.to_owned());
        let mut cells = vec![head.chain(ratios).collect::<Vec<_>>()];
        for same in group.chunk_by(|a, b| a.case == b.case) {
            let row_of = |name: &&str| same.iter().find(|row| row.library == *name);
            let times = ours.iter().map(|name| row_of(name).map(|row| time(row.ours_us)));
            let theirs = peers.iter().map(|name| {
                let found: Vec<_> =
                    same.iter().flat_map(|row| &row.peers).filter(|peer| peer.peer == *name).collect();
                let ratios: Vec<_> = found.iter().map(|peer| ratio(peer.ratio)).collect();
                Some(format!("{} ({})", time(found.first()?.time_us), ratios.join(", ")))
            });
            let bests = ours.iter().filter(|_| has_best).map(|name| {
                let best = row_of(name)?.best.as_ref()?;
                Some(format!("**{}** ({})", ratio(best.ratio), best.peer))
            });
            let figures = times.chain(theirs).chain(bests).map(|cell| cell.unwrap_or_else(|| "–".to_owned()));
            cells.push([short(same[0].case.asked_bytes)].into_iter().chain(figures).collect());
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "**{op}, {ranks} ranks, {transport}**, median µs (ratio)\n");
        text += &markdown(&cells);
        text.push('\n');
    }
    text
}

/// The ratios to the best library at a glance, a line for each of our own; nothing where there is none.
pub(crate) fn summary(rows: &[Row]) -> Vec<String> {
    let mut names: Vec<&str> = rows.iter().map(|row| row.library).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter_map(|name| glance(name, rows)).collect()
}

fn glance(library: &str, rows: &[Row]) -> Option<String> {
    let cells: Vec<_> = rows
        .iter()
        .filter(|row| row.library == library)
        .filter_map(|row| Some((row, row.best.as_ref()?)))
        .collect();
    let (row, worst) = cells.iter().max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio))?;
    let typical = median(cells.iter().map(|(_, best)| best.ratio).collect())?;
    let within = |most: f64| cells.iter().filter(|(_, best)| best.ratio <= most).count();
    let (well, level) = (within(0.6), within(1.0));
    let Case { ranks, op, asked_bytes, .. } = row.case;
    let size = if asked_bytes > 0 { format!(" of {}", short(asked_bytes)) } else { String::new() };
    Some(format!(
        "{library}: {} cells: {well} at most 0.6, {} at most 1.0, {} above; median {}; worst {} ({op}{size}, {ranks} ranks, {}, beside {})",
        cells.len(),
        level - well,
        cells.len() - level,
        ratio(typical),
        ratio(worst.ratio),
        row.transport,
        worst.peer,
    ))
}

fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A table whose source can be read too.
pub(crate) fn markdown(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<_> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let padded = |row: &Vec<String>| {
        line(row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}")).collect())
    };
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        text += &padded(row);
        if number == 0 {
            text += &line(widths.iter().map(|&width| format!("{}:", "-".repeat(width.max(2) - 1))).collect());
        }
    }
    text
}

/// Three or four digits, in µs.
///
/// # Examples
/// ```
/// assert_eq!([1.25, 250.0].map(phalanx_bench::time), ["1.25", "250"]);
/// ```
pub fn time(us: f64) -> String {
    let digits = match us {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{us:.digits$}")
}

pub(crate) fn ratio(ours_to_theirs: f64) -> String {
    let digits = if ours_to_theirs < 0.1 { 3 } else { 2 };
    format!("{ours_to_theirs:.digits$}")
}

fn bandwidth(gigabytes: f64) -> String {
    let digits = match gigabytes {
        ..0.1 => 4,
        ..10.0 => 3,
        _ => 2,
    };
    format!("{gigabytes:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows;
    use crate::op::Op;
    use crate::report::tests::{case, measured, report};

    #[test]
    fn the_table_of_nccl_tests() {
        let all: Vec<_> =
            [(Op::Reduce, 4096, 1.5), (Op::AllGather, 1 << 26, 12_345.6), (Op::Barrier, 0, 12.3)]
                .into_iter()
                .map(|(op, bytes, time)| measured("phalanx", case(op, bytes), 0, time))
                .collect();
        let report = report(all);
        let body = report
            .measurements
            .iter()
            .map(|m| head(m) + &line(m, report.dtype, report.reduce))
            .collect::<String>();
        let text = preamble(&report).replace(env!("CARGO_PKG_VERSION"), "VERSION") + &body + &foot(&report);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_table_of_a_comparison() {
        let (small, large) = (case(Op::AllReduce, 64), case(Op::AllReduce, 1 << 20));
        let report = report(vec![
            measured("phalanx", small, 0, 1.25),
            measured("phalanx", large, 0, 250.0),
            measured("phalanx registered", large, 0, 125.0),
            measured("limit", large, 0, 100.0),
            measured("openmpi", small, 0, 5.0),
            measured("openmpi", large, 0, 200.0),
            measured("gloo", large, 0, 1000.0),
        ]);
        insta::assert_snapshot!(comparison(&rows(&report)));
    }

    #[test]
    fn the_summary_counts_cells_and_names_the_worst() {
        let of = |bytes, ours, theirs| {
            let case = case(Op::SendRecv, bytes);
            [
                measured("phalanx", case, 0, ours),
                measured("mpich", case, 0, theirs),
                measured("limit", case, 0, 0.1),
            ]
        };
        let all = [of(4, 1.0, 2.0), of(64, 3.0, 5.0), of(1024, 4.0, 4.0), of(4096, 5.0, 4.0)];
        assert_eq!(
            summary(&rows(&report(all.into_iter().flatten().collect()))),
            [
                "phalanx: 4 cells: 2 at most 0.6, 1 at most 1.0, 1 above; median 0.60; worst 1.25 (send_recv of 4 KiB, 2 ranks, tcp, beside mpich)"
            ]
        );
        let case = case(Op::AllReduce, 64);
        let no_library = report(vec![measured("phalanx", case, 0, 1.0), measured("limit", case, 0, 0.1)]);
        assert!(summary(&rows(&no_library)).is_empty());
    }
}
