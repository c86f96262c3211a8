//! What is left of a job.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the system may take to clear away what nobody holds any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is left of a job whose processes were given `tag` in their environment, and `folder` for their files.
pub(crate) fn of_job(tag: &str, folder: &Path) -> Vec<String> {
    let mut left = settled(|| {
        let tagged = processes().filter(|&pid| is_tagged(pid, tag));
        tagged.map(|pid| format!("process {pid} is left: {}", command_line(pid))).collect()
    });
    let files = fs::read_dir(folder).into_iter().flatten();
    left.extend(files.map(|file| format!("a file is left: {:?}", file.expect("it can be read").path())));
    left
}

/// What this process, which has launched jobs, holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: usize,
    threads: usize,
    /// Files in the memory of the machine.
    shared: HashSet<String>,
}

impl Held {
    pub(crate) fn now() -> Self {
        Self { descriptors: names("/proc/self/fd").len(), threads: threads(), shared: names("/dev/shm") }
    }

    /// What has been added since.
    pub(crate) fn added(&self) -> Vec<String> {
        settled(|| {
            let now = Self::now();
            let mut added: Vec<_> =
                now.shared.difference(&self.shared).map(|name| format!("/dev/shm/{name} is left")).collect();
            if now.descriptors > self.descriptors {
                added.push(format!(
                    "the launcher had {} descriptors, and now {}",
                    self.descriptors, now.descriptors
                ));
            }
            if now.threads > self.threads {
                added.push(format!("the launcher had {} threads, and now {}", self.threads, now.threads));
            }
            added.extend(doors_without_owner());
            added
        })
    }
}

/// Threads of this process that are ours: those of the tests beside this one come and go.
fn threads() -> usize {
    let name = |thread: &String| fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
    names("/proc/self/task")
        .iter()
        .filter(|thread| name(thread).is_ok_and(|n| n.starts_with("phalanx")))
        .count()
}

/// Sockets with names of ours that no process holds.
fn doors_without_owner() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let doors: Vec<_> = table.lines().filter(|line| line.contains("@phalanx-")).collect();
    if doors.is_empty() {
        return Vec::new();
    }
    let links = processes().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten());
    let held: HashSet<_> =
        links.filter_map(|fd| Some(fs::read_link(fd.ok()?.path()).ok()?.display().to_string())).collect();
    let inode = |line: &str| line.split_whitespace().nth(6).map(|inode| format!("socket:[{inode}]"));
    let orphans = doors.iter().filter(|line| inode(line).is_some_and(|socket| !held.contains(&socket)));
    orphans.map(|line| format!("a socket is left: {line}")).collect()
}

/// What is still found after a while.
fn settled(find: impl Fn() -> Vec<String>) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = find();
        if found.is_empty() || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn processes() -> impl Iterator<Item = u32> {
    names("/proc").into_iter().filter_map(|name| name.parse().ok())
}

fn is_tagged(pid: u32, tag: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable.ends_with(tag.as_bytes()))
}

fn command_line(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}

fn names(folder: &str) -> HashSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect()
}
