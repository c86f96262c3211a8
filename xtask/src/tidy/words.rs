//! Words that doc comments do without: their first line begins with its subject.

use super::tree::{collect, packages};
use std::fs;
use std::path::Path;

/// Beginnings that leave a reader to guess what the item is, with what to write instead.
const HEADLESS: &[(&str, &str)] = &[
    ("Who ", "name the rank, process or caller that is meant"),
    ("What it ", "name the thing itself"),
    ("See the [module](self)", "say in one line what the item is"),
];

/// First lines of doc comments that do not say what the item is.
pub(super) fn headless(root: &Path, findings: &mut Vec<String>) {
    for package in packages(root) {
        let mut files = Vec::new();
        collect(&root.join(&package), "rs", &mut files);
        for file in files {
            let shown = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            for (line, beginning, instead) in beginnings(&fs::read_to_string(&file).unwrap_or_default()) {
                findings.push(format!("{shown}:{line} begins with \"{beginning}\": {instead}"));
            }
        }
    }
}

/// The doc comments of a file whose first line has such a beginning.
fn beginnings(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        for mark in ["///", "//!"] {
            let Some(words) = line.strip_prefix(mark).filter(|_| !before.starts_with(mark)) else { continue };
            let words = words.strip_prefix(' ').unwrap_or(words);
            found.extend(
                HEADLESS
                    .iter()
                    .filter(|(beginning, _)| words.starts_with(beginning))
                    .map(|(beginning, instead)| (number + 1, *beginning, *instead)),
            );
        }
        before = line;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_lines_of_doc_comments_count() {
        let text =
            ["//! Who is here.", "fn f() {}", "/// Sends.", "/// Who waits is told.", "// Who reads this?"];
        let found: Vec<_> =
            beginnings(&text.join("\n")).into_iter().map(|(line, words, _)| (line, words)).collect();
        assert_eq!(found, [(1, "Who ")]);
        let found = beginnings("    /// See the [module](self).\n/// More.\n\n/// What it is.");
        assert_eq!(found.iter().map(|found| found.0).collect::<Vec<_>>(), [1, 4]);
    }
}
