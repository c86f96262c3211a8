//! Whatever starts the ranks for the launcher, none outlives it: not behind a shell that stays, not as another user, not started by a script that closes
//! all descriptors, and not if it comes to `init` when the launcher is gone.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::Launch;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RANKS: usize = 3;
/// What stands before the rank's own command.
const WRAPPER: &str = "PHALANX_TEST_WRAPPER";
/// What each rank does.
const TASK: &str = "PHALANX_TEST_TASK";
/// A rank that is still there by then outlives its launcher. One that nobody ends takes longer.
const HANG: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(180);

const SHELL: &[&str] = &["sh", "-c", "\"$@\"; true", "sh"];
const ANOTHER_USER: &[&str] = &["setpriv", "--reuid=65534"];
const SCRIPT: &[&str] =
    &["python3", "-c", "import subprocess, sys; subprocess.call(sys.argv[1:], close_fds=True)"];

/// What the launcher and its ranks are.
#[test]
#[ignore = "this is what the launcher and its ranks run"]
fn rank() {
    let task = || std::env::var(TASK).expect("it comes with the role");
    match support::role().as_deref() {
        Some("launcher") => launch(),
        Some("rank") if task() == "late" => {
            support::say("pid", std::process::id());
            let parent = std::env::temp_dir().join("launcher_is_gone");
            while !parent.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let begun = Instant::now();
            while begun.elapsed() < LONG {
                let error = phalanx::init().expect_err("nobody is there to meet");
                assert!(error.to_string().contains("the launcher that started this rank"), "{error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Some("rank") if task() == "listen" => {
            let group = phalanx::init().expect("the ranks come together");
            let signals = [signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2];
            let mut signals = signal_hook::iterator::Signals::new(signals).expect("there are such signals");
            support::say("pid", std::process::id());
            signals.forever().for_each(|signal| support::say("heard", signal));
            drop(group);
        }
        Some("rank") => {
            let group = phalanx::init().expect("the ranks come together");
            support::say("pid", std::process::id());
            std::thread::sleep(LONG);
            drop(group);
        }
        _ => {}
    }
}

fn launch() {
    let wrapper = std::env::var(WRAPPER).expect("it comes with the role");
    let mut words = wrapper.split('\n').map(String::from);
    let program = words.next().expect("a program");
    let myself = std::env::current_exe().expect("this test has a path").display().to_string();
    let rank = ["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"].map(String::from);
    let args = words.chain([myself]).chain(rank);
    let outcome = Launch::new(program).args(args).ranks(RANKS).env("PHALANX_TEST_ROLE", "rank").run();
    std::process::exit(outcome.map_or(1, |outcome| outcome.exit_code()));
}

/// A launcher as a process, and its ranks.
fn start(
    wrapper: &[&str],
    task: &str,
    folder: &std::path::Path,
) -> (Child, Vec<u32>, impl Iterator<Item = String>) {
    let mut launcher = support::again("launcher")
        .env(WRAPPER, wrapper.join("\n"))
        .env(TASK, task)
        .env("TMPDIR", folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the launcher starts");
    let mut lines =
        BufReader::new(launcher.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let pid = |line: String| line.split_once("] pid ")?.1.parse().ok();
    let pids: Vec<u32> = lines.by_ref().filter_map(pid).take(RANKS).collect();
    assert_eq!(pids.len(), RANKS, "the ranks began");
    (launcher, pids, lines)
}

/// Whether the process still runs. A zombie that waits for its parent does not.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !matches!(stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]), Some(b'Z' | b'X'))
    })
}

fn kill_launcher(wrapper: &[&str], task: &str) {
    let works = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return; // not installed, or not allowed here
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut launcher, pids, _lines) = start(wrapper, task, folder.path());
    assert!(pids.iter().copied().all(runs));
    launcher.kill().expect("it is ours");
    launcher.wait().expect("it is ours");
    std::fs::write(folder.path().join("launcher_is_gone"), "").expect("the folder is ours");
    let begun = Instant::now();
    while pids.iter().copied().any(runs) {
        if begun.elapsed() > HANG {
            let left: Vec<_> = pids.into_iter().filter(|&pid| runs(pid)).collect();
            let _ = Command::new("kill").arg("-9").args(left.iter().map(u32::to_string)).status();
            panic!("{wrapper:?}: {left:?} outlive their launcher");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_rank_behind_a_shell_outlives_its_launcher() {
    kill_launcher(SHELL, "stay");
}

#[test]
fn no_rank_of_another_user_outlives_its_launcher() {
    kill_launcher(ANOTHER_USER, "stay");
}

#[test]
fn no_rank_that_a_script_has_started_outlives_its_launcher() {
    kill_launcher(SCRIPT, "stay");
}

#[test]
fn a_rank_that_comes_when_its_launcher_is_gone_ends() {
    kill_launcher(SHELL, "late");
}

#[test]
fn a_message_to_the_launcher_comes_to_ranks_behind_a_shell_and_ends_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut launcher, pids, mut lines) = start(SHELL, "listen", folder.path());
    let pid = rustix::process::Pid::from_child(&launcher);
    for signal in [rustix::process::Signal::USR1, rustix::process::Signal::USR2] {
        rustix::process::kill_process(pid, signal).expect("it is ours");
        let heard = format!("] heard {}", signal.as_raw());
        let heard = lines.by_ref().filter(|line| line.ends_with(&heard)).take(RANKS).count();
        assert_eq!(heard, RANKS, "all ranks hear it");
    }
    assert!(pids.iter().copied().all(runs));
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
    assert_eq!(launcher.wait().expect("it is ours").code(), Some(143));
}
