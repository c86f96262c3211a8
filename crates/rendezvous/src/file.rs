//! A store in a directory that all processes of the job share.

use crate::store::{check, check_key, count, misuse, not_set};
use crate::{Store, VALUE_LEN_MAX};
use phalanx_core::{Deadline, Error, Result};
use phalanx_transport::{OwnerProcess, random_number};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest pause between two looks at the directory.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// A process that holds the lock for so long is stopped, or its host is gone.
const LOCK_TIME: Duration = Duration::from_secs(10);
/// How often a directory is made that is removed again before it can be looked at.
const OPEN_TRIES: usize = 100;
/// Longest encoded key that is a file's name as it is: with the mark of a hash it stays below the usual limit of 255.
const NAME_LEN_MAX: usize = 180;
/// Names of our own; no encoded key has a dot.
const LOCK: &str = ".lock";
const NEW: &str = ".new";
const OWNER: &str = ".owner";

/// A store of files in a directory, one per key. Good for ranks on one host or on a shared file system, with no port
/// to open; waiting is looking again, at most 20 ms later (on a network file system also as late as its caches let
/// through).
///
/// A value is published by renaming a complete file, so no reader sees half of one. Changes are made under a file lock
/// that the system releases when its holder dies. Files are readable by their owner alone.
///
/// The files of one job lie in a directory of its own, named after the job, so that what a killed job left behind is
/// not mistaken for the next one's. [`owned`](Self::owned) says who removes it.
///
/// ```
/// use phalanx_rendezvous::{FileStore, Store};
///
/// let dir = std::env::temp_dir().join(format!("phalanx-example-{}", std::process::id()));
/// let store = FileStore::open(&dir, "job 7")?.owned();
/// store.set("address", b"10.0.0.7:41234")?;
/// assert_eq!(FileStore::open(&dir, "job 7")?.try_get("address")?, Some(b"10.0.0.7:41234".to_vec()));
/// assert_eq!(FileStore::open(&dir, "job 8")?.owned().try_get("address")?, None);
/// drop(store);
/// std::fs::remove_dir(&dir).unwrap(); // nothing is left in it
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug)]
pub struct FileStore {
    /// Holds this job's files and nothing else.
    dir: PathBuf,
    /// The number of this owner, if it is one, and the process that made it.
    owner: Option<(u64, OwnerProcess)>,
}

impl FileStore {
    /// Opens the store of the job `job_id` in `dir`, and makes both directories if they are not there.
    ///
    /// # Errors
    /// [`Error::Config`] if `dir` belongs to another user or others may write to it: they could answer for our ranks.
    /// [`Error::Io`] if it cannot be made or read.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{FileStore, Store};
    ///
    /// let dir = std::env::temp_dir().join(format!("phalanx-open-{}", std::process::id()));
    /// FileStore::open(&dir, "job 7")?.set("epoch", b"3")?;
    /// let another = FileStore::open(&dir, "job 7")?; // in whichever process
    /// assert_eq!(another.try_get("epoch")?, Some(b"3".to_vec()));
    /// # another.remove_all()?;
    /// # std::fs::remove_dir(&dir).unwrap();
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn open(dir: impl AsRef<Path>, job_id: &str) -> Result<Self> {
        let parent = open_private(dir.as_ref())?;
        let dir = open_private(&parent.join(file_name(job_id)))?;
        Ok(Self { dir, owner: None })
    }

    /// Makes this the handle that removes the job's files when it is dropped. One process does it, the one that leaves
    /// last. Where a job is started again while the owner of before is still there, the latest owner counts: the other leaves the files
    /// to it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{FileStore, Store};
    ///
    /// let dir = std::env::temp_dir().join(format!("phalanx-owned-{}", std::process::id()));
    /// let store = FileStore::open(&dir, "job 7")?.owned();
    /// store.set("epoch", b"3")?;
    /// drop(store);
    /// std::fs::remove_dir(&dir).unwrap(); // nothing is left in it
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[must_use]
    pub fn owned(mut self) -> Self {
        let number = random_number().ok().filter(|number| {
            let written = self.lock().and_then(|_lock| {
                let written = fs::write(self.dir.join(OWNER), number.to_le_bytes());
                written.map_err(|e| self.failed("writing the owner to", e))
            });
            written.inspect_err(|error| tracing::warn!(%error, "files will be left behind")).is_ok()
        });
        self.owner = number.map(|number| (number, OwnerProcess::here()));
        self
    }

    fn is_owned(&self) -> bool {
        // Not if this is the copy that a forked child has of it.
        self.owner.filter(|(_, made)| made.is_here()).is_some_and(|(number, _)| {
            fs::read(self.dir.join(OWNER)).is_ok_and(|present| present == number.to_le_bytes())
        })
    }

    /// Removes the job's directory with everything in it. The store is of no use afterwards.
    ///
    /// # Errors
    /// [`Error::Io`] if something could not be removed. That nothing is there is no error.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{FileStore, Store};
    ///
    /// let dir = std::env::temp_dir().join(format!("phalanx-remove-all-{}", std::process::id()));
    /// let store = FileStore::open(&dir, "job 7")?;
    /// store.set("epoch", b"3")?;
    /// store.remove_all()?;
    /// std::fs::remove_dir(&dir).unwrap(); // nothing is left in it
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn remove_all(&self) -> Result<()> {
        match fs::remove_dir_all(&self.dir) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(self.failed("removing", e)),
            _ => Ok(()),
        }
    }

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        Error::io(format!("{doing} the store in {}", self.dir.display()), error)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(file_name(key))
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let file = File::open(self.path(key));
        match file.and_then(|file| file.take(VALUE_LEN_MAX as u64 + 1).read_to_end(&mut value)) {
            Ok(0..=VALUE_LEN_MAX) => Ok(Some(value)),
            Ok(_) => Err(self.failed(&format!("reading {key:?} from"), ErrorKind::FileTooLarge.into())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.failed(&format!("reading {key:?} from"), e)),
        }
    }

    /// Replaces the file of `key`. Only the holder of the lock does, so one name for unfinished files is enough.
    fn write(&self, key: &str, value: &[u8]) -> Result<()> {
        let new = self.dir.join(NEW);
        let publish = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(value)?;
            // A network file system may say only now that there is no room: it would say so too when the file is closed, where nobody hears it.
            file.sync_all()?;
            fs::rename(&new, self.path(key))
        };
        publish().map_err(|e| self.failed(&format!("writing {key:?} to"), e))
    }

    /// Waits until no other handle, in whatever process, changes the store. The lock ends with the file's last descriptor,
    /// so with its holder's life at the latest.
    fn lock(&self) -> Result<File> {
        let deadline = Deadline::after(Instant::now(), LOCK_TIME);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.dir.join(LOCK));
        let file = file.map_err(|e| self.failed("locking", e))?;
        let mut pauses = Pauses::default();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
                Ok(()) => return Ok(file),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(self.failed("locking", e)),
            }
            if !pauses.sleep(&deadline) {
                return Err(self.failed("waiting for the process that locks", ErrorKind::TimedOut.into()));
            }
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if self.is_owned()
            && let Err(error) = self.remove_all()
        {
            tracing::warn!(%error, "files are left behind");
        }
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check(key, value).map_err(misuse)?;
        let _lock = self.lock()?;
        self.write(key, value)
    }

    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        check_key(key).map_err(misuse)?;
        let mut pauses = Pauses::default();
        loop {
            if let Some(value) = self.read(key)? {
                return Ok(value);
            }
            if !pauses.sleep(deadline) {
                return Err(not_set(&[key], 1, deadline));
            }
        }
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key).map_err(misuse)?;
        self.read(key)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        check_key(key).map_err(misuse)?;
        let _lock = self.lock()?;
        let sum = count(key, self.read(key)?.as_deref(), delta).map_err(misuse)?;
        self.write(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        check(key, new).map_err(misuse)?;
        check(key, expected.unwrap_or_default()).map_err(misuse)?;
        let _lock = self.lock()?;
        let same = self.read(key)?.as_deref() == expected;
        if same {
            self.write(key, new)?;
        }
        Ok(same)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_key(key).map_err(misuse)?;
        let _lock = self.lock()?;
        match fs::remove_file(self.path(key)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(self.failed(&format!("deleting {key:?} from"), e)),
        }
    }
}

/// The file's name for a key: lower-case letters, digits, `-` and `_` stay, every other byte becomes `%` and two digits,
/// so that no two keys share a name even where case does not count. Of a long key the beginning stays, and a hash of it all.
pub(crate) fn file_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.is_empty() {
        return "%".into();
    }
    if name.len() > NAME_LEN_MAX {
        name.truncate(NAME_LEN_MAX);
        name.push('~');
        Sha256::digest(key).iter().for_each(|byte| name.push_str(&format!("{byte:02x}")));
    }
    name
}

/// As [`make_private`], also while the owner of the job that was there before removes the directory.
fn open_private(dir: &Path) -> Result<PathBuf> {
    for _ in 1..OPEN_TRIES {
        match make_private(dir) {
            Err(Error::Io { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {}
            outcome => return outcome,
        }
    }
    make_private(dir)
}

/// Makes the directory, unless it is there, and returns its path without links: nobody can turn them elsewhere after we have looked.
fn make_private(dir: &Path) -> Result<PathBuf> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir).and_then(|()| dir.canonicalize());
    let dir = made.map_err(|e| Error::io(format!("opening the store directory {}", dir.display()), e))?;
    check_private(&dir)?;
    Ok(dir)
}

/// Refuses a directory in which anybody but us could put files.
fn check_private(dir: &Path) -> Result<()> {
    let metadata = fs::metadata(dir).map_err(|e| Error::io(format!("looking at {}", dir.display()), e))?;
    let (owner, us) = (metadata.uid(), geteuid().as_raw());
    if owner != us {
        return Err(Error::config(format!(
            "the store directory {} belongs to user {owner}, not to us ({us})",
            dir.display()
        )));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(Error::config(format!(
            "others may write to the store directory {} (mode {:03o}): name one that only we can write to",
            dir.display(),
            metadata.mode() & 0o777
        )));
    }
    Ok(())
}

/// Pauses between looks: from a tenth of a millisecond, each twice as long as the one before.
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(Duration::from_micros(100))
    }
}

impl Pauses {
    /// Sleeps for the next pause, or until the deadline. False, without sleeping, once that has passed.
    fn sleep(&mut self, deadline: &Deadline) -> bool {
        let left = deadline.remaining(Instant::now());
        std::thread::sleep(self.0.min(left));
        self.0 = (self.0 * 2).min(PAUSE_MAX);
        !left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_owner_can_read_or_write() {
        let temp = tempfile::tempdir().unwrap();
        let store = FileStore::open(temp.path().join("made"), "job").unwrap();
        store.set("key", b"value").unwrap();
        assert_eq!((mode(&temp.path().join("made")), mode(&store.dir)), (0o700, 0o700));
        for entry in fs::read_dir(&store.dir).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
    }

    #[test]
    fn it_can_be_opened_while_the_owner_of_before_removes_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("made");
        let open = |times| (0..times).try_for_each(|_| FileStore::open(&dir, "job").map(drop));
        let open_and_remove = |times| (0..times).try_for_each(|_| FileStore::open(&dir, "job")?.remove_all());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| open_and_remove(2000));
            open(2000).unwrap();
            other.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        for bad in [0o770, 0o707, 0o777, 0o1777] {
            fs::set_permissions(temp.path(), PermissionsExt::from_mode(bad)).unwrap();
            let error = FileStore::open(temp.path(), "job").unwrap_err();
            assert!(matches!(&error, Error::Config { what } if what.contains("others may write")), "{error}");
        }
        fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o755)).unwrap();
        FileStore::open(temp.path(), "job").unwrap();
    }

    #[test]
    fn a_killed_holder_of_the_lock_is_no_obstacle() {
        let temp = tempfile::tempdir().unwrap();
        let store = FileStore::open(temp.path(), "job").unwrap();
        // The child inherits the locked file as its input; with our descriptor closed, the lock is the child's.
        let lock = store.lock().unwrap();
        let mut holder = Command::new("sleep").arg("60").stdin(Stdio::from(lock)).spawn().unwrap();
        let adder = std::thread::spawn(move || (store.add("n", 1), Instant::now()));
        std::thread::sleep(Duration::from_millis(100));
        let killed = Instant::now();
        holder.kill().unwrap();
        holder.wait().unwrap();
        let (sum, added) = adder.join().unwrap();
        assert_eq!(sum.unwrap(), 1);
        assert!(added >= killed, "the lock did not hold while its owner lived");
    }

    #[test]
    fn the_owner_leaves_no_file() {
        let temp = tempfile::tempdir().unwrap();
        let owner = FileStore::open(temp.path(), "job").unwrap().owned();
        let other = FileStore::open(temp.path(), "job").unwrap();
        owner.set("a", b"1").unwrap();
        other.add("b", 1).unwrap();
        drop(other);
        assert_eq!(owner.try_get("b").unwrap().unwrap(), b"1", "only the owner removes");
        drop(owner);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_latest_owner_counts() {
        let temp = tempfile::tempdir().unwrap();
        let before = FileStore::open(temp.path(), "job").unwrap().owned();
        let after = FileStore::open(temp.path(), "job").unwrap().owned();
        after.set("a", b"1").unwrap();
        drop(before);
        assert_eq!(after.try_get("a").unwrap().unwrap(), b"1");
        drop(after);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_half_written_file_of_a_killed_process_is_never_seen() {
        let temp = tempfile::tempdir().unwrap();
        let store = FileStore::open(temp.path(), "job").unwrap();
        fs::write(store.dir.join(NEW), b"half a va").unwrap();
        assert_eq!(store.try_get(NEW).unwrap(), None);
        store.set("key", b"v").unwrap();
        assert_eq!(store.try_get("key").unwrap().unwrap(), b"v");
    }

    #[test]
    fn a_file_longer_than_any_value_is_not_read_to_its_end() {
        let temp = tempfile::tempdir().unwrap();
        let store = FileStore::open(temp.path(), "job").unwrap();
        store.set("key", &vec![1; VALUE_LEN_MAX]).unwrap();
        assert_eq!(store.try_get("key").unwrap().unwrap().len(), VALUE_LEN_MAX);
        // It has no blocks: a sparse file.
        File::create(store.path("key")).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(store.try_get("key"), Err(Error::Io { .. })));
    }

    #[test]
    fn who_reads_the_old_value_reads_it_whole() {
        let temp = tempfile::tempdir().unwrap();
        let store = FileStore::open(temp.path(), "job").unwrap();
        store.set("key", b"old").unwrap();
        let old = File::open(store.path("key")).unwrap();
        store.set("key", b"new value").unwrap();
        assert_eq!(io::read_to_string(old).unwrap(), "old");
    }

    #[test]
    fn names_are_safe_and_different() {
        let long = "k".repeat(1024);
        let keys =
            ["", "%", ".", "..", "../x", "a/b", "a%2fb", "A", "a", "\0", "é", LOCK, NEW, &long, &long[1..]];
        let names: HashSet<String> = keys.iter().map(|key| file_name(key)).collect();
        assert_eq!(names.len(), keys.len());
        for name in names {
            assert!(
                name.len() < 255 && !name.contains(['/', '.', '\0']) && name == name.to_lowercase(),
                "{name}"
            );
        }
    }
}
