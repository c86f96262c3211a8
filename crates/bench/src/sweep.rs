//! Everything that was asked for, in an order in which figures compare.
//!
//! In every round each operation is measured by one library right after the other, and nobody always comes first.

use crate::backend::Backend;
use crate::flags::Flags;
use crate::library::{Library, is_interrupt};
use crate::line::Line;
use crate::machine::Machine;
use crate::op::Op;
use crate::progress::Progress;
use crate::report::{Case, Measurement, Report};
use crate::stats::Stats;
use crate::table;
use phalanx::Result;
use std::io::Write;

/// One operation on one backend with so many ranks: what one job measures.
#[derive(Debug, Clone, Copy)]
struct Setting {
    backend: Backend,
    ranks: usize,
    op: Op,
}

/// Measures everything; shows our own cases on `out` as they come, unless they will be compared or printed as JSON.
///
/// # Errors
/// What our own library returns; a peer that fails is left out, and that is said.
pub(crate) fn sweep(flags: &Flags, libraries: &[Library], out: &mut dyn Write) -> Result<Report> {
    let mut report = Report {
        machine: Machine::here(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        dtype: flags.dtype,
        reduce: flags.redop,
        method: method(flags),
        measurements: Vec::new(),
    };
    let live = !flags.json && libraries.len() == 1;
    let settings = settings(flags);
    let cases = |s: &Setting| flags.task(s.op, s.ranks).bytes.len();
    let per_round: usize = settings.iter().map(cases).sum();
    let progress = Progress::new(per_round * libraries.len() * flags.rounds());
    if live {
        progress.say(out, &table::preamble(&report));
    }
    for round in 0..flags.rounds() {
        for &setting in &settings {
            for turn in 0..libraries.len() {
                let library = &libraries[(turn + round) % libraries.len()];
                let Setting { op, ranks, backend } = setting;
                let (number, rounds) = (round + 1, flags.rounds());
                progress.begin(format!(
                    "{op}, {ranks} ranks, {}: {} ({number}/{rounds})",
                    backend.name(),
                    library.name()
                ));
                let shown = live && number == rounds;
                measure(flags, library, setting, round, &mut report, |report, first| {
                    if shown {
                        progress.say(out, &live_line(report, first));
                    }
                })?;
                progress.advance(cases(&setting));
            }
        }
    }
    Ok(report)
}

/// The job of one library; `shown` is called after each case, and told whether it is the first of its place.
fn measure(
    flags: &Flags,
    library: &Library,
    setting: Setting,
    round: usize,
    report: &mut Report,
    mut shown: impl FnMut(&Report, bool),
) -> Result<()> {
    let Setting { backend, ranks, op } = setting;
    let task = flags.task(op, ranks);
    if task.bytes.is_empty() || !library.knows(op, ranks) {
        return Ok(());
    }
    let first = report.measurements.len();
    let size = flags.dtype.size();
    let said = library.measure(backend, ranks, &task, |transport, line| {
        let case = Case { backend, ranks, op, asked_bytes: line.bytes };
        let Some(count) = op.count(line.bytes, ranks, size) else { return };
        let bytes = op.bytes(count, ranks, size);
        let (transport, stats) = (transport.to_owned(), Stats::of(&line));
        let Line { place, variant, wrong, .. } = line;
        let library = library.name();
        if wrong > 0 {
            tracing::warn!(library, %op, bytes, ranks, wrong, "elements came out wrong");
        }
        report.measurements.push(Measurement {
            case,
            round,
            library,
            transport,
            place,
            variant,
            count,
            bytes,
            wrong,
            stats,
        });
        let [earlier @ .., newest] = &report.measurements[first..] else { return };
        shown(report, earlier.last().is_none_or(|last| last.place != newest.place));
    });
    match said {
        Err(error) if matches!(library, Library::Peer(_)) && !is_interrupt(&error) => {
            tracing::warn!("{} with {op} of {ranks} ranks: {error}", library.name());
            Ok(())
        }
        said => said,
    }
}

/// The newest case, typical among its rounds.
fn live_line(report: &Report, first: bool) -> String {
    let newest = report.measurements.last();
    let typical = newest.and_then(|m| report.typical(m.case, m.library, &[m.place]));
    typical.map_or_else(String::new, |m| {
        let head = if first { table::head(m) } else { String::new() };
        head + &table::line(m, report.dtype, report.reduce)
    })
}

fn settings(flags: &Flags) -> Vec<Setting> {
    let of = |&backend| flags.ranks.iter().map(move |&ranks| (backend, ranks));
    let places = flags.backend.iter().flat_map(of);
    let all = |(backend, ranks)| flags.ops().iter().map(move |&op| Setting { backend, ranks, op });
    places.flat_map(all).collect()
}

/// How it is measured, for a reader of the figures.
fn method(flags: &Flags) -> String {
    let effort = flags.effort();
    let samples = match effort.samples {
        Some(samples) => format!("{samples} samples"),
        None => format!("{} ms", effort.budget.as_millis()),
    };
    let touch =
        if effort.touch { "buffers rewritten before each operation" } else { "buffers not rewritten" };
    let rounds = match flags.rounds() {
        1 => "of one round".to_owned(),
        rounds => format!("of {rounds} rounds"),
    };
    let hogs = match flags.hogs {
        0 => String::new(),
        number => format!("; beside {number} processes that spin"),
    };
    format!(
        "medians {rounds}, {samples} a case; a sample is the longest of all ranks, after a barrier; {touch}{hogs}"
    )
}
