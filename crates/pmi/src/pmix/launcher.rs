//! The file of PMIx's library that the launcher itself has loaded.
//!
//! A launcher may bring its own (Open MPI does), and another stand where the system looks for libraries. One of the other release works, but the
//! launcher's half complains of each process: Open MPI 5's writes `PMIX_ERR_UNPACK_READ_PAST_END_OF_BUFFER`.

use crate::loaded_mpi;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A launcher is a few shells and daemons away at most.
const FARTHEST: usize = 16;

/// The file that the nearest ancestor of this process has loaded. `None` where none has, or where it is not known: only ancestors of the same user that
/// see the same file systems count, and only Linux says what a process has loaded.
pub(super) fn library() -> Option<PathBuf> {
    loaded_by_an_ancestor_of("self")
}

/// `process`: its name in `/proc`.
fn loaded_by_an_ancestor_of(process: &str) -> Option<PathBuf> {
    let own_place = place("self")?;
    let ancestors = std::iter::successors(parent(process), |process| parent(process)).take(FARTHEST);
    ancestors.filter(|process| place(process).as_ref() == Some(&own_place)).find_map(|process| {
        let maps = fs::read(folder(&process).join("maps")).ok()?;
        in_maps(&String::from_utf8_lossy(&maps))
    })
}

fn folder(process: &str) -> PathBuf {
    Path::new("/proc").join(process)
}

/// The user of a process, and its mount namespace, in which a path names a file.
fn place(process: &str) -> Option<(u32, PathBuf)> {
    let folder = folder(process);
    Some((fs::metadata(&folder).ok()?.uid(), fs::read_link(folder.join("ns/mnt")).ok()?))
}

/// The parent of a process: the second field behind the name, which may have any characters in it, in `/proc/<process>/stat`.
fn parent(process: &str) -> Option<String> {
    let stat = fs::read(folder(process).join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let fields = &stat[stat.rfind(')')? + 1..];
    fields.split_whitespace().nth(1).filter(|parent| *parent != "0").map(str::to_owned)
}

/// The first file of PMIx's library in a text like that of `/proc/<process>/maps`, if it is still there.
fn in_maps(maps: &str) -> Option<PathBuf> {
    let is_pmix = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let version = name.strip_prefix("libpmix.so.").unwrap_or_default();
        version.split('.').next() == Some("2")
            && version.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit())
    };
    loaded_mpi::files(maps).map(Path::new).filter(is_pmix).find(|path| path.is_file()).map(Path::to_owned)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// The launcher is a shell whose own file has the library's name. It starts another shell, and that one the process that asks.
    #[test]
    fn the_library_of_an_ancestor_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().canonicalize().expect("it is there").join("libpmix.so.2.99");
        fs::copy("/bin/sh", &file).expect("a shell");
        let mut launcher = Command::new(&file);
        launcher.args(["-c", r#"sh -c "$1" "" "$2"; exit"#, "", r#"sh -c "$1"; exit"#, "echo $$; read line"]);
        launcher.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut launcher = launcher.spawn().expect("it starts");
        let mut asks = String::new();
        let said = launcher.stdout.take().expect("a pipe");
        BufReader::new(said).read_line(&mut asks).expect("it says its number");
        let found = loaded_by_an_ancestor_of(asks.trim());
        drop(launcher.stdin.take());
        launcher.wait().expect("it ends with its input");
        assert_eq!(found.as_deref(), Some(&*file));
    }

    #[test]
    fn other_files_are_not_the_library() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| {
            let file = folder.path().join(name);
            fs::write(&file, "").expect("it can be written");
            file
        };
        let map = |path: &Path| format!("7f00-7f01 r-xp 00000000 08:01 12 {}\n", path.display());
        for name in [
            "libpmix.so.3",
            "libpmix.so.20",
            "libpmix.so",
            "libpmi.so.2",
            "my libpmix.so.2",
            "libpmix.so.2.9 (deleted)",
        ] {
            assert_eq!(in_maps(&map(&file(name))), None, "{name}");
        }
        assert_eq!(in_maps(&map(Path::new("/gone/libpmix.so.2"))), None, "a file that is not there");
        let found = file("libpmix.so.2");
        assert_eq!(in_maps(&(map(Path::new("/gone/libpmix.so.2")) + &map(&found))), Some(found));
    }
}
