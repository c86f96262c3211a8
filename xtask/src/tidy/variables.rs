//! Each environment variable stands on its page, and the page names none that nothing reads.

use super::tree::{collect, packages};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/reference/environment.md";
const PREFIX: &str = "PHALANX_";

/// Packages that users never see.
const OURS: &[&str] = &["crates/nccl-double", "crates/testkit", "fuzz", "xtask"];

/// Compares the variables that the sources name with those of the page.
pub(super) fn on_their_page(root: &Path, findings: &mut Vec<String>) {
    let mut read = BTreeSet::new();
    for package in packages(root).iter().filter(|package| !OURS.contains(&package.as_str())) {
        let mut files = Vec::new();
        collect(&root.join(package).join("src"), "rs", &mut files);
        let is_test = |file: &Path| file.components().any(|part| part.as_os_str() == "tests");
        for file in files.iter().filter(|file| !is_test(file.strip_prefix(root).unwrap_or(file))) {
            read.extend(names(&fs::read_to_string(file).unwrap_or_default(), '"'));
        }
    }
    let told = names(&fs::read_to_string(root.join(PAGE)).unwrap_or_default(), '`');
    findings.extend(differences(&read, &told));
}

fn differences(read: &BTreeSet<String>, told: &BTreeSet<String>) -> Vec<String> {
    let missing = read.difference(told);
    let missing = missing
        .map(|name| format!("{PAGE} does not have {name}: say what it means, its default and an example"));
    let old =
        told.difference(read).map(|name| format!("{PAGE} has {name}, which no source names: remove it"));
    missing.chain(old).collect()
}

/// The names of variables that stand in `text` between two `quote`s.
fn names(text: &str, quote: char) -> BTreeSet<String> {
    let is_name = |word: &&str| {
        let rest = word.strip_prefix(PREFIX).unwrap_or_default();
        !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    text.split(quote).filter(is_name).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_count() {
        let text = r#"var("PHALANX_PORT"), "PHALANX_PORT=1", "PHALANX_", "phalanx", env = "PHALANX_A_1""#;
        assert_eq!(names(text, '"').into_iter().collect::<Vec<_>>(), ["PHALANX_A_1", "PHALANX_PORT"]);
    }

    #[test]
    fn variables_that_are_missing_on_either_side_are_named() {
        let read = names(r#"const A: &str = "PHALANX_NEW"; const B: &str = "PHALANX_KNOWN";"#, '"');
        let found = differences(&read, &names("| `PHALANX_KNOWN` | | `PHALANX_OLD` |", '`'));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("does not have PHALANX_NEW") && found[1].contains("has PHALANX_OLD"));
    }
}
