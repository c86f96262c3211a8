//! The lock by which one job alone writes into a folder.
//!
//! Rank 0 of the job that saves holds a lock on the file `.lock` in the folder, from its first save on: `flock`, or what the system has in its place. The
//! system gives it back when the process ends, however it ends. What stands in the file is for people: who holds it.

use getrandom::u64 as random;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;
use std::{env, fmt};

const NAME: &str = ".lock";

/// Times that it is tried while others, who hold it, let go of the file.
const ATTEMPTS: usize = 100;

/// Bytes that are read of what another job has written.
const HOLDER_BYTES_MAX: u64 = 4096;

/// The job that holds a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    host: String,
    pid: u32,
    /// As a scheduler or launcher calls it.
    job: Option<String>,
    since: String,
    /// Random; known to all ranks that save together.
    pub(crate) token: u64,
}

impl Holder {
    fn this() -> Self {
        let since = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let names = ["PHALANX_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"];
        let job = names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()));
        // Without random numbers there is none that another rank knows.
        let token = random().unwrap_or_default();
        Self { host: host(), pid: std::process::id(), job, since, token }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, job, since, .. } = self;
        match job {
            Some(job) => write!(f, "job `{job}`, pid {pid} on host {host}, since {since}"),
            None => write!(f, "pid {pid} on host {host}, since {since}"),
        }
    }
}

fn host() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".into())
}

/// The result of an attempt to lock a folder.
#[derive(Debug)]
pub(crate) enum Attempt {
    Held(Arc<Lock>),
    /// Another job holds the lock: which, if that can be read.
    Taken(Option<Holder>),
    /// The file system can't lock, or not for us.
    Impossible(io::Error),
}

/// A folder that this process has for itself. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// The locked file; the lock lasts until it is closed.
    file: File,
    pub(crate) holder: Holder,
}

/// The locks of this process, by folder: a process is one job, so a second request gets the same lock.
static HELD: Mutex<Vec<(PathBuf, Weak<Lock>)>> = Mutex::new(Vec::new());

/// Tokens of locks under which this process has saved, as whatever rank.
static KNOWN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

fn entered<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This process saves together with whoever holds the lock of this token.
pub(crate) fn remember(token: u64) {
    let mut known = entered(&KNOWN);
    if token != 0 && !known.contains(&token) {
        known.push(token);
    }
}

/// Whether this process has saved together with the holder.
pub(crate) fn knows(holder: Option<&Holder>) -> bool {
    holder.is_some_and(|holder| entered(&KNOWN).contains(&holder.token))
}

/// Tries to have `folder` for this process alone.
pub(crate) fn attempt(folder: &Path) -> Attempt {
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let mut held = entered(&HELD);
    held.retain(|(_, lock)| lock.strong_count() > 0);
    if let Some(lock) = held.iter().find_map(|(path, lock)| lock.upgrade().filter(|_| *path == folder)) {
        return Attempt::Held(lock);
    }
    let path = folder.join(NAME);
    let opened = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    for _ in 0..ATTEMPTS {
        let mut file = match opened() {
            Ok(file) => file,
            Err(error) => return Attempt::Impossible(error),
        };
        match file.try_lock() {
            // Whoever held it has removed it since it was opened: it is nothing that others would meet at.
            Ok(()) if !is_at(&file, &path) => {}
            Ok(()) => {
                let lock = Arc::new(Lock::write(path, file));
                held.push((folder, Arc::downgrade(&lock)));
                return Attempt::Held(lock);
            }
            Err(TryLockError::WouldBlock) => {
                // Unless it was given back meanwhile.
                if is_at(&file, &path) {
                    return Attempt::Taken(read(&mut file));
                }
            }
            Err(TryLockError::Error(error)) => return Attempt::Impossible(error),
        }
    }
    Attempt::Taken(None)
}

/// Takes a folder from a process of the same job that the others have given up, but that is not dead: it may be stopped, or cut off. Its lock stays with
/// the file, which another one replaces.
pub(crate) fn take_over(folder: &Path) -> io::Result<Arc<Lock>> {
    let folder = fs::canonicalize(folder)?;
    let path = folder.join(NAME);
    let new = folder.join(format!("{NAME}-{}-{}", host(), std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new)?;
    file.try_lock().map_err(|_| io::Error::other(format!("{} is locked", new.display())))?;
    let lock = Lock::write(path.clone(), file);
    fs::rename(&new, &path)?;
    let lock = Arc::new(lock);
    entered(&HELD).push((folder, Arc::downgrade(&lock)));
    Ok(lock)
}

impl Lock {
    fn write(path: PathBuf, mut file: File) -> Self {
        let holder = Holder::this();
        remember(holder.token);
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(serde_json::to_string(&holder)?.as_bytes())
        };
        // Held it is anyway. On a full disk nobody can tell by whom.
        if let Err(error) = write() {
            tracing::debug!(path = %path.display(), %error, "cannot write who holds the lock");
        }
        Self { path, file, holder }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // First the name, so that nobody comes to hold a file that is gone then.
        if is_at(&self.file, &self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "cannot remove the lock's file");
        }
    }
}

fn read(file: &mut File) -> Option<Holder> {
    let mut text = Vec::new();
    file.take(HOLDER_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether `path` is still the name of this file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(file), Ok(path)) if same(&file, &path))
}

/// A file that is open can't be removed there.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As another process has it: this one's own is not in its way.
    fn foreign(folder: &Path) -> File {
        let file = File::create(folder.join(NAME)).unwrap();
        file.try_lock().unwrap();
        file
    }

    fn held(attempt: Attempt) -> Arc<Lock> {
        let Attempt::Held(lock) = attempt else { panic!("{attempt:?}") };
        lock
    }

    #[test]
    fn a_process_has_it_once_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let first = held(attempt(folder.path()));
        let again = held(attempt(&folder.path().join(".")));
        assert!(Arc::ptr_eq(&first, &again));
        drop(first);
        assert!(folder.path().join(NAME).exists());
        assert!(knows(Some(&again.holder)));
        drop(again);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        drop(held(attempt(folder.path())));
    }

    #[test]
    fn what_another_holds_is_taken_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut other = foreign(folder.path());
        assert!(matches!(attempt(folder.path()), Attempt::Taken(None)), "it has not written who it is");
        let holder =
            Holder { host: "node7".into(), pid: 4711, job: Some("a".into()), since: "then".into(), token: 1 };
        other.write_all(serde_json::to_string(&holder).unwrap().as_bytes()).unwrap();
        let Attempt::Taken(Some(found)) = attempt(folder.path()) else { panic!("it is taken") };
        assert_eq!(
            (found.to_string(), knows(Some(&found))),
            ("job `a`, pid 4711 on host node7, since then".into(), false)
        );
        // Killed: the file stays, the lock does not.
        drop(other);
        let lock = held(attempt(folder.path()));
        assert_ne!(lock.holder, holder);
    }

    #[test]
    #[cfg(unix)]
    fn what_a_lost_rank_of_the_same_job_holds_can_be_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let other = foreign(folder.path());
        let lock = take_over(folder.path()).unwrap();
        assert!(!is_at(&other, &lock.path), "whoever comes meets at the new file");
        assert!(Arc::ptr_eq(&lock, &held(attempt(folder.path()))));
        let third = File::open(folder.path().join(NAME)).unwrap();
        assert!(matches!(third.try_lock(), Err(TryLockError::WouldBlock)));
        drop(lock);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn where_it_cannot_be_is_told() {
        let missing = Path::new("/nowhere/at/all");
        assert!(
            matches!(attempt(missing), Attempt::Impossible(error) if error.kind() == io::ErrorKind::NotFound)
        );
    }
}
