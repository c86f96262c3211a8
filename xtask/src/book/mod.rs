//! The pages of `docs` as a book with search: checked always, rendered where there is `mdbook`.

mod links;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The version that the book is written for.
const MDBOOK: &str = "0.5";

/// Checks the pages, then renders them to `target/book`.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command reports to its user")]
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let mut findings = Vec::new();
    check(root, &mut findings);
    for finding in &findings {
        eprintln!("book: {finding}");
    }
    if !findings.is_empty() {
        return ExitCode::FAILURE;
    }
    let version = Command::new("mdbook").arg("--version").stderr(Stdio::null()).output();
    if !version.is_ok_and(|output| output.status.success()) {
        let hint = format!(
            "there is no mdbook (cargo install mdbook --locked --version {MDBOOK} --no-default-features --features search)"
        );
        println!("skipped: the pages are checked, but not rendered: {hint}");
        return ExitCode::SUCCESS;
    }
    match render(root) {
        Ok(book) => {
            println!("the book is in {}", book.join("index.html").display());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("book: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// What `cargo xtask tidy` checks, too: every link leads somewhere, and every page has its place.
pub(crate) fn check(root: &Path, findings: &mut Vec<String>) {
    links::broken(root, findings);
    let docs = root.join("docs");
    let pages: BTreeSet<PathBuf> = links::files(&docs)
        .into_iter()
        .filter(|file| file.extension().is_some_and(|e| e == "md") && *file != docs.join("SUMMARY.md"))
        .collect();
    for index in ["SUMMARY.md", "README.md"] {
        let text = fs::read_to_string(docs.join(index)).unwrap_or_default();
        let listed: Vec<PathBuf> = links::links(&text)
            .into_iter()
            .filter(|link| !links::is_remote(&link.target))
            .map(|link| links::resolve(&docs.join(index), &link.target))
            .collect();
        for page in pages.iter().filter(|page| !listed.contains(page) && **page != docs.join(index)) {
            let shown = page.strip_prefix(&docs).unwrap_or(page).display();
            findings.push(format!("docs/{index} does not list {shown}"));
        }
        for (i, page) in listed.iter().enumerate().filter(|(_, page)| pages.contains(*page)) {
            if listed[..i].contains(page) {
                let shown = page.strip_prefix(&docs).unwrap_or(page).display();
                findings.push(format!("docs/{index} lists {shown} twice"));
            }
        }
    }
}

/// Renders a copy of the pages in which links to files that the book lacks have become words.
fn render(root: &Path) -> Result<PathBuf, String> {
    let docs = root.join("docs");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let (copy, book) = (target.join("book-source"), target.join("book"));
    let failed = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    if copy.exists() {
        fs::remove_dir_all(&copy).map_err(|error| failed(&copy, error))?;
    }
    for file in links::files(&docs) {
        let to = copy.join(file.strip_prefix(&docs).expect("it was found there"));
        let folder = to.parent().expect("it is inside of the copy");
        fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        let written = if file.extension().is_some_and(|e| e == "md") {
            let text = fs::read_to_string(&file).map_err(|error| failed(&file, error))?;
            fs::write(&to, within(&text, &file, root))
        } else {
            fs::copy(&file, &to).map(drop)
        };
        written.map_err(|error| failed(&to, error))?;
    }
    let status = Command::new("mdbook").arg("build").arg(&copy).arg("--dest-dir").arg(&book).status();
    match status {
        Ok(status) if status.success() => Ok(book),
        Ok(status) => Err(format!("mdbook build ended with {status}")),
        Err(error) => Err(format!("mdbook: {error}")),
    }
}

/// The page with links that leave `docs` as their label and the path in the repository.
fn within(text: &str, page: &Path, root: &Path) -> String {
    let mut text = text.to_owned();
    for links::Link { label, target, .. } in links::links(&text) {
        let path = target.split('#').next().unwrap_or_default();
        let to = links::resolve(page, path);
        if path.is_empty() || links::is_remote(&target) || to.starts_with(root.join("docs")) {
            continue;
        }
        let shown = to.strip_prefix(root).unwrap_or(&to).display();
        text = text.replace(&format!("[{label}]({target})"), &format!("{label} (`{shown}`)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_become_words() {
        let (root, page) = (Path::new("/r"), Path::new("/r/docs/guide/a.md"));
        let text = "[`x`](../../crates/x.rs#L3) [b](b.md) [c](../README.md) [d](https://d.org)";
        let expected = "`x` (`crates/x.rs`) [b](b.md) [c](../README.md) [d](https://d.org)";
        assert_eq!(within(text, page, root), expected);
    }

    #[test]
    fn a_page_that_no_index_lists_is_named() {
        let root = std::env::temp_dir().join(format!("phalanx-book-{}", std::process::id()));
        let docs = root.join("docs");
        fs::create_dir_all(&docs).unwrap();
        fs::write(docs.join("README.md"), "[a](a.md) [a](a.md)").unwrap();
        fs::write(docs.join("SUMMARY.md"), "- [index](README.md)\n- [b](b.md)").unwrap();
        fs::write(docs.join("a.md"), "").unwrap();
        fs::write(docs.join("b.md"), "").unwrap();
        let mut findings = Vec::new();
        check(&root, &mut findings);
        fs::remove_dir_all(&root).unwrap();
        let expected = [
            "docs/SUMMARY.md does not list a.md",
            "docs/README.md does not list b.md",
            "docs/README.md lists a.md twice",
        ];
        assert_eq!(findings, expected);
    }
}
