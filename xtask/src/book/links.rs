//! Links between pages: each leads to a file, and to a heading of it.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders that hold no text of ours.
const ELSEWHERE: &[&str] = &[".git", "target", "corpus", "artifacts", "coverage"];

/// What other files than pages may mention as `docs/….md`.
const MENTIONING: &[&str] = &["rs", "toml", "sh", "py", "md", "yml"];

/// A link of a page, as it is written.
#[derive(Debug, PartialEq)]
pub(super) struct Link {
    pub(super) line: usize,
    pub(super) label: String,
    pub(super) target: String,
}

/// All files of the repository below `dir`, apart from what is built or fuzzed.
pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<_> =
        fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            // `.git` is a file where the checkout is a worktree, and a submodule has one, too.
            if !ELSEWHERE.contains(&name.as_str()) {
                found.extend(files(&path));
            }
        } else {
            found.push(path);
        }
    }
    found
}

/// Links that lead nowhere, and mentions of pages that do not exist.
pub(super) fn broken(root: &Path, findings: &mut Vec<String>) {
    let files = files(root);
    let mut headings = HashMap::new();
    for page in files.iter().filter(|file| has_extension(file, &["md"])) {
        let text = fs::read_to_string(page).unwrap_or_default();
        let shown = page.strip_prefix(root).unwrap_or(page).display();
        for Link { line, target, .. } in links(&text) {
            if is_remote(&target) {
                continue;
            }
            let (path, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let to = if path.is_empty() { page.clone() } else { resolve(page, path) };
            if !to.exists() {
                findings.push(format!("{shown}:{line} links to {target}, which does not exist"));
            } else if !fragment.is_empty() && has_extension(&to, &["md"]) {
                let anchors = headings
                    .entry(to.clone())
                    .or_insert_with(|| anchors(&fs::read_to_string(&to).unwrap_or_default()));
                if !anchors.iter().any(|anchor| anchor == fragment) {
                    findings.push(format!(
                        "{shown}:{line} links to {target}, a heading which that page does not have"
                    ));
                }
            }
        }
    }
    // Tests of such checks plant pages that do not exist.
    let planted = ["xtask/src/book", "xtask/src/tidy"].map(|dir| root.join(dir));
    for file in files.iter().filter(|file| has_extension(file, MENTIONING)) {
        if planted.iter().any(|dir| file.starts_with(dir)) {
            continue;
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            for page in mentions(line).filter(|page| !root.join(page).exists()) {
                let shown = file.strip_prefix(root).unwrap_or(file).display();
                findings.push(format!("{shown}:{} mentions {page}, which does not exist", number + 1));
            }
        }
    }
}

/// The file that `path` means where `page` says it, without `..` in it.
pub(super) fn resolve(page: &Path, path: &str) -> PathBuf {
    let mut to = page.parent().unwrap_or(Path::new("")).to_path_buf();
    for component in Path::new(path).components() {
        match component {
            Component::ParentDir => {
                to.pop();
            }
            Component::CurDir => {}
            other => to.push(other),
        }
    }
    to
}

/// Links that leave the repository.
pub(super) fn is_remote(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The links `[label](target)` of a page that are not code.
pub(super) fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line.as_str();
        while let Some(at) = rest.find("](") {
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            let Some((target, _)) = after.split_once(')') else { break };
            let label = before.rsplit_once('[').map_or("", |(_, label)| label).replace(CODE, "`");
            links.push(Link { line: number, label, target: target.trim().to_owned() });
            rest = after;
        }
    }
    links
}

/// Stands for the backticks of code inside a label, which is no link itself.
const CODE: char = '\u{1}';

/// The lines outside of code blocks, numbered from 1, without links inside of code spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => {
                let spans = line.split('`').enumerate().map(|(i, part)| {
                    // Every second part is code.
                    if i % 2 == 1 { part.replace(['[', ']', '(', ')'], " ") } else { part.to_owned() }
                });
                lines.push((number + 1, spans.collect::<Vec<_>>().join(&CODE.to_string())));
            }
            _ => {}
        }
    }
    lines
}

/// What can follow `#` in a link to a page: its headings in lower case, blanks as `-`, other signs left out.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let Some(heading) = line.strip_prefix('#').map(|line| line.trim_start_matches('#')) else { continue };
        let plain = heading.trim().to_lowercase();
        let anchor: String = plain
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            })
            .collect();
        let again = anchors.iter().filter(|a| **a == anchor).count();
        anchors.push(if again == 0 { anchor } else { format!("{anchor}-{again}") });
    }
    anchors
}

/// Pages that a line names by their path from the root.
fn mentions(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("docs/").filter_map(|(at, _)| {
        let beside = line[..at].chars().next_back();
        if beside.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '.') {
            return None;
        }
        let end = line[at..].find(|c: char| !(c.is_ascii_alphanumeric() || "/-_.".contains(c)));
        let path = line[at..].get(..end.unwrap_or(line.len() - at))?.trim_end_matches('.');
        path.ends_with(".md").then_some(path)
    })
}

fn has_extension(file: &Path, extensions: &[&str]) -> bool {
    file.extension().is_some_and(|e| extensions.iter().any(|known| e == *known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_code_is_left_out() {
        let page = "[a](b.md) and [`c`](d.md#e), `[no](no.md)`\n```text\n[no](no.md)\n```\n![f](g.svg)";
        let found: Vec<_> = links(page).into_iter().map(|l| (l.line, l.label, l.target)).collect();
        let expected = [(1, "a", "b.md"), (1, "`c`", "d.md#e"), (5, "f", "g.svg")];
        assert_eq!(found, expected.map(|(line, label, target)| (line, label.into(), target.into())));
    }

    #[test]
    fn headings_have_the_anchors_that_renderers_make() {
        let page =
            "# Ports, and who's there\n## `--elastic MIN:MAX`\n## Twice\n```sh\n# no heading\n```\n## Twice";
        assert_eq!(anchors(page), ["ports-and-whos-there", "--elastic-minmax", "twice", "twice-1"]);
    }

    #[test]
    fn mentions_are_paths_from_the_root() {
        let line = "see `docs/a.md`, ../docs/b/c.md and docs/d.md. Not docs/ nor mydocs/x.md";
        assert_eq!(mentions(line).collect::<Vec<_>>(), ["docs/a.md", "docs/b/c.md", "docs/d.md"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named_with_its_place() {
        let root = std::env::temp_dir().join(format!("phalanx-links-{}", std::process::id()));
        fs::create_dir_all(root.join("docs")).unwrap();
        fs::write(root.join("docs/a.md"), "# A\n[b](b.md) [c](c.md) [t](b.md#there) [n](b.md#nowhere)")
            .unwrap();
        fs::write(root.join("docs/b.md"), "# There\n[a](a.md#a) [rust](https://rust-lang.org)").unwrap();
        fs::write(root.join("x.rs"), "//! See `docs/z.md`, and `docs/a.md`.\n").unwrap();
        let mut findings = Vec::new();
        broken(&root, &mut findings);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            findings,
            [
                "docs/a.md:2 links to c.md, which does not exist".to_owned(),
                "docs/a.md:2 links to b.md#nowhere, a heading which that page does not have".to_owned(),
                "x.rs:1 mentions docs/z.md, which does not exist".to_owned(),
            ]
        );
    }
}
