//! The promise of the example, kept by real processes and by threads: all ranks end with the same weights, at the loss at which every library ends.

use examples_common::digits::LOSS_AFTER_TWO_EPOCHS;
use examples_common::digits::report::Report;
use phalanx::launch::{Launch, Outcome};
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_digits-ferrotorch");

/// 33 images a batch: two ranks have uneven shares.
fn flags(folder: &Path) -> Vec<String> {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let short = ["--epochs", "2", "--batch-size", "33", "--seed", "5"].map(str::to_owned);
    [&short[..], &["--json".to_owned(), file("report.json"), "--plot".to_owned(), file("loss.svg")]].concat()
}

fn report(folder: &Path) -> Report {
    serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap()
}

fn ends_as_all_do(report: &Report, ranks: usize) {
    assert_eq!(report.weights.len(), ranks);
    assert!(report.weights_agree(), "{report}");
    assert_eq!(report.epoch_losses.len(), 2);
    assert!(report.epoch_losses[1] < report.epoch_losses[0], "{report}");
    assert!(report.test_accuracy > 0.8, "{report}");
    assert!((report.final_loss / LOSS_AFTER_TWO_EPOCHS - 1.0).abs() < 1e-4, "{report}");
}

#[test]
fn processes_and_threads_end_with_the_same_weights_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = Launch::new(PROGRAM).args(flags(folder.path())).ranks(2).run().unwrap();
    if let Outcome::Failure(failure) = outcome {
        panic!("{failure}");
    }
    ends_as_all_do(&report(folder.path()), 2);

    let folder = tempfile::tempdir().unwrap();
    let threads = Command::new(PROGRAM).args(flags(folder.path())).args(["--ranks", "2"]).output().unwrap();
    let stdout = String::from_utf8(threads.stdout).unwrap();
    assert!(threads.status.success(), "{}", String::from_utf8_lossy(&threads.stderr));
    assert!(stdout.contains("all 2 ranks have the same weights, bit for bit"), "{stdout}");
    ends_as_all_do(&report(folder.path()), 2);
}

#[test]
fn a_batch_too_small_for_the_ranks_is_refused() {
    let output = Command::new(PROGRAM).args(["--ranks", "2", "--batch-size", "1"]).output().unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("a batch of 1 is too small for 2 ranks"), "{stderr}");
}
