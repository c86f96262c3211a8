//! Tables that sum up records say what the records say.

use std::fs;
use std::path::Path;

/// The pages with such tables, one each.
const PAGES: [&str; 2] = ["README.md", "docs/design/performance.md"];
/// The columns that are compared.
const COLUMNS: &str = "| cells | at most 0.6 | 0.6 to 1.0 | above 1.0 | median |";

pub(super) fn summed_up(root: &Path, findings: &mut Vec<String>) {
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        let folder = root.join(page);
        let read = |record: &str| fs::read_to_string(folder.with_file_name(record)).unwrap_or_default();
        findings.extend(disagreements(&text, read).into_iter().map(|finding| format!("{page}: {finding}")));
    }
}

/// Rows of the table with these [`COLUMNS`] that differ from the record which they link; `read` gives a record's text.
fn disagreements(page: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let lines = page.lines().skip_while(|line| !line.contains(COLUMNS));
    let rows: Vec<_> = lines.skip(2).take_while(|line| line.starts_with('|')).collect();
    if rows.is_empty() {
        return vec![format!("no table has the columns {COLUMNS}")];
    }
    let differs = |row: &&str| {
        let record = row.split_once("[record](").and_then(|(_, rest)| rest.split_once(')'));
        let Some((record, _)) = record else { return Some(format!("no record is linked in: {row}")) };
        let Some(cells) = cells(&read(record)) else {
            return Some(format!("{record} does not count its cells"));
        };
        (!row.contains(&cells)).then(|| format!("{record} says {cells}, which is not in: {row}"))
    };
    rows.iter().filter_map(differs).collect()
}

/// The [`COLUMNS`] of a record, from its line `- phalanx: 113 cells: 28 at most 0.6, 70 at most 1.0, 15 above; median 0.72; …`.
fn cells(record: &str) -> Option<String> {
    let line = record.lines().find_map(|line| line.strip_prefix("- phalanx: "))?;
    let (all, line) = line.split_once(" cells: ")?;
    let (fastest, line) = line.split_once(" at most 0.6, ")?;
    let (faster, line) = line.split_once(" at most 1.0, ")?;
    let (slower, line) = line.split_once(" above; median ")?;
    let (median, _) = line.split_once(';')?;
    Some(format!("| {all} | {fastest} | {faster} | {slower} | {median} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_counts_otherwise_than_its_record_is_found() {
        let read = |record: &str| match record {
            "a.md" => {
                "- phalanx: 9 cells: 2 at most 0.6, 4 at most 1.0, 3 above; median 0.95; worst 2".to_owned()
            }
            _ => "nothing".to_owned(),
        };
        let found =
            |row: &str| disagreements(&format!("text\n| machine {COLUMNS}\n|---|\n{row}\nmore"), read);
        assert_eq!(found("| a | 9 | 2 | 4 | 3 | 0.95 ([record](a.md)) |"), [""; 0]);
        assert_eq!(found("| a | 9 | 2 | 4 | 3 | 0.95 | slowest ([record](a.md)) |"), [""; 0]);
        for row in [
            "| a | 9 | 2 | 6 | 3 | 0.95 ([record](a.md)) |",
            "| a | 9 | 2 | 4 | 3 | 0.95 ([record](b.md)) |",
            "| a |",
            "",
        ] {
            assert_eq!(found(row).len(), 1, "{row}");
        }
    }
}
