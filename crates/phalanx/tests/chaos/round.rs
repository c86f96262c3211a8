//! One round: a job is started and hurt, and everything that must be true of its end is checked.

use crate::hosts::Hosts;
use crate::left;
use crate::plan::{Backend, EXIT_CODE, HEARTBEAT, INIT_TIMEOUT, Kind, Moment, Plan, RANKS};
use crate::support::{self, Output};
use phalanx::launch::{Outcome, Running};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Between SIGTERM and SIGKILL: ranks that know who is lost have said so before.
const GRACE: Duration = Duration::from_secs(60);
/// A job that has not ended by then hangs.
const HANG: Duration = Duration::from_secs(20);
/// What a process exits with whose test panics.
const PANIC_CODE: i32 = 101;
/// Tells a job's processes from all others.
pub(crate) const TAG: &str = "PHALANX_TEST_TAG";
/// What ranks are told to do.
pub(crate) const PLAN: &str = "PHALANX_TEST_PLAN";

/// How a round went.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Per survivor that named the victim, how long after the harm.
    pub(crate) named_ms: Vec<u128>,
    pub(crate) wrong: usize,
    pub(crate) left: usize,
    /// UCX ended a survivor by an assertion of its own, so nothing is known of what phalanx would have said.
    pub(crate) ended_by_ucx: bool,
    /// Everything that was not as it must be.
    pub(crate) troubles: Vec<String>,
}

pub(crate) fn perform(plan: &Plan) -> Report {
    let mut report = Report::default();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tag = tag();
    if plan.kind == Kind::Launcher {
        kill_launcher(plan, &tag, folder.path(), &mut report);
    } else if plan.kind == Kind::Cut {
        cut(plan, &tag, folder.path(), &mut report);
    } else {
        let (launch, output) = job(plan, &tag, folder.path());
        let running = launch.spawn().expect("the job starts");
        let stopped = (plan.kind == Kind::Stop).then(|| go_on(plan, &running.pids(), &output));
        match finish(running, HANG) {
            Ok(_) if is_ended_by_ucx(plan, &output.text()) => report.ended_by_ucx = true,
            Ok(outcome) => {
                check(plan, &output, &mut report);
                if plan.backend != Backend::Thread && !is_right(plan, &outcome) {
                    report.troubles.push(format!("the launcher said: {outcome}"));
                }
            }
            Err(stacks) => report.troubles.push(format!("the job hangs:\n{stacks}")),
        }
        if !report.troubles.is_empty() {
            report.troubles.extend(stopped);
            report.troubles.push(format!("the ranks said:\n{}", output.text()));
        }
    }
    let left = left::of_job(&tag, folder.path());
    report.left += left.len();
    report.troubles.extend(left);
    report
}

pub(crate) fn tag() -> String {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), ROUNDS.fetch_add(1, Ordering::Relaxed))
}

/// The job of `plan`, not yet started.
pub(crate) fn job(plan: &Plan, tag: &str, folder: &std::path::Path) -> (phalanx::launch::Launch, Output) {
    let ranks = if plan.backend == Backend::Thread { 1 } else { RANKS };
    let (launch, output) = support::job("worker", ranks, folder);
    // Nothing else ends a rank that is stopped.
    let grace = if plan.kind == Kind::Stop { HEARTBEAT } else { GRACE };
    let launch =
        env(plan, tag).into_iter().fold(launch.grace(grace), |launch, (name, value)| launch.env(name, value));
    (launch, output)
}

/// What the ranks of a job are told.
fn env(plan: &Plan, tag: &str) -> Vec<(&'static str, String)> {
    let backend = match plan.backend {
        Backend::Thread | Backend::TwoLevel => "auto".into(),
        Backend::Shm | Backend::Tcp | Backend::Ucx => plan.backend.to_string(),
    };
    // Where nobody is silent on purpose, a busy machine is no reason to name anybody.
    let heartbeat = if matches!(plan.kind, Kind::Stop | Kind::Cut) { HEARTBEAT } else { 5 * HEARTBEAT };
    // Whoever is killed while UCX opens shared memory leaves a file of UCX's in `/dev/shm`.
    let transports = std::env::var("UCX_TLS").unwrap_or_else(|_| "tcp,self".into());
    vec![
        ("UCX_TLS", transports),
        (PLAN, plan.to_text()),
        (TAG, tag.into()),
        ("PHALANX_BACKEND", backend),
        ("PHALANX_TIMEOUT_S", "60".into()),
        ("PHALANX_INIT_TIMEOUT_S", INIT_TIMEOUT.as_secs().to_string()),
        ("PHALANX_HEARTBEAT_TIMEOUT_S", heartbeat.as_secs().to_string()),
    ]
}

/// When the others know that the victim is stopped, it may go on, unless the launcher ends it. Where it was stopped too late to harm
/// anybody, nobody would.
fn go_on(plan: &Plan, pids: &[u32], output: &Output) -> String {
    let victim = plan.victims[0];
    let until = Instant::now() + 2 * INIT_TIMEOUT;
    let others = |words: &[&str]| {
        let text = output.text();
        let said = |rank: usize| words.iter().any(|word| text.contains(&format!("] {word} {rank}")));
        (0..RANKS).filter(|&rank| rank != victim && said(rank)).count()
    };
    // A victim that has come too late for harm has ended.
    let settled = || ["stopped", "zombie", "ended"].iter().any(|word| state(pids[victim]).contains(word));
    while (others(&["failed", "done"]) < RANKS - 1 || !settled()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (at, knew, state) = (support::now_ms(), others(&["failed"]), state(pids[victim]));
    if plan.tidy[victim] || knew == 0 {
        // It may have ended in spite of everything.
        let _ = Pid::from_raw(pids[victim] as i32).map(|pid| kill_process(pid, Signal::CONT));
    }
    format!("at {at}, when {knew} others knew, the victim was: {state}")
}

/// How the job ends, or where its processes are when `limit` is over.
pub(crate) fn finish(running: Running, limit: Duration) -> Result<Outcome, String> {
    let pids = running.pids().to_vec();
    let (ended, outcome) = channel();
    std::thread::spawn(move || ended.send(support::finish(running)));
    outcome.recv_timeout(limit).map_err(|_| {
        let stacks = end(&pids);
        let _ = outcome.recv();
        stacks
    })
}

/// Ends processes that hang; where they did.
fn end(pids: &[u32]) -> String {
    let stacks = pids.iter().map(|&pid| stacks(pid)).collect();
    for pid in pids.iter().filter_map(|&pid| Pid::from_raw(pid as i32)) {
        // It may just have ended.
        let _ = kill_process(pid, Signal::KILL);
    }
    stacks
}

/// Where the threads of a process are.
fn stacks(pid: u32) -> String {
    let gdb = Command::new("gdb")
        .args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 30"])
        .output();
    let frames = gdb.map_or_else(
        |error| format!("gdb: {error}"),
        |out| String::from_utf8_lossy(&out.stdout).into_owned(),
    );
    format!("process {pid}, {}\n{frames}\n", state(pid))
}

fn state(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find(|line| line.starts_with("State")).unwrap_or("ended").to_owned()
}

fn check(plan: &Plan, output: &Output, report: &mut Report) {
    let said = |word: &str| -> Vec<Vec<String>> {
        let text = output.text();
        let lines =
            text.lines().filter_map(|line| line.split_once("] ")?.1.strip_prefix(word)?.strip_prefix(' '));
        lines.map(|line| line.splitn(5, ' ').map(String::from).collect()).collect()
    };
    let is_finalize = matches!(plan.moment, Moment::Finalize { .. });
    let mut complain = |what: String| report.troubles.push(what);

    let wrong = said("wrong");
    wrong.iter().for_each(|line| complain(format!("a wrong result: {line:?}")));
    report.wrong = wrong.len();

    let harmed_at = said("dying").iter().filter_map(|line| line.get(1)?.parse::<u128>().ok()).min();
    if harmed_at.is_none() && !is_finalize {
        complain("the victim did nothing".into());
    }
    let done: Vec<usize> = said("done").iter().filter_map(|line| line[0].parse().ok()).collect();
    let failed = said("failed");
    let arbiter_failed = failed.iter().any(|line| line[0] == "0");
    let mut culprits = Vec::new();
    for line in &failed {
        let [rank, at, named, how, text] = &line[..] else { panic!("written by the worker: {line:?}") };
        let (rank, at): (usize, u128) = (rank.parse().expect("a rank"), at.parse().expect("a time"));
        if plan.kind == Kind::Stop && plan.moment == Moment::Init && plan.victims == [rank] {
            continue; // when it went on, there was nobody left to tell it anything
        }
        let ms = at.saturating_sub(harmed_at.unwrap_or(at));
        // Who comes to the arbiter when that rank has heard of the death, and ended, hears no more.
        let is_missing = |victim| names_missing(text, victim) || arbiter_failed && names_missing(text, 0);
        let right = match named.parse() {
            Ok(named) => plan.may_name(rank, named) && plan.how().contains(&how.as_str()),
            Err(_) => plan.moment == Moment::Init && plan.victims.iter().any(|&victim| is_missing(victim)),
        };
        if !right {
            complain(format!(
                "rank {rank} names {named}, {how}, not one of {:?}, {:?}: {text}",
                plan.victims,
                plan.how()
            ));
        } else if ms > plan.known_within().as_millis() {
            complain(format!("rank {rank} names the victim only after {ms} ms"));
        } else if !plan.silences(rank) {
            report.named_ms.push(ms);
        }
        culprits.push((plan.is_cut_off(rank), named));
    }
    let agree = culprits.iter().all(|a| culprits.iter().all(|b| a.0 != b.0 || a.1 == b.1));
    if !agree && plan.moment != Moment::Init {
        complain(format!("ranks name different culprits: {culprits:?}"));
    }
    for rank in (0..RANKS).filter(|&rank| !plan.silences(rank)) {
        let words = failed.iter().filter(|line| line[0] == rank.to_string()).count();
        let fine = match plan.moment {
            // The launcher may end it before it knows.
            Moment::Init => words <= 1,
            Moment::Finalize { .. } => words + usize::from(done.contains(&rank)) == 1,
            Moment::Operation { .. } => words == 1,
        };
        if !fine && wrong.is_empty() {
            complain(format!("rank {rank} failed {words} times"));
        }
    }
}

/// Whether a survivor was aborted by one of UCX's own assertions, because a peer died while UCX connected to it: `docs/reference/ucx.md` warns of it.
/// Most connections are made in `init`, others in the first operation that needs them. There only an assertion about the making of a connection counts, which UCX calls wireup.
fn is_ended_by_ucx(plan: &Plan, text: &str) -> bool {
    let asserts = |line: &str| match plan.moment {
        Moment::Init => line.contains("ucp_") || line.contains("wireup"),
        Moment::Operation { .. } => line.contains("wireup"),
        Moment::Finalize { .. } => false,
    };
    plan.backend == Backend::Ucx && text.lines().any(|line| line.contains("Assertion `") && asserts(line))
}

#[test]
fn only_an_assertion_about_the_making_of_a_connection_is_laid_to_ucx() {
    let plan = |backend, is_meant: fn(&Moment) -> bool| {
        let mut plans = (0..).map(|seed| Plan::new(Kind::Kill, backend, seed));
        plans.find(|plan| is_meant(&plan.moment)).expect("each moment is drawn")
    };
    let wireup = "[1] [host:7:9]   wireup_ep.c:241  Assertion `wireup_ep->pending_count == 0' failed";
    let other = "[1] [host:7:9]   ucp_ep.c:99  Assertion `ucp_ep->refcount > 0' failed";
    let init = plan(Backend::Ucx, |moment| matches!(moment, Moment::Init));
    let operation = plan(Backend::Ucx, |moment| matches!(moment, Moment::Operation { .. }));
    let finalize = plan(Backend::Ucx, |moment| matches!(moment, Moment::Finalize { .. }));
    assert!(is_ended_by_ucx(&init, wireup) && is_ended_by_ucx(&init, other));
    assert!(is_ended_by_ucx(&operation, wireup) && !is_ended_by_ucx(&operation, other));
    assert!(!is_ended_by_ucx(&finalize, wireup) && !is_ended_by_ucx(&init, "rank 1 failed"));
    let over_tcp = plan(Backend::Tcp, |moment| matches!(moment, Moment::Init));
    assert!(!is_ended_by_ucx(&over_tcp, wireup));
}

fn names_missing(text: &str, victim: usize) -> bool {
    text.contains(&format!("missing: [{victim}]")) || text.contains(&format!("rank {victim} "))
}

/// Whether the launcher ended a job as it must.
fn is_right(plan: &Plan, outcome: &Outcome) -> bool {
    match (outcome, plan.signal()) {
        (Outcome::Success, _) => matches!(plan.moment, Moment::Finalize { .. }),
        (Outcome::Failure(failure), Some(signal)) => {
            plan.victims.contains(&failure.rank) && outcome.exit_code() == 128 + signal
        }
        (Outcome::Failure(_), None) => matches!(outcome.exit_code(), 1 | EXIT_CODE | PANIC_CODE),
        _ => false,
    }
}

/// The ranks are on hosts of their own, of which one is cut off when the victim says so.
fn cut(plan: &Plan, tag: &str, folder: &std::path::Path, report: &mut Report) {
    let hosts = Hosts::connect(RANKS / plan.per_host()).expect("it was tried before");
    let output = Output::default();
    let mut env = env(plan, tag);
    env.push(("TMPDIR", folder.display().to_string()));
    let (mut ranks, readers) = hosts.start(&env, &output);
    let until = Instant::now() + HANG;
    let mut is_cut = false;
    while ranks.iter_mut().any(|rank| rank.try_wait().expect("it is our child").is_none()) {
        if !is_cut && output.text().contains("] dying ") {
            hosts.cut(plan.victims[0] / plan.per_host(), plan.seed.is_multiple_of(2));
            is_cut = true;
        }
        if Instant::now() > until {
            let pids: Vec<_> = ranks.iter().map(Child::id).collect();
            report.troubles.push(format!("the job hangs:\n{}", end(&pids)));
            ranks.iter_mut().for_each(|rank| drop(rank.wait()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    readers.into_iter().for_each(|reader| reader.join().expect("a reader does not panic"));
    check(plan, &output, report);
    if !report.troubles.is_empty() {
        report.troubles.push(format!("the ranks said:\n{}", output.text()));
    }
}

/// The launcher is a process of its own here, and the job ends because it does.
fn kill_launcher(plan: &Plan, tag: &str, folder: &std::path::Path, report: &mut Report) {
    // A launcher in the background of a shell is started to ignore SIGINT, and does.
    let signals: Vec<_> =
        [Signal::KILL, Signal::TERM, Signal::INT].into_iter().filter(|&signal| !is_ignored(signal)).collect();
    let signal = signals[plan.seed as usize % signals.len()];
    let mut launcher = support::again("launcher")
        .env(PLAN, plan.to_text())
        .env(TAG, tag)
        .env("TMPDIR", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    std::thread::sleep(plan.delay);
    let pid = Pid::from_child(&launcher);
    kill_process(pid, signal).expect("it is not yet reaped");
    let until = Instant::now() + HANG;
    let status = loop {
        match launcher.try_wait().expect("it is our child") {
            Some(status) => break status,
            None if Instant::now() > until => {
                report.troubles.push(format!("the launcher hangs:\n{}", stacks(launcher.id())));
                let _ = launcher.kill();
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    use std::os::unix::process::ExitStatusExt;
    let number = signal.as_raw();
    // By the signal itself where it came before there was a job.
    if status.signal() != Some(number) && (signal == Signal::KILL || status.code() != Some(128 + number)) {
        report.troubles.push(format!("the launcher that was sent signal {number} ended with {status}"));
    }
}

/// Whether this process ignores the signal, and what it starts does.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal.as_raw() - 1)) != 0
}
