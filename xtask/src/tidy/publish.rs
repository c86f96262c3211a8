//! What crates.io wants of every crate that is published.

use super::tree::{entries, file_name};
use std::fs;
use std::path::Path;

/// Of the crates in `crates`: each says what it is, or that it is not published.
pub(super) fn manifests(root: &Path, findings: &mut Vec<String>) {
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    let unpublished: Vec<String> = entries(&root.join("crates"))
        .iter()
        .filter(|dir| is_unpublished(&fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default()))
        .map(|dir| file_name(dir))
        .collect();
    versions(&workspace, &unpublished, findings);
    for dir in entries(&root.join("crates")) {
        let name = file_name(&dir);
        if unpublished.contains(&name) {
            continue;
        }
        manifest(&name, &fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default(), findings);
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            // Not a file that holds the path of one, which cargo would publish as the licence.
            let text = fs::read_to_string(dir.join(licence)).unwrap_or_default();
            if !text.contains("copyright") {
                findings
                    .push(format!("crates/{name} has no {licence}: ln -s ../../{licence} crates/{name}/"));
            }
        }
    }
}

fn is_unpublished(manifest: &str) -> bool {
    manifest.lines().any(|line| line.trim() == "publish = false")
}

/// A crate's own part.
fn manifest(name: &str, manifest: &str, findings: &mut Vec<String>) {
    let package = manifest.split("\n[").next().unwrap_or_default();
    for field in ["description", "license", "readme", "keywords", "categories", "rust-version", "include"] {
        let has = |line: &str| line.strip_prefix(field).is_some_and(|rest| rest.starts_with([' ', '.', '=']));
        if !package.lines().any(has) {
            findings.push(format!("crates/{name}/Cargo.toml has no {field}, and is no `publish = false`"));
        }
    }
    // What is for tests alone may come without a version, and is left out.
    let used = manifest
        .split("\n[")
        .filter(|part| part.split(']').next().unwrap_or_default().ends_with("dependencies"));
    for part in used.filter(|part| !part.split(']').next().unwrap_or_default().ends_with("dev-dependencies"))
    {
        for line in part.lines().filter(|line| line.contains("path = ") && !line.contains("version = ")) {
            findings.push(format!("crates/{name}/Cargo.toml: `{line}` needs a version to be published"));
        }
    }
}

/// `[workspace.dependencies]`: our crates have a version there if they are published, and none if they are not.
fn versions(workspace: &str, unpublished: &[String], findings: &mut Vec<String>) {
    for line in workspace.lines().filter(|line| line.contains("path = \"crates/")) {
        let name =
            line.split("path = \"crates/").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let published = !unpublished.iter().any(|one| one == name);
        if published != line.contains("version = ") {
            let what =
                if published { "needs a version" } else { "is not published and must have no version" };
            findings.push(format!("Cargo.toml, [workspace.dependencies]: crates/{name} {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "[package]\nname = \"a\"\ndescription = \"A.\"\nlicense.workspace = true\nreadme.workspace = true\n\
        keywords.workspace = true\ncategories.workspace = true\nrust-version.workspace = true\ninclude = [\"src/**\"]\n";

    fn of(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        manifest("a", text, &mut findings);
        findings
    }

    #[test]
    fn a_manifest_is_whole_or_says_what_it_lacks() {
        assert_eq!(of(WHOLE), Vec::<String>::new());
        let found = of(&WHOLE.replace("readme.workspace = true\n", ""));
        assert!(found.len() == 1 && found[0].contains("no readme"), "{found:?}");
        // A name that only begins so is another field.
        assert_eq!(of(&WHOLE.replace("license.", "license-file.")).len(), 1);
    }

    #[test]
    fn a_path_needs_a_version_but_for_tests() {
        let path = "phalanx-b = { path = \"../b\" }\n";
        assert_eq!(of(&format!("{WHOLE}\n[dependencies]\n{path}")).len(), 1);
        assert_eq!(of(&format!("{WHOLE}\n[target.'cfg(unix)'.dependencies]\n{path}")).len(), 1);
        assert_eq!(of(&format!("{WHOLE}\n[dev-dependencies]\n{path}")), Vec::<String>::new());
    }

    #[test]
    fn what_is_published_has_a_version_in_the_workspace() {
        let lines = "b = { path = \"crates/b\" }\nc = { path = \"crates/c\", version = \"1\" }\n";
        let check = |unpublished: &[&str]| {
            let mut findings = Vec::new();
            let unpublished: Vec<String> = unpublished.iter().map(|&name| name.to_owned()).collect();
            versions(lines, &unpublished, &mut findings);
            findings.len()
        };
        assert_eq!((check(&["b"]), check(&["b", "c"]), check(&[]), check(&["c"])), (0, 1, 1, 2));
    }
}
