//! Jobs of real processes: the test binary starts itself as every rank of a job.
//!
//! A test file has one ignored test, `rank`, which is what the ranks run; the role tells it what to do.

#![allow(dead_code, reason = "each test file uses its part")]

use phalanx::launch::{Launch, Outcome, Running};
use std::collections::HashSet;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Names what a rank of a job has to do.
const ROLE: &str = "PHALANX_TEST_ROLE";

/// What all ranks of a job have written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no writer panics")).into_owned()
    }

    /// What follows `[rank] word ` on each line that begins so.
    pub(crate) fn said(&self, rank: usize, word: &str) -> Vec<String> {
        let start = format!("[{rank}] {word} ");
        self.text().lines().filter_map(|line| line.strip_prefix(&start).map(String::from)).collect()
    }

    /// Waits until every rank has said `word`.
    pub(crate) fn wait_for(&self, word: &str, ranks: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        while (0..ranks).any(|rank| self.said(rank, word).is_empty()) {
            assert!(Instant::now() < until, "not all of {ranks} ranks said '{word}':\n{}", self.text());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A job whose ranks run this test binary in `role`, with `folder` as their folder and for their temporary files.
pub(crate) fn job(role: &str, ranks: usize, folder: &Path) -> (Launch, Output) {
    let output = Output::default();
    let launch = Launch::new(std::env::current_exe().expect("this test has a path"))
        .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
        .ranks(ranks)
        .env(ROLE, role)
        .env("TMPDIR", folder)
        .output(output.clone(), output.clone())
        .timeout(Some(Duration::from_secs(120)));
    (launch, output)
}

/// What a process said behind `word`, once it has ended.
#[track_caller]
pub(crate) fn said(child: Child, word: &str) -> String {
    let process::Output { status, stdout, stderr } = child.wait_with_output().expect("it was started here");
    let text = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{word} ")).map(String::from));
    line.unwrap_or_else(|| panic!("{status}, and nothing of {word}:\n{text}"))
}

/// This test binary once more, in `role`, without a launcher.
pub(crate) fn again(role: &str) -> Command {
    of_role(Command::new(myself()), role)
}

/// The same in a network namespace.
pub(crate) fn again_in(namespace: &str, role: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(myself());
    of_role(command, role)
}

fn of_role(mut command: Command, role: &str) -> Command {
    command.args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

fn myself() -> PathBuf {
    std::env::current_exe().expect("this test has a path")
}

/// The role of this process, if it is a rank.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Says something the test can wait for and look up.
pub(crate) fn say(word: &str, what: impl std::fmt::Display) {
    let mut line = format!("{word} {what}\n");
    if !line.starts_with('\n') {
        line.insert(0, '\n'); // the harness of the ranks may have begun a line
    }
    let _ = io::stdout().write_all(line.as_bytes());
    let _ = io::stdout().flush();
}

pub(crate) fn now_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is past 1970").as_millis()
}

pub(crate) fn finish(running: Running) -> Outcome {
    running.wait().expect("the launcher itself does not fail")
}

/// Asserts that neither process nor file is left of a job.
pub(crate) fn assert_nothing_left(pids: &[u32], folder: &Path) {
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
    }
    let files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|f| f.expect("it can be read").path())
        .collect();
    assert!(files.is_empty(), "files are left: {files:?}");
}

/// The addresses on which these processes listen, in order.
pub(crate) fn listeners(pids: impl Iterator<Item = u32>) -> Vec<SocketAddr> {
    let inode = |link: std::path::PathBuf| {
        let name = std::fs::read_link(link).ok()?.to_string_lossy().into_owned();
        Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let sockets: HashSet<String> = pids
        .filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).ok())
        .flat_map(|fds| fds.filter_map(|fd| inode(fd.ok()?.path())).collect::<Vec<_>>())
        .collect();
    let mut found: Vec<SocketAddr> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .flat_map(|table| {
            std::fs::read_to_string(table).unwrap_or_default().lines().map(String::from).collect::<Vec<_>>()
        })
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = *fields.get(3)? == "0A" && sockets.contains(*fields.get(9)?);
            if listens { socket_addr(fields[1]) } else { None }
        })
        .collect();
    found.sort();
    found
}

/// Reads `0100007F:1F90`: words of the address in the machine's byte order, then the port.
fn socket_addr(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Vec<[u8; 4]> = (0..address.len() / 8)
        .map(|i| u32::from_str_radix(&address[8 * i..8 * i + 8], 16).map(u32::to_ne_bytes))
        .collect::<Result<_, _>>()
        .ok()?;
    match words.as_slice() {
        [v4] => Some((*v4, port).into()),
        v6 => Some((<[u8; 16]>::try_from(v6.concat()).ok()?, port).into()),
    }
}

/// Runs `ip`, for tests that make hosts of network namespaces. `Err` says what this machine, or this user, can't do.
pub(crate) fn ip(args: &str) -> Result<(), String> {
    let ran = Command::new("ip").args(args.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let why = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() { Ok(()) } else { Err(format!("ip {args}: {}", why.trim())) }
}
