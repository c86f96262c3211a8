//! The check for machines with GPUs, on the double: that it runs to its end, finds what is wrong, and says what it was run on.

#![cfg(target_os = "linux")]

mod common;
#[path = "../examples/gpu_check/main.rs"]
mod program;

use common::double;
use std::process::{Command, Output};

fn check(fault: &str) -> (Output, String) {
    let test = std::env::current_exe().unwrap();
    let program =
        format!("{} child_is_the_program --exact --ignored --nocapture --test-threads=1", test.display());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/gpu-check");
    let output = Command::new(script)
        .arg("--double")
        .env("GPU_CHECK", program)
        .env("GPU_CHECK_DOUBLE", double())
        .env("PHALANX_DOUBLE", fault)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output, said)
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_the_program() {
    program::main().unwrap();
}

#[test]
fn it_runs_to_its_end_and_says_that_this_was_no_gpu() {
    let (output, said) = check("devices=2");
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("| passed  |").count(), 10, "{said}");
    assert!(said.contains("2 in all") && said.contains("VERDICT: this was the DOUBLE"), "{said}");
    assert!(said.contains("\n| 1024 | ") && said.contains("\n| 16384 | "), "{said}");
}

/// 2.21 has no floats of eight bits, whatever the GPU has.
#[test]
fn it_passes_at_every_version_of_nccl() {
    for version in [22_105, 22_602, 23_007] {
        let (output, said) = check(&format!("devices=2,version={version}"));
        assert!(output.status.success(), "{version}: {said}");
        assert_eq!(said.matches("| passed  |").count(), 10, "{version}: {said}");
    }
}

/// For one rank NCCL does nothing in place.
#[test]
fn one_gpu_measures_a_copy() {
    let (output, said) = check("devices=1");
    assert!(output.status.success(), "{said}");
    assert!(said.contains("| all_gather of f32 by one rank") && said.contains("\n| 1024 | "), "{said}");
}

/// Ampere has no floats of eight bits.
#[test]
fn older_gpus_pass_too() {
    let (output, said) = check("devices=2,capability=80");
    assert!(output.status.success(), "{said}");
}

#[test]
fn what_is_wrong_is_found_and_named() {
    let (output, said) = check("devices=2,wrong-sums");
    assert!(!output.status.success(), "{said}");
    // What goes over the host does not go over NCCL.
    assert_eq!((said.matches("| FAILED  |").count(), said.matches("| passed  |").count()), (9, 1), "{said}");
    assert!(said.contains("VERDICT: FAILED: every operation, a GPU for each rank"), "{said}");
    assert!(said.contains("computes wrong sums"), "{said}");
}

#[test]
fn without_a_gpu_nothing_is_checked() {
    let (output, said) = check("no-device");
    assert!(!output.status.success() && said.contains("VERDICT: nothing was checked"), "{said}");
}
