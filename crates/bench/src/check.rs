//! A run beside an earlier record of the same machine: which cells have become slower.

use crate::machine::Machine;
use crate::op::Place;
use crate::report::{Case, Report};
use crate::sizes::short;
use crate::stats::median;
use crate::subject::Subject;
use crate::table::{ratio, time};
use phalanx::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A cell that takes more than this many times what it took is slower.
const SLOWER: f64 = 1.10;

/// An earlier run, as `--csv` or `--record` has written it.
#[derive(Debug)]
pub(crate) struct Earlier {
    path: PathBuf,
    lines: Vec<Line>,
}

/// What counts of a line.
#[derive(Debug, Deserialize)]
struct Line {
    library: String,
    backend: String,
    ranks: usize,
    round: usize,
    op: String,
    size: usize,
    r#type: String,
    redop: String,
    p50_us: f64,
    // Records before November 2026 don't have them.
    cpu: Option<String>,
    cores: Option<usize>,
}

/// What has become of the cells that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Checked {
    record: PathBuf,
    /// How many cells were compared.
    cells: usize,
    pub(crate) slower: Vec<Slower>,
}

/// A cell that takes over a tenth longer than it took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Slower {
    #[serde(flatten)]
    case: Case,
    library: &'static str,
    earlier_us: f64,
    now_us: f64,
    ratio: f64,
}

impl Earlier {
    /// Reads a record.
    ///
    /// # Errors
    /// `Io`: there is none, or it is no record. `Config`: it is of another machine.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed =
            |error: csv::Error| Error::io(format!("reading the record {}", path.display()), error.into());
        let mut reader = csv::Reader::from_path(path).map_err(failed)?;
        let lines = reader.deserialize().collect::<std::result::Result<Vec<Line>, _>>().map_err(failed)?;
        let here = Machine::here();
        for line in &lines {
            let is_elsewhere = line.cpu.as_ref().is_some_and(|cpu| *cpu != here.cpu);
            if is_elsewhere || line.cores.is_some_and(|cores| cores != here.cores) {
                let (cpu, cores) = (line.cpu.as_deref().unwrap_or("?"), line.cores.unwrap_or_default());
                return Err(Error::config(format!(
                    "{} is of another machine ({cpu}, {cores} cores; here: {}, {} cores), so its times say nothing of this one's; record this machine \
                     with --record",
                    path.display(),
                    here.cpu,
                    here.cores
                )));
            }
        }
        if lines.iter().any(|line| line.cpu.is_none()) {
            tracing::warn!(record = %path.display(), "the record doesn't say of which machine it is");
        }
        Ok(Self { path: path.to_owned(), lines })
    }

    /// Compares each of our own cells with that of the record.
    ///
    /// # Errors
    /// `Config`: they have none in common.
    pub(crate) fn check(&self, report: &Report) -> Result<Checked> {
        let ours: Vec<_> = report.libraries().into_iter().filter(|name| Subject::is_phalanx(name)).collect();
        let mut checked = Checked { record: self.path.clone(), cells: 0, slower: Vec::new() };
        for case in report.cases() {
            for &library in &ours {
                let now = report.bests(case, library, &Place::BOTH).iter().map(|m| m.stats.p50_us).collect();
                let Some((now_us, earlier_us)) = median(now).zip(self.time(report, case, library)) else {
                    continue;
                };
                checked.cells += 1;
                let ratio = now_us / earlier_us;
                if ratio > SLOWER {
                    checked.slower.push(Slower { case, library, earlier_us, now_us, ratio });
                }
            }
        }
        if checked.cells == 0 {
            let path = self.path.display();
            return Err(Error::config(format!(
                "{path} has no case that was measured now: measure with the flags of the record"
            )));
        }
        Ok(checked)
    }

    /// The median of the rounds of the record, the best of in place and out of place in each.
    fn time(&self, report: &Report, case: Case, library: &str) -> Option<f64> {
        let size = report.typical(case, library, &Place::BOTH)?.bytes;
        let redop = if case.op.reduces() { report.reduce.name() } else { "" };
        let is_same = |line: &&Line| {
            (line.library.as_str(), line.backend.as_str(), line.op.as_str())
                == (library, case.backend.name(), case.op.name())
                && (line.ranks, line.size) == (case.ranks, size)
                && (line.r#type.as_str(), line.redop.as_str()) == (report.dtype.name(), redop)
        };
        let mut rounds: Vec<(usize, f64)> = Vec::new();
        for line in self.lines.iter().filter(is_same) {
            match rounds.iter_mut().find(|(round, _)| *round == line.round) {
                Some((_, best)) => *best = best.min(line.p50_us),
                None => rounds.push((line.round, line.p50_us)),
            }
        }
        median(rounds.into_iter().map(|(_, time)| time).collect())
    }
}

impl Checked {
    /// What was found, a line a slower cell.
    pub(crate) fn text(&self) -> String {
        let Self { record, cells, slower } = self;
        let mut text = match slower.len() {
            0 => format!("# {cells} cells beside {}: none is over 10 % slower\n", record.display()),
            number => format!("# {cells} cells beside {}: {number} over 10 % slower\n", record.display()),
        };
        for Slower {
            case: Case { backend, ranks, op, asked_bytes },
            library,
            earlier_us,
            now_us,
            ratio: times,
        } in slower
        {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "#   {library}: {op}, {ranks} ranks, {}, {}: {} µs, was {} ({} times)",
                backend.name(),
                short(*asked_bytes),
                time(*now_us),
                time(*earlier_us),
                ratio(*times)
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::output::write_csv;
    use crate::report::tests::{case, measured, report};

    fn recorded(earlier: &Report) -> Result<Earlier> {
        let file = tempfile::NamedTempFile::new().unwrap();
        write_csv(earlier, file.path()).unwrap();
        Earlier::read(file.path())
    }

    /// A report of this machine.
    fn here(measurements: Vec<crate::report::Measurement>) -> Report {
        Report { machine: Machine::here(), ..report(measurements) }
    }

    #[test]
    fn a_cell_is_slower_when_the_median_of_its_rounds_is_a_tenth_more() {
        let (small, large, new) =
            (case(Op::AllReduce, 64), case(Op::AllReduce, 4096), case(Op::Broadcast, 4096));
        let rounds = |case, times: [f64; 3]| {
            times.into_iter().enumerate().map(move |(round, time)| measured("phalanx", case, round, time))
        };
        let mut earlier: Vec<_> =
            rounds(small, [1.0, 1.0, 9.0]).chain(rounds(large, [4.0, 5.0, 6.0])).collect();
        earlier.push(measured("mpich", small, 0, 0.5));
        let now =
            rounds(small, [1.2, 1.2, 0.9]).chain(rounds(large, [5.4, 5.4, 5.4])).chain(rounds(new, [9.0; 3]));
        let checked = recorded(&here(earlier)).unwrap().check(&here(now.collect())).unwrap();
        assert_eq!(checked.cells, 2);
        let slower: Vec<_> =
            checked.slower.iter().map(|cell| (cell.case, cell.earlier_us, cell.now_us)).collect();
        assert_eq!(slower, [(small, 1.0, 1.2)]);
        let text = checked.text();
        assert!(text.contains("2 cells beside ") && text.contains(": 1 over 10 % slower\n"), "{text}");
        assert!(
            text.contains("#   phalanx: all_reduce, 2 ranks, tcp, 64 B: 1.20 µs, was 1.00 (1.20 times)\n"),
            "{text}"
        );
    }

    #[test]
    fn a_record_of_another_machine_or_of_other_cases_is_refused() {
        let (one, other) = (
            measured("phalanx", case(Op::AllReduce, 64), 0, 1.0),
            measured("phalanx", case(Op::Reduce, 64), 0, 1.0),
        );
        let elsewhere = recorded(&report(vec![one.clone()])).unwrap_err().to_string();
        assert!(elsewhere.contains("is of another machine (A CPU, 2 cores; here: "), "{elsewhere}");
        let nothing = recorded(&here(vec![other])).unwrap().check(&here(vec![one])).unwrap_err().to_string();
        assert!(nothing.contains("has no case that was measured now"), "{nothing}");
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a,b\n1,2\n").unwrap();
        for path in [file.path(), Path::new("no-such-record.csv")] {
            let error = Earlier::read(path).unwrap_err().to_string();
            assert!(error.contains("reading the record"), "{error}");
        }
    }
}
