//! Rules about the tree that no compiler checks. Each finding says what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Which of our crates each crate may use. A boundary that is not here has no reason.
const MAY_USE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("kernels", &["core"]),
    ("algo", &["core"]),
    ("transport", &["core"]),
    ("shm", &["core", "kernels", "transport"]),
    ("rendezvous", &["core", "transport"]),
    ("group", &["core", "kernels", "algo", "shm", "transport", "rendezvous"]),
    ("launch", &["core", "transport", "rendezvous"]),
    ("phalanx", &["core", "transport", "rendezvous", "group", "launch"]),
    ("checkpoint", &["phalanx"]),
    ("compress", &["phalanx", "checkpoint"]),
    ("train", &["phalanx", "compress"]),
    ("candle", &["phalanx", "checkpoint", "compress", "train", "nccl"]),
    ("cli", &["core", "algo", "group", "launch", "bench"]),
    ("bench", &["phalanx"]),
    ("nccl", &["core", "group"]),
    ("nccl-double", &[]),
    ("testkit", &["core", "algo", "kernels", "transport", "rendezvous", "group"]),
];

/// Crates that may contain `unsafe`, with the reason in their manifest.
const MAY_BE_UNSAFE: &[&str] = &["launch", "kernels", "shm", "nccl", "nccl-double"];

/// Longest source file before it must be split, or excused here.
const LINES_MAX: usize = 600;

pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let mut findings = Vec::new();
    dependencies(root, &mut findings);
    sources(root, &mut findings);
    examples(root, &mut findings);
    named_tests(root, &mut findings);
    merges(root, &mut findings);
    for finding in &findings {
        #[expect(clippy::print_stderr, reason = "a command reports to its user")]
        {
            eprintln!("tidy: {finding}");
        }
    }
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn dependencies(root: &Path, findings: &mut Vec<String>) {
    for dir in entries(&root.join("crates")) {
        let name = file_name(&dir);
        let Some((_, allowed)) = MAY_USE.iter().find(|(krate, _)| *krate == name) else {
            findings.push(format!("crates/{name} is unknown: say in xtask/src/tidy.rs what it may use"));
            continue;
        };
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        for line in section.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let Some(ours) =
                dependency.strip_prefix("phalanx-").or((dependency == "phalanx").then_some("phalanx"))
            else {
                continue;
            };
            if !allowed.contains(&ours) {
                findings.push(format!("crates/{name} must not depend on {dependency}: see ARCHITECTURE.md"));
            }
        }
        let inherits = manifest.contains("[lints]\nworkspace = true");
        if !inherits && !MAY_BE_UNSAFE.contains(&name.as_str()) {
            findings.push(format!("crates/{name}/Cargo.toml does not inherit the workspace lints"));
        }
    }
}

fn sources(root: &Path, findings: &mut Vec<String>) {
    let mut files = Vec::new();
    for top in ["crates", "examples", "fuzz", "xtask"] {
        collect(&root.join(top), &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let shown = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        if text.lines().count() > LINES_MAX {
            findings.push(format!("{shown} has more than {LINES_MAX} lines: split it by idea"));
        }
        if !text.starts_with("//!") && !shown.contains("/tests/snapshots/") {
            findings.push(format!("{shown} does not begin with a //! line that says what it is for"));
        }
    }
}

fn examples(root: &Path, findings: &mut Vec<String>) {
    let readme = fs::read_to_string(root.join("examples/README.md")).unwrap_or_default();
    for dir in entries(&root.join("examples")).into_iter().filter(|p| p.is_dir()) {
        let name = file_name(&dir);
        if !readme.contains(&name) {
            findings.push(format!("examples/README.md does not mention the example {name}"));
        }
    }
}

/// Tests that a document names as `path/of/file.rs::name`.
fn named_tests(root: &Path, findings: &mut Vec<String>) {
    for page in entries(&root.join("docs")) {
        let text = fs::read_to_string(&page).unwrap_or_default();
        let names = text.split('`').filter_map(|word| word.split_once(".rs::"));
        for (file, name) in names {
            let code = fs::read_to_string(root.join(format!("{file}.rs"))).unwrap_or_default();
            if !code.contains(&format!("fn {name}(")) {
                let page = file_name(&page);
                findings.push(format!("docs/{page} names the test {name}, which is not in {file}.rs"));
            }
        }
    }
}

/// What a compiler or a test reads would not hide a merge that nobody finished; pages and settings do.
fn merges(root: &Path, findings: &mut Vec<String>) {
    for page in entries(root).into_iter().chain(entries(&root.join("docs"))).filter(|path| path.is_file()) {
        let text = fs::read_to_string(&page).unwrap_or_default();
        if text.lines().any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ")) {
            findings.push(format!("{} has both sides of a merge in it", file_name(&page)));
        }
    }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for path in entries(dir) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<_> = read.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
