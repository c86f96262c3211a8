//! The promises of the example, kept by real processes.

use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A network and batches that are small enough for tests; 13 windows a batch are uneven shares.
const SMALL: &[&str] = &[
    "--layers",
    "2",
    "--heads",
    "2",
    "--width",
    "32",
    "--context",
    "16",
    "--batch-size",
    "13",
    "--write",
    "20",
];

/// What a run says of itself.
#[derive(Debug, Deserialize)]
struct Report {
    points: Vec<Point>,
    weights: Vec<String>,
    bytes_sent: u64,
}

#[derive(Debug, Deserialize)]
struct Point {
    step: u64,
    training: f64,
    held_out: f64,
}

/// The program, in `folder`, with a small network and the flags `args`.
fn program(folder: &Path, args: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_shakespeare"));
    program.current_dir(folder).args(["--json", "report.json", "--plot", "loss.svg"]).args(SMALL).args(args);
    program
}

fn run(mut program: Command) -> (Report, Output) {
    let output = program.output().unwrap();
    assert!(output.status.success(), "{program:?}: {}", String::from_utf8_lossy(&output.stderr));
    let json = std::fs::read(program.get_current_dir().unwrap().join("report.json")).unwrap();
    (serde_json::from_slice(&json).unwrap(), output)
}

/// Asserts that two runs have the same losses to so much of their value.
fn assert_near(found: &Report, expected: &Report, relative: f64) {
    assert_eq!(found.points.len(), expected.points.len());
    for (found, expected) in found.points.iter().zip(&expected.points) {
        assert_eq!(found.step, expected.step);
        let apart = |a: f64, b: f64| (a - b).abs() / b;
        assert!(apart(found.training, expected.training) < relative, "{found:?} instead of {expected:?}");
        assert!(apart(found.held_out, expected.held_out) < relative, "{found:?} instead of {expected:?}");
    }
}

#[test]
fn any_number_of_ranks_trains_the_same_model_in_every_way_that_leaves_nothing_out() {
    let folder = tempfile::tempdir().unwrap();
    let short = ["--steps", "12", "--evaluate-every", "4"];
    let (alone, _) = run(program(folder.path(), &[&short[..], &["--ranks", "1"]].concat()));
    for (backend, flags) in [
        ("shm", &["--ranks", "2"][..]),
        ("tcp", &["--ranks", "3"]),
        ("shm", &["--ranks", "2", "--overlap", "on"]),
        ("tcp", &["--ranks", "2", "--method", "zero-1"]),
        ("shm", &["--ranks", "3", "--method", "zero-2"]),
        ("shm", &["--ranks", "2", "--method", "zero-3", "--overlap", "on"]),
    ] {
        let mut program = program(folder.path(), &[&short[..], flags].concat());
        program.env("PHALANX_BACKEND", backend);
        let (found, _) = run(program);
        // Where weights are dealt out, one rank fetches them all in the end.
        let whole = if flags.contains(&"--method") { "1" } else { flags[1] };
        assert_eq!(found.weights.len().to_string(), whole);
        assert!(found.weights.iter().all(|weights| *weights == found.weights[0]), "{flags:?}: {found:?}");
        assert_near(&found, &alone, 1e-4);
    }
}

#[test]
fn fewer_bytes_or_bits_learn_too() {
    let folder = tempfile::tempdir().unwrap();
    let short = ["--ranks", "2", "--steps", "40", "--evaluate-every", "40", "--lr", "0.01"];
    let (plain, _) = run(program(folder.path(), &short));
    // The logarithm of 65 is where it begins.
    assert!(plain.points[0].held_out < 3.5, "{plain:?}");
    for flags in [
        ["--hook", "f16"],
        ["--hook", "bf16"],
        ["--hook", "int8"],
        ["--hook", "power-sgd"],
        ["--hook", "top-k"],
        ["--precision", "f16"],
        ["--method", "local-sgd"],
        ["--method", "diloco"],
        ["--method", "streaming-diloco"],
    ] {
        let (found, _) = run(program(folder.path(), &[&short[..], &flags].concat()));
        assert!(found.points[0].held_out < 3.6, "{flags:?}: {found:?}");
        assert_eq!(found.weights[0], found.weights[1]);
        assert_eq!(found.bytes_sent > 0, flags[0] != "--precision", "{flags:?}: {found:?}");
    }
}

#[test]
fn a_training_that_is_killed_goes_on_from_its_checkpoint_in_another_way() {
    let folder = tempfile::tempdir().unwrap();
    let short = ["--steps", "60", "--evaluate-every", "20"];
    let (expected, _) = run(program(folder.path(), &[&short[..], &["--ranks", "2"]].concat()));

    let saving = ["--checkpoint", "saved", "--checkpoint-every", "1"];
    let saved = || {
        let names = std::fs::read_dir(folder.path().join("saved")).into_iter().flatten();
        names.filter(|name| !name.as_ref().unwrap().file_name().to_string_lossy().contains('.')).count()
    };
    let first = ["--ranks", "2", "--method", "zero-3"];
    let mut stopped = program(folder.path(), &[&short[..], &saving, &first].concat());
    let mut stopped = stopped.stdout(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while saved() < 2 {
        assert!(Instant::now() < until, "nothing is saved");
        sleep(Duration::from_millis(1));
    }
    stopped.kill().unwrap();
    stopped.wait().unwrap();

    let (found, output) = run(program(folder.path(), &[&short[..], &saving, &["--ranks", "3"]].concat()));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("[0] going on after step "), "{stdout}");
    assert_near(&found, &expected, 1e-3);
    let curve = std::fs::read_to_string(folder.path().join("loss.svg")).unwrap();
    assert!(curve.contains("held out") && curve.matches("<polyline").count() >= 2, "two curves");

    // It is at its end: there is nothing left to train, and a training that ends before is another one.
    let (again, _) = run(program(folder.path(), &[&short[..], &saving, &["--ranks", "1"]].concat()));
    assert_near(&again, &found, 1e-12);
    let output = program(folder.path(), &[&["--steps", "50", "--ranks", "1"], &saving[..]].concat()).output();
    let stderr = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(stderr.contains("step 60 is saved already, and this training is to end at step 50"), "{stderr}");
}

#[test]
fn nonsense_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, complaint) in [
        (["--ranks", "0"], "rank"),
        (
            ["--context=300", "--batch-size=4000"],
            "has 3346 windows of 300 characters, too few for one batch of 4000",
        ),
        (["--ranks", "14"], "a batch of 13 is too small for 14 ranks"),
        (["--hook", "zip"], "zip"),
        (["--method=zero-2", "--hook=int8"], "--method zero-2 has no --hook"),
        (["--method=diloco", "--precision=f16"], "--method diloco has no --precision f16"),
        (["--precision=bf16", "--hook=int8"], "--precision bf16 has no --hook"),
        (["--steps", "0"], "--steps"),
        (["--heads", "3"], "can't be dealt out to 3 heads"),
        (["--context", "500000"], "longer than the text"),
    ] {
        let args: Vec<_> = SMALL.iter().chain(&flags).copied().collect();
        let output = Command::new(env!("CARGO_BIN_EXE_shakespeare"))
            .current_dir(folder.path())
            .args(args)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{flags:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(complaint), "{flags:?}: {stderr}");
    }
}
