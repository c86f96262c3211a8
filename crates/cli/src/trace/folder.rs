//! The traces in a folder: its own, or those of the newest attempt and generation below it.

use phalanx_core::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// As deep as logs go: `logs/job/attempt_0/generation_1`.
const DEPTH_MAX: usize = 3;
/// Folders that are looked into: more are no logs of a job.
const FOLDERS_MAX: usize = 10_000;

/// A folder with traces.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) files: Vec<PathBuf>,
    /// How many folders with traces there are, of which this is the newest.
    pub(super) of: usize,
}

/// A folder with traces.
struct Found {
    path: PathBuf,
    files: Vec<PathBuf>,
    written: SystemTime,
}

impl Found {
    /// The folder of its job, and which attempt and generation of that it is.
    fn place(&self) -> (&Path, u64, u64) {
        let number = |path: &Path, name: &str| -> Option<u64> {
            path.file_name()?.to_str()?.strip_prefix(name)?.strip_prefix('_')?.parse().ok()
        };
        let (mut job, mut attempt, mut generation) = (self.path.as_path(), 0, 0);
        if let (Some(number), Some(parent)) = (number(job, "generation"), job.parent()) {
            (generation, job) = (number, parent);
        }
        if let (Some(number), Some(parent)) = (number(job, "attempt"), job.parent()) {
            (attempt, job) = (number, parent);
        }
        (job, attempt, generation)
    }
}

/// The folder in or below `path` with the newest traces: of the job that wrote last, those of the last attempt, and of that those of
/// the last generation.
///
/// # Errors
/// [`Error::Io`] if the folder can't be read, [`Error::Config`] if no traces are there.
pub(super) fn newest(path: &Path) -> Result<Folder> {
    let mut found = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop() {
        seen += 1;
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) if seen <= FOLDERS_MAX => entries,
            Err(error) if depth == 0 => return Err(Error::io(format!("reading {}", path.display()), error)),
            _ => continue,
        };
        let (mut files, mut written) = (Vec::new(), SystemTime::UNIX_EPOCH);
        for entry in entries.flatten() {
            let (name, kind) = (entry.file_name(), entry.file_type());
            let name = name.to_string_lossy();
            if name.starts_with("trace_rank_") && name.ends_with(".json") {
                let modified = entry.metadata().and_then(|metadata| metadata.modified());
                written = written.max(modified.unwrap_or(SystemTime::UNIX_EPOCH));
                files.push(entry.path());
            } else if kind.is_ok_and(|kind| kind.is_dir()) && depth < DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            }
        }
        if !files.is_empty() {
            files.sort();
            found.push(Found { path: folder, files, written });
        }
    }
    let of = found.len();
    let job = found.iter().max_by_key(|found| found.written).map(|found| found.place().0.to_owned());
    let of_job = found.into_iter().filter(|found| Some(found.place().0) == job.as_deref());
    let last = of_job.max_by_key(|found| {
        let (_, attempt, generation) = found.place();
        (attempt, generation, found.written)
    });
    match last {
        Some(Found { path, files, .. }) => Ok(Folder { path, files, of }),
        None => Err(Error::config(format!(
            "no trace_rank_*.json in {} or below: ranks write them when a group fails, if PHALANX_TRACE_DIR or \
             `phalanx run --log-dir` names a folder",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, rank: usize, seconds: u64) {
        std::fs::create_dir_all(folder).unwrap();
        let file = std::fs::File::create(folder.join(format!("trace_rank_{rank}.json"))).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn the_last_attempt_and_generation_of_the_newest_job_count() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let error = newest(root).unwrap_err().to_string();
        assert!(error.contains("no trace_rank_*.json in "), "{error}");
        write(&root.join("old/attempt_11"), 0, 1_000);
        // A rank that was stopped for long writes last, of what is over.
        write(&root.join("job/attempt_2"), 0, 3_000);
        for (generation, seconds) in [(9, 2_000), (10, 2_100)] {
            write(&root.join(format!("job/attempt_2/generation_{generation}")), 1, seconds);
            write(&root.join(format!("job/attempt_2/generation_{generation}")), 0, seconds);
        }
        let last = root.join("job/attempt_2/generation_10");
        for path in [root, &root.join("job"), &root.join("job/attempt_2")] {
            let folder = newest(path).unwrap();
            assert_eq!(folder.path, last, "from {}", path.display());
            let files = [0, 1].map(|rank| last.join(format!("trace_rank_{rank}.json")));
            assert_eq!(folder.files, files);
        }
        assert_eq!(newest(root).unwrap().of, 4);
        assert_eq!(newest(&root.join("old/attempt_11")).unwrap().of, 1);
    }
}
