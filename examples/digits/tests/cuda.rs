//! The promise of the example on GPUs, by real processes: `scripts/cuda-on-double` runs it on the double of CUDA. It says nothing of a GPU.

use digits_common::report::Report;
use std::path::Path;
use std::process::Command;

fn train(folder: &Path, args: &[&str]) -> Report {
    let short = ["--epochs", "1", "--batch-size", "33", "--json", "report.json", "--plot", "loss.svg"];
    let program = env!("CARGO_BIN_EXE_digits");
    let output = Command::new(program).current_dir(folder).args(short).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap()
}

#[test]
fn ranks_on_gpus_end_where_the_host_does() {
    let folder = tempfile::tempdir().unwrap();
    let expected = train(folder.path(), &["--ranks", "1"]);
    for ranks in ["1", "2", "3"] {
        let found = train(folder.path(), &["--ranks", ranks, "--device", "cuda"]);
        assert!(found.weights_agree(), "{found}");
        let apart = (found.final_loss - expected.final_loss).abs() / expected.final_loss;
        assert!(apart < 1e-9, "{ranks} ranks: {found}\non the host: {expected}");
    }
}

#[test]
fn a_checkpoint_of_gpus_is_one_of_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let saving = ["--checkpoint", saved.to_str().unwrap(), "--checkpoint-every", "10"];
    let expected = train(folder.path(), &["--ranks", "2"]);
    train(folder.path(), &[&["--ranks", "2", "--device", "cuda"], &saving[..]].concat());
    // The last steps again, from what was saved last.
    let found = train(folder.path(), &[&["--ranks", "1"], &saving[..]].concat());
    let apart = (found.final_loss - expected.final_loss).abs() / expected.final_loss;
    assert!(apart < 1e-9, "{found}\nwithout a stop: {expected}");
}
