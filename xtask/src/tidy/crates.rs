//! Which of our crates each crate may use, and which may contain `unsafe`.

use super::tree::{entries, file_name};
use std::fs;
use std::path::Path;

/// Which of our crates each crate may use. A boundary that is not here has no reason.
const MAY_USE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("kernels", &["core"]),
    ("algo", &["core"]),
    ("transport", &["core"]),
    ("shm", &["core", "kernels", "transport"]),
    ("rendezvous", &["core", "transport"]),
    ("trace", &["core"]),
    ("control", &["core", "trace", "transport"]),
    ("group", &["core", "trace", "control", "kernels", "algo", "shm", "transport", "rendezvous"]),
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

pub(super) fn dependencies(root: &Path, findings: &mut Vec<String>) {
    for dir in entries(&root.join("crates")) {
        let name = file_name(&dir);
        let Some((_, allowed)) = MAY_USE.iter().find(|(krate, _)| *krate == name) else {
            findings
                .push(format!("crates/{name} is unknown: say in xtask/src/tidy/crates.rs what it may use"));
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
