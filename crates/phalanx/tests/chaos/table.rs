//! What the rounds of all kinds and backends came to.

use crate::plan::{Backend, Kind};
use crate::round::Report;
use std::fmt;

/// All rounds of one kind on one backend.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) backend: Backend,
    pub(crate) reports: Vec<Report>,
}

/// One line a row, as in a document.
#[derive(Debug, Default)]
pub(crate) struct Table(pub(crate) Vec<Row>);

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| kind | backend | rounds | all as it must be | known after, median ms | most | wrong results | left behind | ended by UCX's own assertions |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
        for Row { kind, backend, reports } in &self.0 {
            let ended_by_ucx = reports.iter().filter(|report| report.ended_by_ucx).count();
            let fine = reports.iter().filter(|report| report.troubles.is_empty()).count() - ended_by_ucx;
            let mut ms: Vec<_> = reports.iter().flat_map(|report| &report.named_ms).copied().collect();
            ms.sort_unstable();
            let shown = |ms: Option<&u128>| ms.map_or_else(|| "–".into(), u128::to_string);
            let (median, most) = (shown(ms.get(ms.len() / 2)), shown(ms.last()));
            let wrong: usize = reports.iter().map(|report| report.wrong).sum();
            let left: usize = reports.iter().map(|report| report.left).sum();
            writeln!(
                f,
                "| {kind} | {backend} | {} | {fine} | {median} | {most} | {wrong} | {left} | {ended_by_ucx} |",
                reports.len()
            )?;
        }
        Ok(())
    }
}
