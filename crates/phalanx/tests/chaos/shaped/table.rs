//! What the rounds of one case came to, as a line of a table.

use super::plan::Case;
use super::round::Report;

pub(crate) const HEAD: &str = "| shape | kind | backend | rounds | all as it must be | survivors that named the rank | that named nobody | traces that named nobody |\n|---|---|---|---|---|---|---|---|";

pub(crate) fn line((shape, harm, backend): Case, reports: &[Report]) -> String {
    let fine = reports.iter().filter(|report| report.troubles.is_empty()).count();
    let named: usize = reports.iter().map(|report| report.named).sum();
    let nobody: usize = reports.iter().map(|report| report.nobody).sum();
    let traces = reports.iter().filter(|report| report.trace_named_nobody).count();
    format!("| {shape} | {harm} | {backend} | {} | {fine} | {named} | {nobody} | {traces} |", reports.len())
}
