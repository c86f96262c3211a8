//! Jobs of real processes. Linux, because what is left of them is looked for in `/proc`.
#![cfg(target_os = "linux")]

use phalanx_core::Error;
use phalanx_launch::{Elastic, ExitKind, Failure, Launch, Outcome, TAIL_LINES};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A writer whose contents can be read afterwards.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<u8>>>);

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Capture {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// `ranks` shells that perform `script`. No job of these tests takes a minute; one that does is stuck, and ends with 124.
fn shells(ranks: usize, script: &str) -> Launch {
    Launch::new("sh")
        .args(["-c", script])
        .ranks(ranks)
        .timeout(Some(Duration::from_secs(60)))
        .output(std::io::sink(), std::io::sink())
}

/// As [`shells`], run to the end; the outcome, and what they wrote to stdout and stderr.
fn run(ranks: usize, script: &str) -> (Outcome, String, String) {
    let (out, err) = (Capture::default(), Capture::default());
    let outcome = shells(ranks, script).output(out.clone(), err.clone()).run().unwrap();
    (outcome, out.text(), err.text())
}

fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failure(failure) => *failure,
        other => panic!("not a failure: {other}"),
    }
}

/// Whether the process still runs. A zombie that waits for its parent does not.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !matches!(stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]), Some(b'Z' | b'X'))
    })
}

/// Waits until `condition` holds, and fails the test when it does not come to hold.
#[track_caller]
fn eventually(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn success_is_when_all_succeed() {
    let (outcome, out, err) = run(3, "echo $RANK of $WORLD_SIZE");
    assert_eq!(outcome, Outcome::Success);
    assert_eq!(err, "");
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"]);
}

#[test]
fn a_failed_rank_is_named_and_the_others_are_ended() {
    let running = shells(4, "[ $RANK = 2 ] && { echo alas >&2; exit 7; }; exec sleep 600").spawn().unwrap();
    let pids = running.pids().to_vec();
    assert_eq!(pids.len(), 4);
    let outcome = running.wait().unwrap();
    assert_eq!(outcome.exit_code(), 7);
    let failure = failure(outcome);
    assert_eq!((failure.rank, failure.pid, failure.exit), (2, pids[2], ExitKind::Code(7)));
    assert_eq!(failure.stderr_tail, ["alas"]);
    assert!(!pids.into_iter().any(runs));
}

#[test]
fn a_death_by_signal_is_128_and_the_signal() {
    let (outcome, ..) = run(3, "[ $RANK = 1 ] && kill -KILL $$; exec sleep 600");
    assert_eq!(outcome.exit_code(), 137);
    let text = outcome.to_string();
    assert!(text.starts_with("rank 1 of 3 (pid ") && text.contains("was killed by SIGKILL"), "{text}");
}

#[test]
fn the_root_is_reported_even_if_others_fail_of_it_first() {
    let script = "[ $RANK = 0 ] || { echo 'lost rank 0' >&2; exit 1; }; sleep 0.1; kill -KILL $$";
    let failure = failure(run(4, script).0);
    assert_eq!((failure.rank, failure.exit), (0, ExitKind::Signal(9)));
}

#[test]
fn the_end_of_stderr_is_quoted() {
    let (outcome, _, err) = run(2, "[ $RANK = 1 ] || exit 0; seq 1 50 >&2; exit 1");
    let expected: Vec<_> = (51 - TAIL_LINES..=50).map(|i| i.to_string()).collect();
    assert_eq!(failure(outcome).stderr_tail, expected);
    assert_eq!(err.lines().count(), 50);
}

#[test]
fn who_ignores_sigterm_is_killed_after_the_grace_period() {
    let grace = Duration::from_secs(1);
    let script = "[ $RANK = 0 ] && { sleep 0.2; exit 3; }; trap '' TERM; while :; do sleep 0.05; done";
    let start = Instant::now();
    let running = shells(2, script).grace(grace).spawn().unwrap();
    let pids = running.pids().to_vec();
    assert_eq!(running.wait().unwrap().exit_code(), 3);
    // The rank's own time, and half a second in which exits are collected, come before.
    assert!(start.elapsed() >= Duration::from_millis(200 + 500) + grace, "{:?}", start.elapsed());
    assert!(!pids.into_iter().any(runs));
}

#[test]
fn sigterm_gives_ranks_time_to_save_their_work() {
    let out = Capture::default();
    let script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let running = shells(2, script).output(out.clone(), std::io::sink()).spawn().unwrap();
    eventually(|| out.text().matches("ready").count() == 2);
    running.signal(15);
    let outcome = running.wait().unwrap();
    assert_eq!(outcome, Outcome::Interrupted { signal: 15 });
    assert_eq!(outcome.exit_code(), 143);
    assert_eq!(out.text().matches("saved").count(), 2);
}

#[test]
fn a_second_signal_does_not_wait_for_grace() {
    let out = Capture::default();
    let script = "trap '' INT; echo ready; while :; do sleep 0.01; done";
    let running =
        shells(1, script).grace(Duration::MAX).output(out.clone(), std::io::sink()).spawn().unwrap();
    eventually(|| out.text().contains("ready"));
    running.signal(2);
    running.signal(2);
    assert_eq!(running.wait().unwrap(), Outcome::Interrupted { signal: 2 });
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    let limit = Duration::from_millis(100);
    let outcome = shells(2, "exec sleep 600").timeout(Some(limit)).run().unwrap();
    assert_eq!(outcome, Outcome::TimedOut { limit });
    assert_eq!(outcome.exit_code(), 124);
}

#[test]
fn dropping_a_running_job_ends_it() {
    let running = shells(3, "trap '' TERM; sleep 600").spawn().unwrap();
    let pids = running.pids().to_vec();
    drop(running);
    assert!(!pids.into_iter().any(runs));
}

#[test]
fn who_asks_for_the_end_while_a_failure_is_handled_gets_no_restart() {
    let script = "echo started; [ $RANK = 0 ] && exit 7; trap '' TERM; while :; do sleep 0.01; done";
    for drops in [false, true] {
        let out = Capture::default();
        let launch = shells(2, script).max_restarts(1).grace(Duration::from_millis(300));
        let running = launch.output(out.clone(), std::io::sink()).spawn().unwrap();
        let failed = running.pids()[0];
        eventually(|| !runs(failed) && out.text().matches("started").count() == 2);
        // Time for the launcher to see it too, before it begins to end the other rank.
        sleep(Duration::from_millis(100));
        if drops {
            drop(running);
        } else {
            running.signal(2);
            assert_eq!(running.wait().unwrap().exit_code(), 7);
        }
        assert_eq!(out.text().matches("started").count(), 2, "it was started again");
    }
}

#[test]
fn what_a_rank_leaves_running_is_killed() {
    let (outcome, out, _) = run(1, "sleep 600 & echo $!");
    assert!(outcome.is_success());
    let pid = out.trim_start_matches("[0] ").trim().parse().unwrap();
    eventually(|| !runs(pid));
}

#[test]
fn a_process_in_another_session_that_holds_the_output_open_does_not_hold_up_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid").display().to_string();
    // The rank leaves only when the other is out of its process group.
    let script = format!(
        "setsid sh -c 'echo $$ > {file}; exec sleep 600' & until [ -s {file} ]; do sleep 0.01; done; cat {file}"
    );
    let (outcome, out, _) = run(1, &script);
    assert!(outcome.is_success());
    let pid: u32 = out.trim_start_matches("[0] ").trim().parse().unwrap();
    assert!(runs(pid), "the job was to end before it");
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn lines_of_different_ranks_never_mix() {
    const LINES: usize = 200;
    // Each line is written in two pieces, to stdout and to stderr.
    let script = format!(
        "for i in $(seq {LINES}); do printf 'rank '; echo \"$RANK $i\"; printf 'oops ' >&2; echo \"$RANK $i\" >&2; done"
    );
    let (outcome, out, err) = run(4, &script);
    assert!(outcome.is_success());
    for (text, word) in [(out, "rank"), (err, "oops")] {
        assert_eq!(text.lines().count(), 4 * LINES);
        for rank in 0..4 {
            let prefix = format!("[{rank}] ");
            let of_rank: Vec<_> = text.lines().filter(|line| line.starts_with(&prefix)).collect();
            let expected: Vec<_> = (1..=LINES).map(|i| format!("[{rank}] {word} {rank} {i}")).collect();
            assert_eq!(of_rank, expected);
        }
    }
}

#[test]
fn output_without_a_prefix_and_without_a_last_newline() {
    let out = Capture::default();
    let launch = shells(1, r"printf 'caf\351\nno end'").prefix(false).output(out.clone(), std::io::sink());
    assert!(launch.run().unwrap().is_success());
    assert_eq!(*out.0.lock().unwrap(), b"caf\xe9\nno end\n");
}

#[test]
fn a_broken_output_does_not_end_the_job() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    // More than a pipe holds: a rank that nobody reads would stop here.
    let outcome = shells(2, "yes | head -c 1000000").output(Broken, Broken).run().unwrap();
    assert_eq!(outcome, Outcome::Success);
}

#[test]
fn who_reads_late_misses_nothing_and_the_logs_do_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (out, err) = (Capture::default(), Capture::default());
    let held = (out.0.lock().unwrap(), err.0.lock().unwrap());
    // Less than a pipe holds, and more than is read of it at a time: the rank ends, whoever reads.
    let launch = shells(1, "seq 10000; seq 10000 >&2; exit 3").log_dir(dir.path()).job_id("late");
    let running = launch.output(out.clone(), err.clone()).spawn().unwrap();
    let pid = running.pids()[0];
    eventually(|| !runs(pid));
    // Longer than is waited for processes that ranks have left behind.
    sleep(Duration::from_millis(1500));
    for log in ["stdout.log", "stderr.log"] {
        let log = std::fs::read_to_string(dir.path().join("late/attempt_0/0").join(log)).unwrap();
        assert_eq!(log.lines().count(), 10_000);
    }
    drop(held);
    let failure = failure(running.wait().unwrap());
    assert_eq!(failure.stderr_tail.last().map(String::as_str), Some("10000"));
    assert_eq!((out.text().lines().count(), err.text().lines().count()), (10_000, 10_000));
}

#[test]
fn who_does_not_read_one_stream_holds_up_only_that() {
    let dir = tempfile::tempdir().unwrap();
    let (out, err) = (Capture::default(), Capture::default());
    let held = out.0.lock().unwrap();
    // More than may wait, whoever has written it.
    let script = "if [ $RANK = 0 ]; then seq 1000000; else sleep 0.2; echo more; for i in $(seq 100); do echo $i >&2; done; fi";
    let launch = shells(2, script).log_dir(dir.path()).job_id("one").output(out.clone(), err.clone());
    let running = launch.spawn().unwrap();
    let pids = running.pids();
    eventually(|| err.text().lines().count() == 100);
    eventually(|| !runs(pids[1]));
    assert!(runs(pids[0]), "it has written more than anybody keeps for it");
    drop(held);
    assert_eq!(running.wait().unwrap(), Outcome::Success);
    assert_eq!(out.text().lines().count(), 1_000_001);
    let log = |name: &str| std::fs::read_to_string(dir.path().join("one/attempt_0").join(name)).unwrap();
    assert_eq!((log("0/stdout.log").lines().count(), log("1/stdout.log").as_str()), (1_000_000, "more\n"));
}

#[test]
fn who_never_reads_does_not_hold_up_who_kills_the_job() {
    let out = Capture::default();
    let held = out.0.lock().unwrap();
    let running = shells(1, "seq 10000").output(out.clone(), std::io::sink()).spawn().unwrap();
    let pid = running.pids()[0];
    eventually(|| !runs(pid));
    drop(running);
    drop(held);
}

#[test]
fn who_never_reads_does_not_hold_up_a_job_whose_time_is_over() {
    let out = Capture::default();
    let _held = out.0.lock().unwrap();
    // It fits in a pipe: the rank has succeeded long before.
    let launch =
        shells(1, "seq 10000").timeout(Some(Duration::from_secs(1))).grace(Duration::from_millis(100));
    let running = launch.output(out.clone(), std::io::sink()).spawn().unwrap();
    let (ended, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(running.wait()));
    // Only a test that fails takes so long.
    let outcome = outcome.recv_timeout(Duration::from_secs(30)).expect("it waits for ever");
    assert!(matches!(outcome.unwrap(), Outcome::Success | Outcome::TimedOut { .. }));
}

#[test]
fn an_output_that_refuses_for_a_while_is_not_given_up() {
    /// Takes little at a time, and of ten times once.
    struct Nonblocking(Capture, u32);
    impl Write for Nonblocking {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(10) {
                self.0.write(&bytes[..bytes.len().min(1000)])
            } else {
                Err(std::io::ErrorKind::WouldBlock.into())
            }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    /// The first time there is no room left.
    struct Full(Capture, bool);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let is_first = !std::mem::replace(&mut self.1, true);
            if is_first { Err(std::io::ErrorKind::StorageFull.into()) } else { self.0.write(bytes) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (out, err) = (Capture::default(), Capture::default());
    let launch = shells(1, "seq 500; echo lost >&2; sleep 0.5; echo shown >&2").prefix(false);
    let outcome = launch.output(Nonblocking(out.clone(), 0), Full(err.clone(), false)).run().unwrap();
    assert_eq!(outcome, Outcome::Success);
    assert_eq!(out.text(), (1..=500).map(|i| format!("{i}\n")).collect::<String>());
    assert_eq!(err.text(), "shown\n");
}

#[test]
fn a_job_that_could_not_be_started_has_not_had_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let start = |program: &str| Launch::new(program).log_dir(dir.path()).job_id("nightly").ranks(2).run();
    assert!(matches!(start("./no/such/program"), Err(Error::Unavailable { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(start("true").unwrap(), Outcome::Success);
    // Of this job nothing is removed when the next one is refused.
    assert!(matches!(start("true"), Err(Error::Config { .. })));
    assert!(dir.path().join("nightly/attempt_0/0/stdout.log").exists());
}

#[test]
fn logs_are_kept_byte_for_byte_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let script = r"printf 'a\rb\n\377end'; echo \$RANK=$RANK >&2; exit $RANK";
    let launch = || shells(2, script).log_dir(dir.path()).job_id("job7");
    let failure = failure(launch().run().unwrap());
    let folder = |rank: u32| dir.path().join(format!("job7/attempt_0/{rank}"));
    for rank in 0..2 {
        assert_eq!(std::fs::read(folder(rank).join("stdout.log")).unwrap(), b"a\rb\n\xffend");
        assert_eq!(
            std::fs::read_to_string(folder(rank).join("stderr.log")).unwrap(),
            format!("$RANK={rank}\n")
        );
    }
    assert_eq!(failure.stderr_log, Some(folder(1).join("stderr.log")));
    let error = launch().run().unwrap_err();
    assert!(matches!(&error, Error::Config { what } if what.contains("job id is for one job")), "{error}");
}

#[test]
fn ranks_are_told_who_they_are_and_share_one_secret() {
    let script = r#"echo "$PHALANX_RANK/$PHALANX_WORLD_SIZE $LOCAL_RANK $PHALANX_STORE $PHALANX_JOB_ID $MINE $OMP_NUM_THREADS"; echo "$PHALANX_SECRET" >&2"#;
    let (out, err) = (Capture::default(), Capture::default());
    let launch =
        shells(2, script).prefix(false).job_id("job8").env("MINE", "yes").env("OMP_NUM_THREADS", "77");
    assert!(launch.output(out.clone(), err.clone()).run().unwrap().is_success());
    let mut lines: Vec<_> = out.text().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    for (rank, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("{rank}/2 {rank} tcp://127.0.0.1:")), "{line}");
        assert!(line.ends_with(" job8 yes 77"), "{line}");
    }
    let secrets: Vec<_> = err.text().lines().map(str::to_owned).collect();
    assert_eq!(secrets[0], secrets[1]);
    assert!(secrets[0].len() == 64 && secrets[0].bytes().all(|b| b.is_ascii_hexdigit()));
}

#[test]
fn the_secret_is_on_no_command_line_and_in_no_debug_output() {
    let err = Capture::default();
    let launch =
        shells(2, "echo $PHALANX_SECRET >&2; sleep 600").prefix(false).output(std::io::sink(), err.clone());
    let running = launch.spawn().unwrap();
    eventually(|| err.text().lines().count() == 2);
    let secret = err.text().lines().next().unwrap().to_owned();
    for pid in running.pids().iter().chain([&std::process::id()]) {
        let argv = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&argv).contains(&secret));
    }
    assert!(!format!("{running:?}").contains(&secret));
}

#[test]
fn every_job_has_a_secret_and_a_name_of_its_own() {
    let job = || {
        let (_, _, err) = run(1, "echo $PHALANX_SECRET $PHALANX_JOB_ID >&2");
        err.trim_start_matches("[0] ")
            .trim()
            .split_once(' ')
            .map(|(s, id)| (s.to_owned(), id.to_owned()))
            .unwrap()
    };
    let (first, second) = (job(), job());
    assert_ne!(first.0, second.0);
    assert_ne!(first.1, second.1);
}

#[test]
fn standard_input_is_empty() {
    assert_eq!(run(2, "cat && echo end").1.matches("end").count(), 2);
}

#[test]
fn programs_that_cannot_be_started() {
    let start = |program: &str| Launch::new(program).ranks(2).run().unwrap_err();
    let missing = start("phalanx-no-such-program");
    assert!(matches!(missing, Error::Unavailable { .. }), "{missing}");
    assert!(missing.to_string().contains("phalanx-no-such-program"), "{missing}");
    let missing = start("./no/such/program");
    assert!(matches!(missing, Error::Unavailable { .. }), "{missing}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = start(file.path().to_str().unwrap());
    assert!(
        matches!(&refused, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied),
        "{refused}"
    );
    assert!(refused.to_string().contains(file.path().to_str().unwrap()), "{refused}");
}

#[test]
fn an_impossible_job_is_refused() {
    for (ranks, name) in [(0, "A"), (1, "A=B"), (1, "PHALANX_SECRET"), (usize::MAX, "A")] {
        let error = shells(ranks, "exit 0").env(name, "x").spawn().unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
    let error = shells(1, "exit 0").elastic(Elastic::new(1, usize::MAX / 2).unwrap()).spawn().unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
}

#[test]
fn processes_that_fail_at_their_start_are_replaced_ever_more_slowly_and_the_report_says_why_that_ended() {
    let begun = Instant::now();
    let job = shells(3, "test $RANK != 1 || exit 7; exec sleep 50").elastic(Elastic::new(3, 3).unwrap());
    let (out, err) = (Capture::default(), Capture::default());
    let outcome = job.max_restarts(4).output(out, err.clone()).run().unwrap();
    let pauses = Duration::from_millis(100 + 200 + 400 + 800);
    assert!(begun.elapsed() >= pauses, "all replacements were used up in {:?}", begun.elapsed());
    let report = outcome.to_string();
    let failure = failure(outcome);
    assert_eq!((failure.rank, failure.exit, failure.exit_code), (1, ExitKind::Code(7), 7), "{report}");
    let words = "4 of 4 replacements were used: none was left; 2 ranks have not failed, and the job goes on with at least 3";
    assert!(report.contains(words), "{report}");
}
