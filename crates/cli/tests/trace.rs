//! What ranks write when something goes wrong, and what `phalanx trace` makes of it: real processes.
#![cfg(target_os = "linux")]

use phalanx_group::{ProcessGroup, ReduceOp, init};
use rustix::process::{Signal, getpid, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

// Operation #1 is the self-test of `init`, so the first here is #2.

const ROLE: &str = "PHALANX_TEST_ROLE";
const RANKS: usize = 3;

/// The place of a call that only one rank makes, and of the one that the others make instead.
const OTHER_LINE: u32 = line!() + 26;
const SAME_LINE: u32 = line!() + 27;

fn perform(role: &str, group: &ProcessGroup) -> phalanx_group::Result<()> {
    let mut buffer = [1.0f32; 10];
    if role == "mesh" {
        return perform_in_mesh(group);
    }
    if role == "unsent" {
        return wait_in_vain(group);
    }
    for i in 1.. {
        match (role, group.rank(), i) {
            ("asked", 1, 2) => {
                // So long that nobody takes it for a rank that is on its way.
                sleep(Duration::from_millis(2_500));
                ask_until_all_have_written();
            }
            ("well", 1, 2) => ask_until_all_have_written(),
            ("mesh", 4, 6) => kill_process(getpid(), Signal::KILL).expect("a process may kill itself"),
            // The others have come to the operation by then.
            ("killed", 1, 6) | ("astray", 2, 4) => sleep(Duration::from_millis(400)),
            _ => {}
        }
        match (role, group.rank(), i) {
            ("killed", 1, 6) => kill_process(getpid(), Signal::KILL).expect("a process may kill itself"),
            ("astray", 2, 4) => group.broadcast(&mut buffer, 0)?,
            (_, _, 9) => break,
            _ => group.all_reduce(&mut buffer, ReduceOp::Sum)?,
        }
    }
    if role == "fine" {
        group.dump_trace(file(&folder(), group.rank()))?;
    }
    Ok(())
}

/// All work in rows and columns of three by three; rank 4 dies.
fn perform_in_mesh(group: &ProcessGroup) -> phalanx_group::Result<()> {
    let (row, column) = (group.rank() as u32 / 3, group.rank() as u32 % 3);
    let row = group.split(Some(row), 0)?.expect("it has a color");
    let column = group.split(Some(column), 0)?.expect("it has a color");
    for i in 0..1000 {
        if group.rank() == 4 && i == 6 {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
        row.all_reduce(&mut [1.0f32; 10], ReduceOp::Sum)?;
        column.all_reduce(&mut [1.0f32; 10], ReduceOp::Sum)?;
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// All wait for rank 1, which does not come, and rank 2 beside that for a message of rank 0.
fn wait_in_vain(group: &ProcessGroup) -> phalanx_group::Result<()> {
    if group.rank() == 1 {
        sleep(Duration::from_secs(6));
        return Ok(());
    }
    std::thread::scope(|scope| {
        if group.rank() == 2 {
            let short = group.with_timeout(Duration::from_millis(1500));
            scope.spawn(move || short.recv(&mut [0u8], 0, 7));
        }
        group.barrier()
    })
}

#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let group = init().expect("the ranks come together");
    let outcome = perform(&role, &group).and_then(|()| group.finalize());
    std::process::exit(i32::from(outcome.is_err()));
}

/// Until the others wait for this rank in their second operation, and have written that they do.
fn ask_until_all_have_written() {
    let folder = folder();
    let waits = |rank: usize| {
        let text = std::fs::read(file(&folder, rank)).unwrap_or_default();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        trace["pg_status"]["world"]["last_started_collective"] == 3
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !(waits(0) && waits(2)) {
        assert!(Instant::now() < until, "not all ranks wrote");
        kill_process(getpid(), Signal::USR1).expect("a process may send itself a signal");
        sleep(Duration::from_millis(20));
    }
}

/// Where a rank writes.
fn folder() -> PathBuf {
    std::env::var_os("PHALANX_TRACE_DIR").expect("the launcher sets it").into()
}

fn file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("trace_rank_{rank}.json"))
}

fn phalanx() -> Command {
    Command::new(env!("CARGO_BIN_EXE_phalanx"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Runs a job in `role`, whose logs come to `dir`.
fn run(role: &str, ranks: usize, dir: &Path) -> Output {
    phalanx()
        .args(["run", "-n", &ranks.to_string(), "--job-id", "j", "--log-dir"])
        .arg(dir)
        .args(["--env", &format!("{ROLE}={role}"), "--env", "PHALANX_TRACE_SIGNAL=1", "--timeout", "100"])
        .arg(std::env::current_exe().expect("this test has a path"))
        .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .expect("the launcher starts")
}

/// Runs a job in `role` and returns how it ended, and what `phalanx trace` says of what `ranks` wrote.
fn judge(role: &str, ranks: &[usize]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let job = run(role, RANKS, dir.path());
    let folder = dir.path().join("j/attempt_0");
    let written: Vec<usize> = (0..RANKS).filter(|&rank| file(&folder, rank).exists()).collect();
    assert_eq!(written, ranks, "{role}: {}", text(&job));
    let chrome = dir.path().join("chrome.json");
    let files = ranks.iter().map(|&rank| file(&folder, rank));
    let trace = phalanx().arg("trace").args(files).arg("--chrome").arg(&chrome).output().expect("it starts");
    assert_eq!(trace.status.code(), Some(0), "{}", text(&trace));
    let chrome: serde_json::Value = serde_json::from_slice(&std::fs::read(chrome).unwrap()).unwrap();
    let slices = chrome["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count();
    assert!(slices > ranks.len(), "{chrome}");
    (job.status.code(), text(&trace))
}

#[test]
fn a_killed_rank_is_named() {
    let (code, said) = judge("killed", &[0, 2]);
    assert_eq!(code, Some(137), "{said}");
    for part in [
        "root cause: rank 1 (",
        "no trace of rank 1 (of 3)\n",
        "world: rank 1 missing at operation #7, where ranks 0, 2 waited for ",
        " in all_reduce(f32 x 10, sum) at crates/cli/tests/trace.rs:",
        "; rank 1 left no trace\n",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_told_with_the_reason() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("a_file");
    std::fs::write(&file, "").expect("a temporary file");
    let folder = file.join("traces");
    let job = phalanx()
        .args(["run", "-n", &RANKS.to_string(), "--timeout", "100", "--env", &format!("{ROLE}=killed")])
        .args(["--env", &format!("PHALANX_TRACE_DIR={}", folder.display())])
        .arg(std::env::current_exe().expect("this test has a path"))
        .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .expect("the launcher starts");
    let said = text(&job);
    for rank in [0, 2] {
        let warns = |line: &str| {
            line.contains(&format!("phalanx: rank {rank} ("))
                && line
                    .contains(&format!("its trace is not written: writing {}/trace_rank_", folder.display()))
                && line.contains("Not a directory")
        };
        assert!(said.lines().any(warns), "rank {rank}: {said}");
    }
}

#[test]
fn who_calls_something_else_is_named_with_both_call_sites() {
    let (code, said) = judge("astray", &[0, 1, 2]);
    assert_eq!(code, Some(1), "{said}");
    let verdict = format!(
        "world: ranks disagree at operation #5: ranks 0-1 called all_reduce(f32 x 10, sum) at crates/cli/tests/trace.rs:{SAME_LINE}, \
         but rank 2 called broadcast(f32 x 10, root 0) at crates/cli/tests/trace.rs:{OTHER_LINE}\n"
    );
    assert!(said.contains(&verdict), "{verdict}: {said}");
}

#[test]
fn a_signal_makes_all_ranks_write_and_the_job_goes_on() {
    let (code, said) = judge("asked", &[0, 1, 2]);
    assert!(said.contains("world: rank 1 missing at operation #3, where ranks 0, 2 waited for "), "{said}");
    assert!(said.contains("; the last of rank 1 was #2 all_reduce(f32 x 10, sum)"), "{said}");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn ranks_that_agree_write_when_the_program_says_so() {
    let (code, said) = judge("fine", &[0, 1, 2]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("world: all 3 ranks agree, from operation #1 to #9\n"), "{said}");
}

#[test]
fn a_healthy_job_that_is_asked_is_said_to_be_well() {
    let (code, said) = judge("well", &[0, 1, 2]);
    assert_eq!(code, Some(0), "{said}");
    // If the machine is busy, it may have taken long to ask.
    let waited = said.split_once("where ranks 0, 2 waited for ").and_then(|(_, rest)| rest.split_once(" s "));
    if waited.is_some_and(|(seconds, _)| seconds.parse::<f64>().expect("seconds") >= 2.0) {
        return;
    }
    assert!(said.starts_with("nothing is wrong: no group has failed"), "{said}");
    assert!(
        said.contains(
            "ranks 0, 2 are in operation #3 all_reduce(f32 x 10, sum) at crates/cli/tests/trace.rs:"
        ),
        "{said}"
    );
    assert!(said.contains("rank 1 is between operations, after #2 all_reduce(f32 x 10, sum)"), "{said}");
    assert!(!said.contains("missing"), "{said}");
}

#[test]
fn a_mesh_has_one_root_cause_and_groups_with_members() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let job = run("mesh", 9, dir.path());
    assert_ne!(job.status.code(), Some(0));
    // The folder of all logs: the newest attempt is found.
    let trace = phalanx().arg("trace").arg(dir.path()).output().expect("it starts");
    let said = text(&trace);
    assert_eq!(trace.status.code(), Some(0), "{said}");
    let root = said.lines().find(|line| line.starts_with("root cause: ")).unwrap_or_default();
    assert!(root.starts_with("root cause: rank 4 ("), "{said}\n{}", text(&job));
    assert!(said.starts_with("read ") && said.contains("/j/attempt_0"), "{said}");
    assert!(said.contains("no trace of rank 4 (of 9)\n"), "{said}");
    assert!(said.contains("the group of ranks 3, 4, 5: rank 4 missing at operation #"), "{said}");
    assert!(said.contains("the group of ranks 1, 4, 7: rank 4 missing at operation #"), "{said}");
    // No numbers where there are names.
    let is_id = |word: &str| word.len() == 8 && word.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(!said.lines().any(|line| line.contains("group ") && line.split([' ', ':']).any(is_id)), "{said}");

    // A file that is cut off, as by a full disk.
    let folder = dir.path().join("j/attempt_0");
    std::fs::write(file(&folder, 4), "{\"version\": \"2.").unwrap();
    let said = text(&phalanx().arg("trace").arg(&folder).output().expect("it starts"));
    assert!(said.contains("trace_rank_4.json can't be used: it is not what a rank wrote: EOF"), "{said}");
    assert!(!said.contains("left no trace"), "{said}");
}

#[test]
fn a_receive_in_vain_blames_nobody_for_a_collective() {
    let (code, said) = judge("unsent", &[0, 1, 2]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("root cause: rank 2 ("), "{said}");
    assert!(said.contains(") was in barrier #2 for rank 1 (crates/cli/tests/trace.rs:"), "{said}");
    assert!(said.contains("world: rank 1 missing at operation #2, where ranks 0, 2 waited for "), "{said}");
    assert!(said.contains("world: unfinished recv 2<-0, tag 7"), "{said}");
}

/// What `phalanx trace --json` says of a job in `role`, and of its group of all ranks.
fn judge_json(role: &str) -> (serde_json::Value, serde_json::Value) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    run(role, RANKS, dir.path());
    let trace = |flags: &[&str]| {
        let trace = phalanx().arg("trace").args(flags).arg(dir.path()).output().expect("it starts");
        assert_eq!(trace.status.code(), Some(0), "{}", text(&trace));
        String::from_utf8(trace.stdout).expect("text")
    };
    let verdict: serde_json::Value =
        serde_json::from_str(&trace(&["--json"])).expect("JSON and nothing else");
    let folder = dir.path().join("j/attempt_0").display().to_string();
    assert_eq!(verdict["folders"], serde_json::json!([folder]));
    // Behind the line that says which folder was read.
    let said = trace(&[]);
    let words: Vec<&str> = said.lines().skip(1).collect();
    assert_eq!(verdict["words"], serde_json::json!(words));
    let groups = verdict["groups"].as_array().expect("a list");
    let world = groups.iter().find(|group| group["id"] == "world").expect("all ranks have a group").clone();
    (verdict, world)
}

#[test]
fn programs_read_the_verdict() {
    let (verdict, world) = judge_json("killed");
    assert_eq!((&verdict["world_size"], &verdict["traces"]), (&3.into(), &serde_json::json!([0, 2])));
    assert_eq!(verdict["causes"][0]["ranks"], serde_json::json!([0, 2]), "{verdict}");
    assert!(verdict["causes"][0]["cause"].as_str().expect("words").starts_with("rank 1 ("), "{verdict}");
    assert_eq!((&world["finding"], &world["missing"][0]["rank"]), (&"missing".into(), &1.into()), "{world}");
    assert_eq!(
        (&world["waiting"], &world["ranks"]),
        (&serde_json::json!([0, 2]), &serde_json::json!([0, 1, 2]))
    );
    assert_eq!(
        (&world["call"]["op"], &world["call"]["line"]),
        (&"all_reduce".into(), &SAME_LINE.into()),
        "{world}"
    );
    let (_, world) = judge_json("astray");
    assert_eq!(world["finding"], "diverged", "{world}");
    let sides = world["sides"].as_array().expect("a list");
    let ranks: Vec<_> = sides.iter().map(|side| side["ranks"].to_string()).collect();
    assert_eq!(ranks, ["[0,1]", "[2]"], "{world}");
    assert_eq!(sides[1]["call"]["line"], OTHER_LINE, "{world}");
}
