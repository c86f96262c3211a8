//! The same training under the launchers of others, which `scripts/install-launchers` installs: without a variable it ends with the weights that ranks
//! of our own launcher have, bit for bit.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a launcher that is skipped is named")]

use digits_common::report::Report;
use std::io::ErrorKind;
use std::process::Command;

/// `None`: that program is not installed.
fn train(program: &str, args: &[&str]) -> Option<Report> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.current_dir(folder.path()).args(args);
    command.args(["--epochs", "1", "--batch-size", "33", "--json", "report.json", "--plot", "loss.svg"]);
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).unwrap()).unwrap())
}

#[test]
fn ranks_of_other_launchers_end_where_ours_do() {
    let digits = env!("CARGO_BIN_EXE_digits");
    let expected = train(digits, &["--ranks", "4"]).unwrap();
    for (launcher, args) in [
        ("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe", "-n", "4", digits][..]),
        ("mpiexec.hydra", &["-n", "4", digits]),
    ] {
        let Some(found) = train(launcher, args) else {
            println!("skipped: {launcher} is not installed (scripts/install-launchers installs it)");
            continue;
        };
        assert_eq!(found.weights, expected.weights, "{launcher}: {found}\nours: {expected}");
        assert_eq!(found.weights.len(), 4);
        assert!(found.weights_agree(), "{found}");
        assert_eq!(found.final_loss.to_bits(), expected.final_loss.to_bits(), "{launcher}");
    }
}
