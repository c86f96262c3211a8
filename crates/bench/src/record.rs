//! Results that are kept: a page with the machine and the tables, every measurement, and a picture.

use crate::compare::rows;
use crate::op::Place;
#[cfg(feature = "plot")]
use crate::plot;
use crate::report::{Case, Report};
use crate::subject::Subject;
use crate::{output, table};
use phalanx::{Error, Result};
use std::path::{Path, PathBuf};

/// Writes `DATE-WHAT.md`, `.csv` and, with the feature `plot`, `.svg` to `folder`. A record of the same day is not overwritten.
///
/// # Errors
/// `Io`: the folder or a file cannot be written.
pub(crate) fn keep(report: &Report, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io(format!("making {}", folder.display()), e))?;
    let stem = free(folder, &name(report));
    let file = |end: &str| PathBuf::from(format!("{}.{end}", stem.display()));
    let page = file("md");
    std::fs::write(&page, markdown(report))
        .map_err(|e| Error::io(format!("writing {}", page.display()), e))?;
    #[cfg(feature = "plot")]
    plot::draw(report, &file("svg"))?;
    output::write_csv(report, &file("csv"))
}

/// `2026-11-21-shm-tcp-against-openmpi-mpich`.
fn name(report: &Report) -> String {
    let ours = report.measurements.iter().filter(|m| Subject::is_phalanx(m.library));
    let mut transports: Vec<&str> = ours.map(|m| m.transport.as_str()).collect();
    transports.sort_unstable();
    transports.dedup();
    let peers: Vec<_> = report.libraries().into_iter().filter(|&name| Subject::of(name).is_none()).collect();
    let against = if peers.is_empty() { String::new() } else { format!("-against-{}", peers.join("-")) };
    format!("{}-{}{against}", report.machine.date, transports.join("-"))
}

/// The path of `name`, or of `name-2` and so on, of which there is no page yet.
fn free(folder: &Path, name: &str) -> PathBuf {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    let free = names.find(|name| !folder.join(format!("{name}.md")).exists());
    folder.join(free.expect("numbers do not end"))
}

fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let facts = [
        ("machine", machine.to_string()),
        ("compiler", machine.compiler.clone()),
        ("commit", machine.commit.clone()),
        ("command", format!("`{}`", report.command)),
        ("method", report.method.clone()),
        ("wrong elements", report.wrong().to_string()),
    ];
    let facts = facts.map(|(name, value)| vec![name.to_owned(), value]);
    let mut rows_of_facts = vec![vec!["what".to_owned(), "measured".to_owned()]];
    rows_of_facts.extend(facts);
    format!(
        "# Collectives, {}\n\n{}\n{}",
        machine.date,
        table::markdown(&rows_of_facts),
        match rows(report) {
            rows if rows.is_empty() => format!("```text\n{}```\n", own_tables(report)),
            rows => {
                let summary =
                    table::summary(&rows).iter().map(|line| format!("- {line}\n")).collect::<String>();
                format!(
                    "Ratios are our time / theirs, within a round.\n\n{summary}\n{}",
                    table::comparison(&rows)
                )
            }
        }
    )
}

/// The tables of the only library that was measured.
fn own_tables(report: &Report) -> String {
    let mut text = String::new();
    let (cases, libraries) = (report.cases(), report.libraries());
    for of_op in cases.chunk_by(|a, b| Case { asked_bytes: 0, ..*a } == Case { asked_bytes: 0, ..*b }) {
        for place in Place::BOTH {
            let own = |&case| report.typical(case, libraries.first()?, &[place]);
            let measured: Vec<_> = of_op.iter().filter_map(own).collect();
            text.extend(measured.first().map(|first| table::head(first)));
            text.extend(measured.iter().map(|m| table::line(m, report.dtype, report.reduce)));
        }
    }
    text + &table::foot(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::report::tests::{case, measured, report};

    const ENDS: &[&str] = if cfg!(feature = "plot") { &["csv", "md", "svg"] } else { &["csv", "md"] };

    #[test]
    fn records_stand_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let case = case(Op::AllReduce, 4096);
        let alone = report(vec![measured("phalanx", case, 0, 1.5)]);
        let beside = report(vec![measured("phalanx", case, 0, 1.5), measured("mpich", case, 0, 3.0)]);
        for report in [&alone, &alone, &beside] {
            keep(report, folder.path()).unwrap();
        }
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let stems = ["2026-11-21-tcp", "2026-11-21-tcp-2", "2026-11-21-tcp-against-mpich"];
        let mut expected: Vec<_> =
            stems.iter().flat_map(|stem| ENDS.iter().map(move |end| format!("{stem}.{end}"))).collect();
        expected.sort();
        assert_eq!(names, expected);
        let page = std::fs::read_to_string(folder.path().join("2026-11-21-tcp.md")).unwrap();
        assert!(page.contains("| abc |") || page.contains("  abc |"), "{page}");
        assert!(page.contains("# phalanx: all_reduce, 2 ranks, tcp, in place"), "{page}");
        let page = std::fs::read_to_string(folder.path().join(format!("{}.md", stems[2]))).unwrap();
        assert!(page.contains("**0.50** (mpich)"), "{page}");
    }
}
