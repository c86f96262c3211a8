//! Which files this process has mapped: what a library was loaded from, and whether there are two of a kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files that this process has mapped and of whose name `wanted` approves, each once, however many paths lead to it. None where the
/// system doesn't tell.
pub(crate) fn files(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    select(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default(), wanted)
}

/// The file that is mapped at `address`.
pub(crate) fn file_at(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().filter_map(Mapping::parse).find(|m| (m.from..m.to).contains(&address)).map(|m| m.path.into())
}

fn select(maps: &str, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut files = BTreeMap::new();
    for mapping in maps.lines().filter_map(Mapping::parse) {
        let name = Path::new(mapping.path).file_name().and_then(|name| name.to_str());
        if name.is_some_and(&wanted) {
            files.entry(mapping.file).or_insert_with(|| PathBuf::from(mapping.path));
        }
    }
    files.into_values().collect()
}

/// One line: `7f00-7f10 r-xp 00000000 08:01 1234   /usr/lib/libnccl.so.2`.
struct Mapping<'a> {
    from: usize,
    to: usize,
    /// Device and inode.
    file: (&'a str, &'a str),
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let path = &line[line.find('/')?..];
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
        let (device, inode) = (words.nth(2)?, words.next()?);
        Some(Self { from, to, file: (device, inode), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_counts_once_whatever_leads_to_it() {
        let maps = "7f00-7f10 r--p 00000000 08:01 10   /a/libnccl.so.2.28.9\n\
                    7f10-7f20 r-xp 00001000 08:01 10   /a/libnccl.so.2.28.9\n\
                    7f20-7f30 r-xp 00000000 08:01 10   /link to/libnccl.so.2\n\
                    7f30-7f40 rw-p 00000000 00:00 0 \n\
                    7f40-7f50 r-xp 00000000 08:01 11   /b/libnccl-net.so\n\
                    nonsense /x\n\
                    7f50-7f60 r-xp 00000000 08:01 12   /b/libnccl.so.2\n";
        let found = select(maps, |name| name.starts_with("libnccl.so"));
        assert_eq!(found, [PathBuf::from("/a/libnccl.so.2.28.9"), PathBuf::from("/b/libnccl.so.2")]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn code_is_found_in_the_program() {
        let found = file_at(code_is_found_in_the_program as fn() as usize).expect("this code is in a file");
        assert_eq!(found.canonicalize().unwrap(), std::env::current_exe().unwrap().canonicalize().unwrap());
    }
}
