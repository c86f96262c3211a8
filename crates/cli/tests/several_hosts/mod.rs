//! Jobs over several hosts, which are launchers of one machine: each with a name of its own (`PHALANX_HOST_ID`).

#![allow(dead_code, reason = "each test file uses its part")]

use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far more than anything here takes.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// A job: where its launchers meet, and their secret.
pub(crate) struct Job {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) nodes: usize,
    /// The file of the secret.
    pub(crate) secret: PathBuf,
    pub(crate) rendezvous: String,
    /// Flags of all its commands.
    flags: Vec<String>,
}

/// A launcher, and what it has written.
pub(crate) struct Host {
    pub(crate) launcher: Child,
    said: Arc<Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Job {
    pub(crate) fn of(nodes: usize, flags: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        secret(&file, '5');
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { folder, nodes, secret: file, rendezvous: format!("127.0.0.1:{port}"), flags }
    }

    pub(crate) fn command(&self, node: usize, ranks: usize, program: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command
            .args(["run", "--nnodes", &self.nodes.to_string(), "--node-rank", &node.to_string()])
            .args(["--rendezvous", &self.rendezvous, "-n", &ranks.to_string()])
            .args(["--secret-file".as_ref(), self.secret.as_os_str()])
            .args(&self.flags)
            .args(program)
            .env("PHALANX_HOST_ID", ["alpha", "beta", "gamma"][node])
            .env("PHALANX_INIT_TIMEOUT_S", "30");
        command
    }

    pub(crate) fn host(&self, node: usize, ranks: usize, program: &[&str]) -> Host {
        Host::start(self.command(node, ranks, program))
    }

    /// One host after the other, with so many ranks each, that perform a script.
    pub(crate) fn shells<const N: usize>(&self, ranks: [usize; N], script: &str) -> [Host; N] {
        let mut node = 0;
        ranks.map(|ranks| {
            node += 1;
            self.host(node - 1, ranks, &["sh", "-c", script])
        })
    }
}

pub(crate) fn secret(file: &Path, digit: char) {
    std::fs::write(file, digit.to_string().repeat(64)).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

impl Host {
    pub(crate) fn start(command: impl std::borrow::BorrowMut<Command>) -> Self {
        let mut command = command;
        let command = command.borrow_mut().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut launcher = command.spawn().unwrap();
        let said = Arc::<Mutex<String>>::default();
        let out: Box<dyn std::io::Read + Send> = Box::new(launcher.stdout.take().unwrap());
        let err: Box<dyn std::io::Read + Send> = Box::new(launcher.stderr.take().unwrap());
        let read = |mut from: Box<dyn std::io::Read + Send>| {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(n @ 1..) = from.read(&mut bytes) {
                    said.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
                }
            })
        };
        let readers = [out, err].into_iter().map(read).collect();
        Self { launcher, said, readers }
    }

    pub(crate) fn text(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said so much with these words, and returns those lines.
    #[track_caller]
    pub(crate) fn lines(&self, word: &str, count: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let text = self.text();
            let lines: Vec<_> = text.lines().filter(|l| l.contains(word)).map(String::from).collect();
            if lines.len() >= count {
                return lines;
            }
            assert!(begun.elapsed() < HANG, "not {count} times {word:?}:\n{text}");
            sleep(Duration::from_millis(10));
        }
    }

    /// The processes that said `pid N`.
    #[track_caller]
    pub(crate) fn pids(&self, count: usize) -> Vec<u32> {
        let pid = |line: String| line.rsplit(' ').next().unwrap().parse().unwrap();
        self.lines("] pid ", count).into_iter().map(pid).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).unwrap();
    }

    /// Its exit code, and all that it has said.
    #[track_caller]
    pub(crate) fn ends(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        while self.launcher.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < HANG, "it does not end:\n{}", self.text());
            sleep(Duration::from_millis(10));
        }
        let code = self.launcher.wait().unwrap().code();
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (code, self.text())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Waits until none of the processes runs.
#[track_caller]
pub(crate) fn all_gone(pids: &[u32]) {
    let runs = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            !matches!(stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]), Some(b'Z' | b'X'))
        })
    };
    let begun = Instant::now();
    while pids.iter().any(runs) {
        // What the documentation promises.
        assert!(begun.elapsed() < Duration::from_secs(10), "some of {pids:?} are still there");
        sleep(Duration::from_millis(10));
    }
}
