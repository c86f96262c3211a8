//! The folder of all checkpoints: what is a checkpoint in it, what is on its way to be one, and what is left of killed runs.
//!
//! A checkpoint is written into `step-00001200.tmp-…`, which is renamed to `step-00001200` when everything in it is on the disk. One that
//! has to make room for it is `step-00001200.old-…` for that moment.

use crate::lock::{self, Attempt};
use crate::{Error, Result};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of the checkpoint of `step`.
pub(crate) fn of_step(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step:08}"))
}

/// Makes a place to write the checkpoint of `step`, and returns its name: other hosts may have the folder elsewhere.
pub(crate) fn create_temporary(folder: &Path, step: u64) -> Result<String> {
    let name = temporary(step)?;
    let path = folder.join(&name);
    fs::create_dir(&path).map_err(Error::io(format!("creating folder {}", path.display())))?;
    Ok(name)
}

/// How it is called before and after it is a checkpoint. No two attempts share a name.
fn temporary(step: u64) -> Result<String> {
    let nonce = getrandom::u32().map_err(|error| io::Error::other(error.to_string()));
    let nonce = nonce.map_err(Error::io("asking the system for a random number"))?;
    Ok(format!("step-{step:08}.tmp-{nonce:08x}"))
}

/// A name in the folder.
#[derive(Debug, PartialEq)]
enum Name {
    Whole(u64),
    /// On its way in, or out.
    Temporary,
    /// Out of the way of another, until that is in its place.
    Old(u64),
}

fn name(text: &str) -> Option<Name> {
    let (place, suffix) = text.split_once('.').map_or((text, ""), |(place, suffix)| (place, suffix));
    let step = place.strip_prefix("step-")?.parse().ok()?;
    if place != format!("step-{step:08}") {
        return None;
    }
    match suffix {
        "" => Some(Name::Whole(step)),
        _ if suffix.starts_with("tmp-") => Some(Name::Temporary),
        _ if suffix.starts_with("old-") => Some(Name::Old(step)),
        _ => None,
    }
}

fn names(folder: &Path) -> Result<Vec<(PathBuf, Name)>> {
    let read = || {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            names.extend(entry.file_name().to_str().and_then(name).map(|name| (entry.path(), name)));
        }
        Ok(names)
    };
    read().map_err(Error::io(format!("reading folder {}", folder.display())))
}

/// The steps of all checkpoints, newest first.
pub(crate) fn steps(folder: &Path) -> Result<Vec<u64>> {
    let whole = names(folder)?.into_iter().filter_map(|(_, name)| match name {
        Name::Whole(step) => Some(step),
        _ => None,
    });
    let mut steps: Vec<u64> = whole.collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    Ok(steps)
}

/// Makes the folder if there is none, and removes what killed runs have left in it, unless another job is at work there.
pub(crate) fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io(format!("creating folder {}", folder.display())))?;
    match lock::attempt(folder) {
        // If this process has it already it may be saving: what lies there is not of a killed run.
        Attempt::Held(lock) if Arc::strong_count(&lock) > 1 => Ok(()),
        Attempt::Held(_lock) => clean(folder),
        Attempt::Taken(_) => Ok(()),
        // Whoever only reads needs no lock, and has nothing to clean.
        Attempt::Impossible(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
        {
            Ok(())
        }
        Attempt::Impossible(_) => clean(folder),
    }
}

/// Removes what killed runs have left.
fn clean(folder: &Path) -> Result<()> {
    for (path, name) in names(folder)? {
        match name {
            Name::Whole(_) => {}
            // Whoever took it out of the way was killed before the new one was in its place.
            Name::Old(step) if !of_step(folder, step).exists() => {
                let back = of_step(folder, step);
                let doing = format!("renaming {} to {}", path.display(), back.display());
                fs::rename(&path, &back).map_err(Error::io(doing))?;
            }
            Name::Temporary | Name::Old(_) => {
                tracing::info!(path = %path.display(), "removing what a killed run has left");
                // A thread of a group that failed may still write there. Then it is removed next time.
                if let Err(error) = remove(&path) {
                    tracing::warn!("{error}");
                }
            }
        }
    }
    Ok(())
}

/// Gives the finished checkpoint at `path` its place. After that it exists, whatever happens. If that fails, the one that was there is there again.
pub(crate) fn commit(folder: &Path, step: u64, path: &Path) -> Result<()> {
    let place = of_step(folder, step);
    let doing = format!("renaming {} to {}", path.display(), place.display());
    // Of the name alone: the folder may have any.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let old = path.with_file_name(name.replace(".tmp-", ".old-"));
    exchange(path, &place, &old, || sync(folder)).map_err(Error::io(doing))?;
    if let Err(error) = remove(&old) {
        tracing::warn!("{error}");
    }
    Ok(())
}

/// Gives `new` the place of what is there, if anything is, which becomes `old`, and brings that to the disk by `sync`. If something fails, all is as it was.
fn exchange(new: &Path, place: &Path, old: &Path, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match fs::rename(place, old) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let placed = fs::rename(new, place);
    let outcome = placed.and_then(|()| sync().inspect_err(|_| drop(fs::rename(place, new))));
    // If there was one, and this fails too, `prepare` does it.
    outcome.inspect_err(|_| drop(fs::rename(old, place)))
}

/// Removes all but the newest `keep` of the checkpoints up to `step`. Newer ones, which another run must have left, are not looked at: so the
/// one of `step` itself always stays.
pub(crate) fn prune(folder: &Path, step: u64, keep: usize) -> Result<()> {
    for old in steps(folder)?.into_iter().filter(|&other| other <= step).skip(keep.max(1)) {
        // First it stops being a checkpoint, should this be interrupted.
        let (place, out) = (of_step(folder, old), folder.join(temporary(old)?));
        fs::rename(&place, &out).map_err(Error::io(format!("renaming {}", place.display())))?;
        remove(&out)?;
    }
    Ok(())
}

/// Removes a folder with all that is in it, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io(format!("removing {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Brings the names in a folder to the disk: of what is in it, and of what no longer is.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    // Other systems open no folders.
    if cfg!(unix) { fs::File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let huge = format!("step-{}", u64::MAX);
        for (text, expected) in [
            ("step-00001200", Some(Name::Whole(1200))),
            ("step-123456789", Some(Name::Whole(123_456_789))),
            (&huge, Some(Name::Whole(u64::MAX))),
            ("step-00001200.tmp-0a1b2c3d", Some(Name::Temporary)),
            ("step-00001200.old-0a1b2c3d", Some(Name::Old(1200))),
            ("step-1200", None),
            ("step-0000120x", None),
            ("step-00001200.bak", None),
            ("step-+0001200", None),
            ("step-000001200", None),
            ("step-99999999999999999999999", None),
            ("stepé00000000", None),
            ("notes", None),
        ] {
            assert_eq!(name(text), expected, "{text}");
        }
        assert_eq!(of_step(Path::new("x"), 1200), Path::new("x/step-00001200"));
    }

    #[test]
    fn one_of_the_same_step_is_replaced_whatever_the_folder_is_called() {
        let outside = tempfile::tempdir().unwrap();
        let mut names = vec![std::ffi::OsString::from("job.tmp-3")];
        #[cfg(target_os = "linux")] // others want names to be text
        names.push(std::os::unix::ffi::OsStringExt::from_vec(b"job-\xff".to_vec()));
        for name in names {
            let folder = outside.path().join(name);
            prepare(&folder).unwrap();
            for text in ["old", "new"] {
                let path = folder.join(create_temporary(&folder, 7).unwrap());
                fs::write(path.join("x"), text).unwrap();
                commit(&folder, 7, &path).unwrap();
            }
            assert_eq!(fs::read_to_string(of_step(&folder, 7).join("x")).unwrap(), "new");
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        }
    }

    #[test]
    fn what_had_to_make_room_is_put_back_if_nothing_comes() {
        let folder = tempfile::tempdir().unwrap();
        let place = of_step(folder.path(), 7);
        fs::create_dir(&place).unwrap();
        let gone = folder.path().join(temporary(7).unwrap());
        assert!(commit(folder.path(), 7, &gone).is_err());
        assert!(place.is_dir());
        assert_eq!(steps(folder.path()).unwrap(), [7]);
    }

    /// Its caller says that it is not saved.
    #[test]
    fn one_that_does_not_come_to_the_disk_is_not_left_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let [new, place, old] = ["new", "place", "old"].map(|name| folder.path().join(name));
        let no_disk = || Err(io::Error::other("no disk"));
        for was_there in [false, true] {
            fs::create_dir(&new).unwrap();
            fs::write(new.join("x"), "new").unwrap();
            if was_there {
                fs::create_dir(&place).unwrap();
                fs::write(place.join("x"), "old").unwrap();
            }
            assert_eq!(exchange(&new, &place, &old, no_disk).unwrap_err().to_string(), "no disk");
            assert_eq!(fs::read_to_string(new.join("x")).unwrap(), "new");
            assert_eq!(fs::read_to_string(place.join("x")).is_ok_and(|text| text == "old"), was_there);
            assert!(!old.exists());
            fs::remove_dir_all(&new).unwrap();
        }
    }

    #[test]
    fn what_killed_runs_leave_is_removed_and_what_they_took_away_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("x"), name).unwrap();
        };
        let killed = ["step-00000001.old-aa", "step-00000002.old-bb", "step-00000003.tmp-cc"];
        ["step-00000001", "notes"].into_iter().chain(killed).for_each(make);
        prepare(folder.path()).unwrap();
        assert_eq!(steps(folder.path()).unwrap(), [2, 1]);
        let back = fs::read_to_string(folder.path().join("step-00000002/x")).unwrap();
        assert_eq!(back, "step-00000002.old-bb");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "notes are the user's");
    }

    #[test]
    fn the_newest_stay_and_those_of_later_steps_are_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        for step in [1, 5, 7, 9, 20] {
            fs::create_dir(of_step(folder.path(), step)).unwrap();
        }
        prune(folder.path(), 9, 2).unwrap();
        assert_eq!(steps(folder.path()).unwrap(), [20, 9, 7]);
        prune(folder.path(), 9, 0).unwrap();
        assert_eq!(steps(folder.path()).unwrap(), [20, 9], "the newest of all stays");
    }
}
