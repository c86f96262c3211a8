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
    ("shm", &["core", "algo", "kernels", "transport"]),
    ("pmi", &["core"]),
    ("rendezvous", &["core", "pmi", "transport"]),
    ("trace", &["core"]),
    ("control", &["core", "trace", "transport"]),
    ("engine", &["core", "kernels", "algo", "transport", "control"]),
    ("group", &["core", "trace", "control", "engine", "kernels", "algo", "shm", "transport", "rendezvous"]),
    ("launch", &["core", "transport", "rendezvous"]),
    ("phalanx", &["core", "transport", "rendezvous", "group", "launch", "ucx"]),
    ("checkpoint", &["phalanx"]),
    ("compress", &["phalanx", "checkpoint"]),
    ("train", &["phalanx", "checkpoint", "compress"]),
    ("candle", &["phalanx", "checkpoint", "compress", "train", "nccl"]),
    ("burn", &["phalanx", "checkpoint", "train"]),
    ("ferrotorch", &["phalanx", "train"]),
    ("ferrotorch-gpu", &["phalanx", "ferrotorch", "nccl"]),
    ("tch", &["phalanx", "train"]),
    ("cli", &["core", "algo", "group", "launch", "bench"]),
    ("bench", &["phalanx"]),
    ("nccl", &["core", "group"]),
    ("nccl-double", &[]),
    ("ucx", &["core", "transport", "group"]),
    ("python", &["phalanx", "train"]),
    ("c", &["phalanx"]),
    ("testkit", &["core", "algo", "kernels", "transport", "rendezvous", "group"]),
];

/// Crates without clock, thread and socket: `cargo xtask wasm` checks them, and clippy refuses what they must not call.
pub(crate) const PURE: [&str; 5] = ["core", "algo", "trace", "control", "engine"];

/// Crates that may contain `unsafe`, with the reason in their manifest.
const MAY_BE_UNSAFE: &[&str] = &[
    "launch",
    "kernels",
    "shm",
    "pmi",
    "nccl",
    "nccl-double",
    "ucx",
    "python",
    "c",
    "ferrotorch-gpu",
    "tch",
];

pub(super) fn dependencies(root: &Path, findings: &mut Vec<String>) {
    for dir in entries(&root.join("crates")) {
        let name = file_name(&dir);
        manifest(&name, &fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default(), findings);
        if PURE.contains(&name.as_str()) && !dir.join("clippy.toml").exists() {
            findings.push(format!(
                "crates/{name} knows no clock, thread or socket, and has no clippy.toml that refuses them: see crates/control/clippy.toml"
            ));
        }
    }
}

fn manifest(name: &str, manifest: &str, findings: &mut Vec<String>) {
    let Some((_, allowed)) = MAY_USE.iter().find(|(krate, _)| *krate == name) else {
        findings.push(format!("crates/{name} is unknown: say in xtask/src/tidy/crates.rs what it may use"));
        return;
    };
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
    if !inherits && !MAY_BE_UNSAFE.contains(&name) {
        findings.push(format!("crates/{name}/Cargo.toml does not inherit the workspace lints"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, dependencies: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let text =
            format!("[lints]\nworkspace = true\n\n[dependencies]\nserde.workspace = true\n{dependencies}");
        manifest(name, &text, &mut findings);
        findings
    }

    #[test]
    fn a_crate_may_use_what_stands_below_it() {
        assert_eq!(findings("engine", "phalanx-control.workspace = true\n"), [""; 0]);
    }

    #[test]
    fn an_upward_import_is_found() {
        for (name, above) in
            [("control", "phalanx-engine"), ("engine", "phalanx-group"), ("trace", "phalanx-control")]
        {
            let found = findings(name, &format!("{above} = {{ workspace = true }}\n"));
            assert_eq!(found, [format!("crates/{name} must not depend on {above}: see ARCHITECTURE.md")]);
        }
    }

    #[test]
    fn a_new_crate_is_asked_what_it_may_use() {
        assert!(findings("planted", "")[0].contains("crates/planted is unknown"));
    }
}
