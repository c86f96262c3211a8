//! `phalanx run` as a user sees it. Linux, because what is left of a job is looked for in `/proc`.
#![cfg(target_os = "linux")]

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn phalanx(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.args(words);
    command
}

fn output(words: &[&str]) -> Output {
    phalanx(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether the process still runs. A zombie that waits for its parent does not.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !matches!(stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]), Some(b'Z' | b'X'))
    })
}

/// Waits until `condition` holds, and fails the test, which says what is wrong then, when it does not come to hold.
#[track_caller]
fn eventually(condition: impl Fn() -> bool, otherwise: &str) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{otherwise}");
        sleep(Duration::from_millis(5));
    }
}

/// Waits until none of the processes runs, and fails the test when one stays.
#[track_caller]
fn all_gone(pids: &[u32]) {
    eventually(|| !pids.iter().copied().any(runs), &format!("some of {pids:?} are still there"));
}

/// A launcher with ranks that sleep.
struct Job {
    launcher: Child,
    ranks: Vec<u32>,
}

impl Job {
    /// Starts `command`, which must become a launcher of `ranks` ranks that perform [`Self::RANK`].
    fn start(mut command: Command, ranks: usize) -> Self {
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(launcher.stdout.as_mut().unwrap()).lines().take(ranks);
        let pid = |line: std::io::Result<String>| line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        let ranks = lines.map(pid).collect();
        Self { launcher, ranks }
    }

    /// The ranks say who they are, then sleep: a minute at most, so that a failed test leaves nothing for long.
    const RANK: [&str; 3] = ["sh", "-c", "echo pid $$; exec sleep 60"];

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.launcher.wait().unwrap().code()
    }
}

#[test]
fn no_rank_outlives_a_launcher_that_is_killed() {
    for _ in 0..10 {
        let mut job = Job::start(phalanx(&[&["run", "-n", "3"], &Job::RANK[..]].concat()), 3);
        assert_eq!(job.ranks.len(), 3);
        assert!(job.ranks.iter().copied().all(runs));
        job.launcher.kill().unwrap();
        job.launcher.wait().unwrap();
        all_gone(&job.ranks);
    }
}

/// Whether this process ignores the signal, as one does that a shell started in the background: the launcher would
/// inherit that, and keep to it.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn signals_to_the_launcher_end_the_job() {
    let signals = [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)];
    for (signal, code) in signals.into_iter().filter(|(signal, _)| !is_ignored(*signal)) {
        let mut job = Job::start(phalanx(&[&["run", "-n", "2"], &Job::RANK[..]].concat()), 2);
        job.signal(signal);
        assert_eq!(job.exit_code(), Some(code));
        all_gone(&job.ranks);
    }
}

#[test]
fn under_nohup_a_closed_terminal_does_not_end_the_job() {
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "nohup", env!("CARGO_BIN_EXE_phalanx"), "run", "-n", "2"]);
    nohup.args(Job::RANK);
    let mut job = Job::start(nohup, 2);
    job.signal(Signal::HUP);
    job.signal(Signal::TERM);
    assert_eq!(job.exit_code(), Some(143));
    all_gone(&job.ranks);
}

#[test]
fn the_exit_code_is_that_of_the_first_failure() {
    for (script, code) in
        [("exit 0", 0), ("exit $RANK", 1), ("exit 77", 77), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)]
    {
        let output = output(&["run", "-n", "2", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{script}: {}", text(&output.stderr));
    }
}

#[test]
fn time_runs_out() {
    let output = output(&["run", "-n", "2", "--timeout", "0.1", "--grace", "0.1", "sleep", "60"]);
    assert_eq!(output.status.code(), Some(124));
    assert!(
        text(&output.stderr).contains("phalanx: did not finish within 0.1 s"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_failure_is_reported_once_and_in_full() {
    let dir = tempfile::tempdir().unwrap();
    let script = "[ $RANK = 1 ] || exec sleep 60; echo 'out of ideas' >&2; exit 9";
    let folder = dir.path().to_str().unwrap();
    let output = output(&["run", "-n", "3", "--log-dir", folder, "--job-id", "j", "sh", "-c", script]);
    let report = text(&output.stderr);
    assert_eq!(report.matches("phalanx: rank 1 of 3 (pid ").count(), 1, "{report}");
    for part in
        ["[1] out of ideas\n", "exited with code 9", "j/attempt_0/1/stderr.log", "\n  | out of ideas\n"]
    {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(dir.path().join("j/attempt_0/2/stdout.log").exists());
}

#[test]
fn output_goes_where_it_belongs() {
    let output = output(&["run", "-n", "1", "--env", "A=b=c", "sh", "-c", "echo $A; echo err >&2"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("[0] b=c\n".into(), "[0] err\n".into()));
    let output = self::output(&["run", "-n", "1", "--no-prefix", "printf", "%s;", "-n", "--", "--help"]);
    assert_eq!(text(&output.stdout), "-n;--;--help;\n");
}

/// What the environment requires is more than what the flag asks for.
#[test]
fn a_job_that_is_to_encrypt_is_told_so() {
    for (flags, outside, inside) in [
        (&["--encrypt"][..], "", "1"),
        (&["--encrypt"], "0", "1"),
        (&["--encrypt"], "require", "require"),
        (&["--encrypt", "--env", "PHALANX_ENCRYPT=require"], "", "require"),
        (&["--encrypt", "--env", "PHALANX_ENCRYPT=0"], "require", "1"),
        (&[], "require", "require"),
    ] {
        let mut job = phalanx(&[&["run"], flags, &["-n", "1", "sh", "-c", "echo $PHALANX_ENCRYPT"]].concat());
        let output = job.env("PHALANX_ENCRYPT", outside).output().unwrap();
        assert_eq!(text(&output.stdout), format!("[0] {inside}\n"), "{flags:?} {outside:?}");
    }
}

#[test]
fn a_reader_that_leaves_does_not_end_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let done = dir.path().join("done");
    let script = format!("yes | head -c 1000000; touch {}", done.display());
    let mut job = phalanx(&["run", "-n", "1", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    drop(job.stdout.take());
    assert_eq!(job.wait().unwrap().code(), Some(0));
    assert!(done.exists());
}

#[test]
fn a_stderr_that_nobody_reads_ends_no_job_and_takes_no_rank_its_grace() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved");
    // The second rank fails when the first is ready to be asked to end.
    let script = format!(
        "[ $RANK = 1 ] && {{ read ready < {fifo}; exit 7; }}; \
         trap 'echo > {saved}; exit 0' TERM; echo > {fifo}; while :; do sleep 0.01; done",
        fifo = dir.path().join("fifo").display(),
        saved = saved.display()
    );
    assert!(Command::new("mkfifo").arg(dir.path().join("fifo")).status().unwrap().success());
    let mut job = phalanx(&["run", "-n", "2", "sh", "-c", &script]).stderr(Stdio::piped()).spawn().unwrap();
    drop(job.stderr.take());
    assert_eq!(job.wait().unwrap().code(), Some(7));
    assert!(saved.exists(), "the other rank was not asked");
}

#[test]
fn a_stderr_that_is_broken_for_a_while_shows_what_comes_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(path("stderr")).status().unwrap().success());
    // What the launcher logs of the first attempt finds nobody who reads it; the second speaks when there is somebody again.
    let script = format!(
        "[ $PHALANX_RESTART_COUNT = 0 ] && exit 7; echo > {again}; until [ -e {read} ]; do sleep 0.01; done; echo later >&2",
        again = path("again").display(),
        read = path("read").display()
    );
    let mut command =
        phalanx(&["run", "-n", "1", "--max-restarts", "1", "--timeout", "60", "sh", "-c", &script]);
    // Who opens a FIFO to write waits for who reads.
    let reads = File::options().read(true).write(true).open(path("stderr")).unwrap();
    command.stderr(File::options().write(true).open(path("stderr")).unwrap());
    drop(reads);
    let mut launcher = command.spawn().unwrap();
    drop(command);
    eventually(|| path("again").exists(), "it was not started again");
    let mut stderr = File::open(path("stderr")).unwrap();
    std::fs::write(path("read"), "").unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(0));
    let shown = std::io::read_to_string(&mut stderr).unwrap();
    assert!(shown.ends_with("[0] later\n"), "{shown}");
}

#[test]
fn a_job_within_a_job_is_no_part_of_it() {
    let variables =
        ["PHALANX_ELASTIC", "PHALANX_WORKER", "PHALANX_SECRET_FILE", "TORCHELASTIC_USE_AGENT_STORE"];
    let script = variables.map(|name| format!("${name}")).concat();
    let mut inner = phalanx(&["run", "-n", "1", "sh", "-c", &format!("echo \"({script})\"")]);
    let output = inner.envs(variables.map(|name| (name, "1:4"))).output().unwrap();
    assert_eq!(text(&output.stdout), "[0] ()\n", "{}", text(&output.stderr));
}

#[test]
fn under_another_launcher_that_starts_several_it_is_no_job_of_its_own() {
    for variables in [
        &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")][..],
        &[("PMI_RANK", "1"), ("PMI_SIZE", "2")],
        &[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")],
        &[("PET_NNODES", "2"), ("PET_NODE_RANK", "1")],
        &[("JOB_COMPLETION_INDEX", "0")],
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "pod-0"), ("MASTER_PORT", "23456")],
    ] {
        let run = || {
            let mut command =
                phalanx(&["run", "-n", "2", "sh", "-c", "echo \"$RANK of $WORLD_SIZE$PHALANX_ALONE\""]);
            command.envs(variables.iter().copied());
            command
        };
        let refused = run().output().unwrap();
        let complaint = text(&refused.stderr);
        assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(2), ""), "{complaint}");
        for (name, value) in variables.iter().take(2).filter(|(name, _)| *name != "SLURM_STEP_ID") {
            assert!(complaint.contains(&format!("{name}={value}")), "{complaint}");
        }
        let alone = run().env("PHALANX_ALONE", "1").output().unwrap();
        assert_eq!(alone.status.code(), Some(0), "{}", text(&alone.stderr));
        let mut lines: Vec<_> = text(&alone.stdout).lines().map(String::from).collect();
        lines.sort();
        assert_eq!(lines, ["[0] 0 of 2", "[1] 1 of 2"], "and the ranks are ranks");
    }
}

#[test]
fn a_job_within_a_job_does_not_write_over_its_traces() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().to_str().unwrap();
    let inner = format!("{logs}/inner/attempt_0");
    for (is_rank, flags, traces) in [
        (false, &[][..], "outer"),
        (false, &["--log-dir", logs, "--job-id", "user"], "outer"),
        (true, &[], ""),
        (true, &["--log-dir", logs, "--job-id", "inner"], &inner[..]),
        (true, &["--env", "PHALANX_TRACE_DIR=mine"], "mine"),
    ] {
        let script = &["-n", "1", "sh", "-c", "echo \"($PHALANX_TRACE_DIR)\""];
        let mut job = phalanx(&[&["run"], flags, script].concat());
        job.env("PHALANX_TRACE_DIR", "outer").env_remove("PHALANX_RANK");
        if is_rank {
            job.env("PHALANX_RANK", "0");
        }
        let output = job.output().unwrap();
        let (shown, complaints) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(shown, format!("[0] ({traces})\n"), "{is_rank} {flags:?}: {complaints}");
    }
}

#[test]
fn a_stderr_that_is_full_keeps_no_signal_and_no_deadline_from_ranks_and_launcher() {
    let script = "echo pid $$; [ $RANK = \"$FAILS\" ] && exit 7; exec yes >&2";
    for (flags, signals, code) in [
        (&[][..], &[Signal::TERM][..], 143),
        (&["--timeout", "1"], &[], 124),
        (&["--env", "FAILS=1"], &[Signal::TERM], 7),
    ] {
        let flags = [&["run", "-n", "2", "--grace", "0.2"], flags].concat();
        let mut command = phalanx(&[&flags[..], &["sh", "-c", script]].concat());
        let (unread, full) = std::io::pipe().unwrap();
        command.stderr(full).stdout(Stdio::piped());
        let mut launcher = command.spawn().unwrap();
        drop(command);
        let lines = BufReader::new(launcher.stdout.as_mut().unwrap()).lines().take(2);
        let mut lines: Vec<String> = lines.map(|line| line.unwrap()).collect();
        lines.sort();
        let ranks: Vec<u32> =
            lines.iter().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        if code == 7 {
            all_gone(&ranks[1..]);
        }
        // Until nothing moves any more: the pipe is full, and what the launcher keeps as well.
        sleep(Duration::from_millis(500));
        let signal_all = || {
            for &signal in signals {
                kill_process(Pid::from_child(&launcher), signal).unwrap();
            }
        };
        signal_all();
        all_gone(&ranks);
        // A launcher that was asked to end waits for the reader until it is asked again; one with a time limit does not wait. Two signals
        // in a row can reach it as one, where the ranks ended for another reason: so it is asked until it has gone.
        let asked_until_gone = || {
            signal_all();
            // Not again at once: a signal that comes between the end of the job and that of the launcher ends it as it ends any program.
            (0..40).any(|_| {
                sleep(Duration::from_millis(50));
                !runs(launcher.id())
            })
        };
        eventually(asked_until_gone, "the launcher is still there");
        drop(unread);
        assert_eq!(launcher.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn what_cannot_be_started_says_why() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (words, code, complaint) in [
        (
            &["run", "-n", "2", "phalanx-no-such-program"][..],
            127,
            "program phalanx-no-such-program is not available",
        ),
        (&["run", "-n", "2", "./no/such"], 127, "./no/such"),
        (&["run", "-n", "2", path], 126, path),
        (&["run", "-n", "0", "true"], 2, "not 0"),
        (&["run", "-n", "1", "--env", "RANK=4", "true"], 2, "RANK is set by the launcher"),
        (&["run", "-n", "1", "--log-dir", "/dev/null/x", "true"], 2, "/dev/null/x"),
        (&["run", "-n", "x", "true"], 2, "invalid value"),
        (&["run"], 2, "Usage: phalanx run"),
        (&["walk"], 2, "walk"),
    ] {
        let output = output(words);
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {complaints}");
        assert!(complaints.contains(complaint), "{words:?}: {complaints}");
        assert_eq!(text(&output.stdout), "", "{words:?}");
    }
}

#[test]
fn a_launcher_that_was_started_to_ignore_sigchld_sees_how_ranks_end() {
    let ignoring = |script: &str| {
        let mut launcher = Command::new("env");
        launcher.args([
            "--ignore-signal=CHLD",
            env!("CARGO_BIN_EXE_phalanx"),
            "run",
            "-n",
            "2",
            "sh",
            "-c",
            script,
        ]);
        launcher.output().unwrap()
    };
    for (script, code) in
        [("exit 0", 0), ("exit $RANK", 1), ("test $RANK = 0 || kill -KILL $$; sleep 20", 137)]
    {
        let output = ignoring(script);
        assert_eq!(output.status.code(), Some(code), "{script}: {}", text(&output.stderr));
    }
    // Bit 16: SIGCHLD.
    let mask = ignoring("grep SigIgn /proc/self/status");
    for line in text(&mask.stdout).lines() {
        let mask = u64::from_str_radix(line.rsplit(['\t', ' ']).next().unwrap(), 16).unwrap();
        assert_eq!(mask >> 16 & 1, 0, "the ranks inherit it: {line}");
    }
}

#[test]
fn a_signal_that_is_a_message_goes_to_who_has_a_handler_and_ends_nothing() {
    let script = "test $RANK = 1 || trap 'echo heard' USR1; echo pid $$; while :; do sleep 0.05; done";
    let mut job = Job::start(phalanx(&["run", "-n", "2", "sh", "-c", script]), 2);
    job.signal(Signal::USR1);
    let mut lines = BufReader::new(job.launcher.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("[0] heard"));
    assert!(job.ranks.iter().copied().all(runs), "rank 1 would have died of it");
    job.signal(Signal::TERM);
    assert_eq!(job.exit_code(), Some(143));
}

#[test]
fn what_cannot_be_started_is_said_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("train.py");
    std::fs::write(&script, "#!/no/such/python\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (program, code, words) in [
        (script.to_str().unwrap(), 127, "the interpreter /no/such/python of "),
        (dir.path().to_str().unwrap(), 126, "it is a folder, not a program"),
        ("no_such_program", 127, "the folders of PATH"),
    ] {
        let output = output(&["run", "-n", "2", program]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    let output = output(&["run", "-n", "0", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("1 to 1024 ranks, not 0"), "{}", text(&output.stderr));
}
