//! Each source file is short and begins with what it is for.

use super::tree::collect;
use std::fs;
use std::path::Path;

/// Longest source file before it must be split, or excused here. Documentation does not count: an example on each method makes no idea longer.
const LINES_MAX: usize = 600;

pub(super) fn headed_and_short(root: &Path, findings: &mut Vec<String>) {
    let mut files = Vec::new();
    for top in ["crates", "examples", "fuzz", "xtask"] {
        collect(&root.join(top), "rs", &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let shown = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("///"));
        if code.count() > LINES_MAX {
            findings.push(format!("{shown} has more than {LINES_MAX} lines of code: split it by idea"));
        }
        if !text.starts_with("//!") && !shown.contains("/tests/snapshots/") {
            findings.push(format!("{shown} does not begin with a //! line that says what it is for"));
        }
    }
}
