//! Tables that sum up records say what the records say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The pages with such tables, one each, and how each begins its links to the folder of the project.
const PAGES: [(&str, &str); 2] = [("README.md", ""), ("docs/design/performance.md", "../../")];
/// The columns that are compared. The cell of the last one begins with the median.
const COLUMNS: [&str; 5] = ["cells", "at most 0.6", "0.6 to 1.0", "above 1.0", "median"];

pub(super) fn summed_up(root: &Path, findings: &mut Vec<String>) {
    let mut linked = Vec::new();
    for (page, up) in PAGES {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        let read = |record: &str| fs::read_to_string(root.join(record)).unwrap_or_default();
        let (records, found) = compared(&text, up, read);
        findings.extend(found.into_iter().map(|finding| format!("{page}: {finding}")));
        linked.push(records);
    }
    for record in linked[0].symmetric_difference(&linked[1]) {
        findings.push(format!("{record} is in the table of only one of {} and {}", PAGES[0].0, PAGES[1].0));
    }
}

/// The records that the table with these [`COLUMNS`] links, and its rows that differ from them. A link to a record begins with `up`; `read` gives its text.
fn compared(page: &str, up: &str, read: impl Fn(&str) -> String) -> (BTreeSet<String>, Vec<String>) {
    let (mut records, mut findings) = (BTreeSet::new(), Vec::new());
    let is_header = |line: &&str| COLUMNS.iter().all(|column| cells(line).any(|cell| cell == *column));
    let mut lines = page.lines().skip_while(|line| !is_header(line));
    let header = lines.next().unwrap_or_default();
    for row in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let link = row.split_once("[record](").and_then(|(_, rest)| rest.split_once(')'));
        let Some(record) = link.and_then(|(link, _)| link.strip_prefix(up)) else {
            findings.push(format!("no record is linked in: {row}"));
            continue;
        };
        records.insert(record.to_owned());
        let text = read(record);
        let Some(counted) = counted(&text) else {
            findings.push(format!("{record} does not count its cells"));
            continue;
        };
        let at = |column: &str| {
            let (_, cell) = cells(header).zip(cells(row)).find(|(name, _)| *name == column)?;
            cell.split(' ').next()
        };
        if !COLUMNS.iter().zip(&counted).all(|(column, count)| at(column) == Some(count)) {
            findings.push(format!("{record} counts {}, which is not said in: {row}", counted.join(", ")));
        }
    }
    if records.is_empty() {
        findings.push(format!("no table has the columns {}", COLUMNS.join(", ")));
    }
    (records, findings)
}

/// The cells of a table's line.
fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.split('|').map(str::trim)
}

/// What a record counts for the [`COLUMNS`], from its line `- phalanx: 113 cells: 28 at most 0.6, 70 at most 1.0, 15 above; median 0.72; …`.
fn counted(record: &str) -> Option<[&str; 5]> {
    let line = record.lines().find_map(|line| line.strip_prefix("- phalanx: "))?;
    let (all, line) = line.split_once(" cells: ")?;
    let (fastest, line) = line.split_once(" at most 0.6, ")?;
    let (faster, line) = line.split_once(" at most 1.0, ")?;
    let (slower, line) = line.split_once(" above; median ")?;
    let (median, _) = line.split_once(';')?;
    Some([all, fastest, faster, slower, median])
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
        let header = "| machine | cells | at most 0.6 | 0.6 to 1.0 | above 1.0 | median | slowest |\n|---|";
        let found = |rows: &str| compared(&format!("text\n{header}\n{rows}\nmore"), "../", read).1;
        let right = "| a | 9 | 2 | 4 | 3 | 0.95 ([record](../a.md)) |";
        assert_eq!(found(right), [""; 0]);
        assert_eq!(found("| a | 9 | 2 | 4 | 3 | 0.95 | all_reduce, 2 ([record](../a.md)) |"), [""; 0]);
        for row in [
            "| a | 9 | 2 | 6 | 3 | 0.95 ([record](../a.md)) |",
            "| a | more | 9 | 2 | 4 | 3 | 0.95 ([record](../a.md)) |",
            "| a | 9 | 2 | 4 | 3 | 0.95 ([record](../b.md)) |",
            "| a | 9 | 2 | 4 | 3 | 0.95 |",
        ] {
            assert_eq!(found(&format!("{right}\n{row}")).len(), 1, "{row}");
        }
        assert_eq!(found("").len(), 1, "a table without rows");
        assert_eq!(compared(right, "../", read).1.len(), 1, "no table");
    }
}
