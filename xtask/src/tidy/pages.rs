//! What the pages say of the tree is so.

use super::tree::{collect, entries, file_name};
use std::fs;
use std::path::{Path, PathBuf};

/// Each example stands in the list of examples.
pub(super) fn examples(root: &Path, findings: &mut Vec<String>) {
    let readme = fs::read_to_string(root.join("examples/README.md")).unwrap_or_default();
    for dir in entries(&root.join("examples")).into_iter().filter(|p| p.is_dir()) {
        let name = file_name(&dir);
        if !readme.contains(&name) {
            findings.push(format!("examples/README.md does not mention the example {name}"));
        }
    }
}

/// Tests that a document names as `path/of/file.rs::name`.
pub(super) fn named_tests(root: &Path, findings: &mut Vec<String>) {
    for page in pages(root) {
        let text = fs::read_to_string(&page).unwrap_or_default();
        let names = text.split('`').filter_map(|word| word.split_once(".rs::"));
        for (file, name) in names {
            let code = fs::read_to_string(root.join(format!("{file}.rs"))).unwrap_or_default();
            if !code.contains(&format!("fn {name}(")) {
                let page = page.strip_prefix(root).unwrap_or(&page).display();
                findings.push(format!("{page} names the test {name}, which is not in {file}.rs"));
            }
        }
    }
}

/// What a compiler or a test reads would not hide a merge that nobody finished; pages and settings do.
pub(super) fn merges(root: &Path, findings: &mut Vec<String>) {
    for page in entries(root).into_iter().filter(|path| path.is_file()).chain(pages(root)) {
        let text = fs::read_to_string(&page).unwrap_or_default();
        if text.lines().any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ")) {
            findings.push(format!("{} has both sides of a merge in it", file_name(&page)));
        }
    }
}

/// The pages of `docs`, in all its folders.
fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    collect(&root.join("docs"), "md", &mut pages);
    pages
}
