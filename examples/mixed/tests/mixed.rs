//! The job of the README, on two and on four ranks.

#![allow(clippy::print_stderr, reason = "a test that is skipped is named")]

use std::path::Path;
use std::process::Command;

/// The interpreter with phalanx, torch and safetensors that a variable names; why there is none, otherwise.
fn python() -> Result<String, String> {
    let python = std::env::var("PHALANX_TEST_PYTHON").map_err(|_| {
        "PHALANX_TEST_PYTHON names no interpreter with phalanx, torch and safetensors (scripts/python-env makes one)"
    })?;
    let imports = Command::new(&python).args(["-c", "import phalanx, torch, safetensors, numpy"]).output();
    match imports {
        Ok(done) if done.status.success() => Ok(python),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).lines().last().unwrap_or_default().to_owned()),
        Err(error) => Err(format!("{python}: {error}")),
    }
}

#[test]
fn ranks_in_rust_and_in_python_end_with_the_same_weights() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return eprintln!("skipped: no job of Rust and Python: {why}"),
    };
    // The launcher that the package brings.
    let phalanx = Path::new(&python).with_file_name("phalanx");
    let program = Path::new(env!("CARGO_BIN_EXE_mixed"));
    for ranks in ["2", "4"] {
        let done = Command::new(&phalanx)
            .args(["run", "-n", ranks, "--timeout", "300", concat!(env!("CARGO_MANIFEST_DIR"), "/rank.sh")])
            .env("PYTHON", &python)
            .env("MIXED", program)
            .output()
            .expect("the launcher starts");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
        let weights: Vec<&str> =
            said.lines().filter_map(|line| line.split_once("weights ")).map(|(_, sums)| sums).collect();
        assert_eq!(weights.len().to_string(), ranks, "{said}");
        assert!(weights.iter().all(|sums| *sums == weights[0]), "{said}");
        assert!(
            said.contains("Rust and candle: accuracy 9") && said.contains("Python and PyTorch: accuracy 9"),
            "{said}"
        );
    }
}
