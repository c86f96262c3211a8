//! `phalanx bench` as a user sees it.

use serde_json::Value;
use std::io::Write;
#[cfg(target_os = "linux")]
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

/// A quick run: few sizes, few samples.
fn bench(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.args(["bench", "--iters", "3", "--factor", "128", "--max-bytes", "64KiB"]).args(words);
    // As if no launcher had started this test.
    for name in ["WORLD_SIZE", "PHALANX_BACKEND", "PHALANX_ALGO"] {
        command.env_remove(name);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

const OPS: [&str; 10] = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send_recv",
    "barrier",
];

#[test]
fn every_operation_is_measured_between_processes() {
    let text = stdout(&bench(&["-n", "2", "--backend", "tcp", "--json"]));
    let report: Value = serde_json::from_str(&text).unwrap();
    let results = report["results"].as_array().unwrap();
    for op in OPS {
        let of_op: Vec<_> = results.iter().filter(|result| result["op"] == op).collect();
        // 4, 512 and 65536 bytes; what is dealt out does not start at one element; a barrier has no size.
        let divided = ["reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"].contains(&op);
        assert_eq!(of_op.len(), if op == "barrier" { 1 } else { 3 - usize::from(divided) }, "{op}");
        for result in of_op {
            assert_eq!((&result["transport"], &result["ranks"]), (&"tcp".into(), &2.into()), "{result}");
            if !divided {
                assert_eq!(result["out_of_place"], Value::Null);
            }
            let places = if divided { &["out_of_place", "in_place"][..] } else { &["in_place"] };
            for &place in places {
                let times = &result[place]["times"];
                let ascending =
                    ["min_us", "p50_us", "p95_us", "p99_us", "max_us"].map(|name| times[name].as_f64());
                assert!(ascending.is_sorted() && ascending[0] > Some(0.0), "{result}");
                assert_eq!((&result[place]["nwrong"], &times["samples"]), (&0.into(), &3.into()), "{result}");
            }
        }
    }
    assert_eq!(report["wrong"], 0);
}

#[test]
fn threads_make_the_table() {
    let words = ["-n", "1,3", "--backend", "thread", "--ops", "all_reduce", "-d", "bf16", "-o", "max"];
    let table = stdout(&bench(&words));
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 6, "{table}");
    assert_eq!(rows[5][..5], ["65536", "32768", "bf16", "max", "-1"], "{table}");
    assert_eq!(rows[5][9], "0", "{table}");
    assert!(
        table.contains("# phalanx: all_reduce, 3 ranks, thread, in place")
            && table.contains("# Wrong elements: 0 OK")
    );
}

#[test]
fn ranks_of_a_launcher_are_measured_where_they_are() {
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    let phalanx = env!("CARGO_BIN_EXE_phalanx");
    launcher.args(["run", "-n", "2", "--no-prefix", phalanx, "bench", "--ops", "all_gather,barrier"]);
    let table = stdout(&launcher.args(["--iters", "3", "--max-bytes", "64"]).output().unwrap());
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 5, "{table}");
    assert_eq!(table.matches("2 ranks").count(), 3, "{table}");
}

#[test]
fn a_job_that_ends_well_says_nothing() {
    for backend in ["tcp", "shm"].into_iter().filter(|name| cfg!(target_os = "linux") || *name == "tcp") {
        let mut launcher = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        // All that its ranks log at their ends comes to stderr.
        launcher.args([
            "run",
            "-n",
            "3",
            "--env",
            "PHALANX_LOG=warn",
            "--env",
            &format!("PHALANX_BACKEND={backend}"),
        ]);
        launcher.args([
            env!("CARGO_BIN_EXE_phalanx"),
            "bench",
            "--ops",
            "all_reduce",
            "--iters",
            "3",
            "--max-bytes",
            "64",
        ]);
        let output = launcher.output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{backend}");
    }
}

#[test]
fn buffers_of_the_group_and_the_limit_stand_beside_ours() {
    let words = ["--ops", "all_reduce,barrier", "--rounds", "1", "--registered", "also", "--limit", "--json"];
    let report: Value = serde_json::from_str(&stdout(&bench(&words))).unwrap();
    let results = report["results"].as_array().unwrap();
    let cases = |library: &str| results.iter().filter(|result| result["library"] == library).count();
    assert_eq!(["phalanx", "phalanx registered", "limit"].map(cases), [4, 4, 3], "{report}");
    let rows = report["comparison"].as_array().unwrap();
    assert_eq!(rows.iter().filter(|row| row["peers"][0]["peer"] == "limit").count(), 2 * 3, "{report}");
    assert_eq!(report["wrong"], 0);
    let words = ["--backend", "tcp", "--ops", "all_reduce,all_gather,send_recv", "--limit", "--json"];
    let report: Value = serde_json::from_str(&stdout(&bench(&words))).unwrap();
    let limits = report["results"].as_array().unwrap().iter().filter(|result| result["library"] == "limit");
    assert_eq!((limits.count(), &report["wrong"]), (2 * 3, &0.into()), "{report}");
    let table = stdout(&bench(&["--ops", "all_gather", "--backend", "thread", "--registered"]));
    assert!(table.contains("# phalanx registered: all_gather, 2 ranks, thread, in place"), "{table}");
}

/// How many of these processes have not ended.
#[cfg(target_os = "linux")]
fn alive(among: &[String]) -> usize {
    let stat = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    among
        .iter()
        .filter(|pid| stat(pid).rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
        .count()
}

#[cfg(target_os = "linux")]
#[test]
fn hogs_end_with_a_benchmark_that_is_killed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    let words = ["bench", "--hogs", "2", "--backend", "thread", "--ops", "barrier", "--budget-ms", "60000"];
    command.args(words).env_remove("WORLD_SIZE").stdout(std::process::Stdio::piped());
    let mut running = command.spawn().unwrap();
    let head = BufReader::new(running.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The header comes when all of them spin.
    assert!(head.take(3).any(|line| line.ends_with("beside 2 processes that spin")));
    let pid = running.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let hogs: Vec<_> = children.split_whitespace().map(str::to_owned).collect();
    assert_eq!(alive(&hogs), 2, "{children}");
    running.kill().unwrap();
    running.wait().unwrap();
    let begun = Instant::now();
    while alive(&hogs) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "still there: {hogs:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(feature = "plot")]
#[test]
fn files_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (csv, plot, record) = (path("a.csv"), path("a.svg"), path("record"));
    let files = ["--csv", &csv, "--plot", &plot, "--record", &record];
    stdout(&bench(&[&["--backend", "thread", "--ops", "reduce", "--rounds", "2"], &files[..]].concat()));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(csv.as_ref()).lines().count(), 1 + 2 * 3);
    assert!(read(plot.as_ref()).contains("</svg>"));
    let kept = std::fs::read_dir(record).unwrap().map(|entry| entry.unwrap().path());
    let page = kept.into_iter().find(|path| path.extension().unwrap() == "md").unwrap();
    let page = read(&page);
    for part in ["compiler", "commit", "--ops reduce", "# phalanx: reduce, 2 ranks, thread, in place"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn what_cannot_be_measured_says_why() {
    for (words, code, complaint) in [
        (&["-b", "2M"][..], 2, "--min-bytes is more than --max-bytes"),
        (&["-d", "f32", "-o", "bit_xor"], 2, "bit_xor is for integers, not for f32"),
        (&["-d", "f80"], 2, "there are f32"),
        #[cfg(feature = "plot")]
        (&["--plot", "a.pdf"], 2, ".svg or .png"),
        (&["--ops", "sort"], 2, "all_reduce"),
        (&["--against", "mpich", "-d", "f16"], 2, "sums of f32"),
        (&["--limit", "-o", "max"], 2, "sums of f32"),
        (&["--against", "torch-gloo", "--peers", "/nonexistent"], 127, "scripts/install-peers"),
        (&["--algorithms", "all_reduce=magic", "--backend", "thread"], 2, "magic"),
    ] {
        let output = bench(words);
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {complaints}");
        assert!(complaints.contains(complaint), "{words:?}: {complaints}");
    }
}

#[test]
fn a_peer_that_is_installed_is_compared() {
    // Debian installs the compiler's wrapper with the launcher, and mpi.h with another package.
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("mpi.c");
    std::fs::write(&source, "#include <mpi.h>\n").unwrap();
    let installed = ["openmpi", "mpich"].into_iter().find(|peer| {
        let compiler = Command::new(format!("mpicc.{peer}")).arg("-fsyntax-only").arg(&source).output();
        compiler.is_ok_and(|done| done.status.success())
    });
    let Some(peer) = installed else {
        let _ =
            writeln!(std::io::stderr(), "skipped: no MPI compiles here; scripts/install-peers installs one");
        return;
    };
    let words = ["--backend", "tcp", "--ops", "all_gather", "--rounds", "1", "--json", "--against", peer];
    let report: Value = serde_json::from_str(&stdout(&bench(&words))).unwrap();
    let comparison = report["comparison"].as_array().unwrap();
    assert_eq!(comparison.len(), 2, "{report}");
    for row in comparison {
        assert_eq!((&row["best"]["peer"], &row["transport"]), (&peer.into(), &"tcp".into()), "{row}");
        let (ours, theirs) = (row["ours_us"].as_f64().unwrap(), row["best"]["time_us"].as_f64().unwrap());
        let ratio = row["best"]["ratio"].as_f64().unwrap();
        assert!((ratio * theirs / ours - 1.0).abs() < 1e-9, "{row}");
    }
    let results = report["results"].as_array().unwrap();
    let theirs = results.iter().filter(|result| result["library"] == peer);
    assert_eq!(theirs.filter(|result| result.to_string().contains("\"nwrong\":0")).count(), 2, "{report}");
}

/// What stands in for Open MPI: a compiler that writes a script, and a launcher that starts it once, as rank 0 of a job.
#[cfg(target_os = "linux")]
fn broken_peer(folder: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let bin = folder.join("openmpi/bin");
    std::fs::create_dir_all(&bin).unwrap();
    let launcher = "while [ ! -e \"$1\" ] || [ -d \"$1\" ]; do shift; done\nexec \"$@\"\n";
    let program = bin.join("program");
    let compiler =
        format!("while [ \"$1\" != -o ]; do shift; done\ncp '{}' \"$2\"\n", program.to_str().unwrap());
    for (name, text) in [("mpirun", launcher), ("mpicc", &compiler), ("program", script)] {
        let path = bin.join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{text}")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_peer_that_fails_is_left_out_whenever_it_does() {
    // Before it comes; when it is to take its first turn, and after that.
    let comes = "exec 3<>\"/dev/tcp/127.0.0.1/$7\"\n";
    let plays = "head -c 1 <&3 >/dev/null\necho 'case 4 in - 0 1.0 1000'\nprintf x >&3\n";
    for (script, is_measured) in [
        (String::new(), false),
        (comes.to_owned(), false),
        (format!("{comes}{plays}"), true),
        (format!("{comes}{plays}{plays}"), true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        broken_peer(folder.path(), &format!("{script}exit 3\n"));
        let peers = folder.path().to_str().unwrap();
        let words = [
            "-n",
            "1",
            "--ops",
            "all_reduce",
            "--against",
            "openmpi",
            "--newest",
            "--peers",
            peers,
            "--json",
        ];
        let output = bench(&words);
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let results = report["results"].as_array().unwrap();
        let of = |library: &str| results.iter().filter(|result| result["library"] == library).count();
        assert_eq!((of("phalanx"), of("openmpi")), (3, usize::from(is_measured)), "{report}");
        assert!(
            text(&output.stderr).contains("openmpi with all_reduce of 1 ranks"),
            "{}",
            text(&output.stderr)
        );
    }
}
