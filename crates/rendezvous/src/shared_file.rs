//! A small file by which the processes of one user on several hosts meet: rank 0 writes it, all read it, rank 0 removes it.

use crate::secret_file;
use phalanx_core::Deadline;
use phalanx_pmi::Fault;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it is looked whether the file is there.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A file with a few words, of which only its owner can read it. It appears as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFile {
    dir: PathBuf,
    name: String,
}

impl SharedFile {
    pub(crate) fn new(dir: PathBuf, name: String) -> Self {
        Self { dir, name }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Writes it. What an earlier run of the same name left is replaced.
    pub(crate) fn write(&self, words: &str) -> Result<(), Fault> {
        let path = self.path();
        let failed =
            |doing: &str, e: &io::Error| Fault::Unusable(format!("{doing} {} failed: {e}", path.display()));
        make_dir(&self.dir).map_err(|e| failed("making the directory of", &e))?;
        // Under a name of its own first, so that nobody reads a part of it.
        let draft = self.dir.join(format!("{}.{}", self.name, std::process::id()));
        let _ = fs::remove_file(&draft);
        let written = write_private(&draft, words).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|e| {
            let _ = fs::remove_file(&draft);
            failed("writing", &e)
        })
    }

    /// Waits until it is there, and reads it.
    pub(crate) fn read(&self, deadline: &Deadline) -> Result<String, Fault> {
        let path = self.path();
        loop {
            // A network file system remembers for a while that a name was not there, unless the directory is looked at.
            drop(fs::read_dir(&self.dir));
            match secret_file::read_open(&path.to_string_lossy(), open(&path)) {
                Ok(words) => return Ok(words.trim().to_owned()),
                Err(phalanx_core::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Fault::Unusable(error.to_string())),
            }
            let left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return Err(Fault::Late(format!("the file that rank 0 writes, {},", path.display())));
            }
            std::thread::sleep(LOOK_INTERVAL.min(left));
        }
    }

    /// Removes it.
    pub(crate) fn remove(&self) {
        let path = self.path();
        if let Err(error) = fs::remove_file(&path) {
            tracing::debug!(%error, path = %path.display(), "the file by which the ranks met is not removed");
        }
    }
}

#[cfg(unix)]
fn make_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Opens a file for reading, and nothing else: others may be able to put a link there, or a pipe that nobody writes.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no file")),
    }
}

#[cfg(unix)]
fn write_private(path: &Path, words: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(words.as_bytes())?;
    file.sync_all()
}

#[cfg(not(unix))]
fn make_dir(_dir: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn open(_path: &Path) -> io::Result<File> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn write_private(_path: &Path, _words: &str) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    fn after(ms: u64) -> Deadline {
        Deadline::after(Instant::now(), Duration::from_millis(ms))
    }

    #[test]
    fn what_one_writes_another_reads_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = SharedFile::new(dir.path().join("own"), "slurm-c-7.0-0".into());
        let reader = std::thread::spawn({
            let file = file.clone();
            move || file.read(&after(20_000)).unwrap()
        });
        file.write("one").unwrap();
        assert_eq!(reader.join().unwrap(), "one");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file.path()), mode(&dir.path().join("own"))), (0o600, 0o700));
        // A second start of the same name.
        file.write("two").unwrap();
        assert_eq!(file.read(&after(0)).unwrap(), "two");
        file.remove();
        assert_eq!(fs::read_dir(dir.path().join("own")).unwrap().count(), 0);
        assert!(matches!(file.read(&after(60)), Err(Fault::Late(_))));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = SharedFile::new(dir.path().into(), "f".into());
        file.write("one").unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        let fault = file.read(&after(1000)).unwrap_err().to_string();
        assert!(fault.contains("chmod 600"), "{fault}");
        // Nor what only seems to be one.
        let link = SharedFile::new(dir.path().into(), "link".into());
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(file.path(), link.path()).unwrap();
        assert!(matches!(link.read(&after(1000)), Err(Fault::Unusable(_))));
        let pipe = SharedFile::new(dir.path().into(), "pipe".into());
        assert!(Command::new("mkfifo").args(["-m", "600"]).arg(pipe.path()).status().unwrap().success());
        let fault = pipe.read(&after(1000)).unwrap_err().to_string();
        assert!(fault.contains("it is no file"), "{fault}");
        // A link where the draft would be is replaced, not followed.
        let draft = dir.path().join(format!("new.{}", std::process::id()));
        std::os::unix::fs::symlink(file.path(), draft).unwrap();
        SharedFile::new(dir.path().into(), "new".into()).write("two").unwrap();
        assert_eq!(file.read(&after(1000)).unwrap(), "one");
        let nowhere = SharedFile::new("/dev/null/x".into(), "f".into());
        assert!(matches!(nowhere.write("one"), Err(Fault::Unusable(_))));
    }
}
