//! Whether MPI is in this process. It uses the launcher's channel itself, and two that do so confuse the launcher.

/// The file of an MPI library that this process has loaded. `None` where none is loaded, where it is a part of the program itself, or where
/// the system does not say what is loaded (everywhere but on Linux).
///
/// # Examples
/// ```
/// assert_eq!(phalanx_pmi::loaded_mpi(), None);
/// ```
pub fn loaded_mpi() -> Option<String> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    in_maps(&String::from_utf8_lossy(&maps))
}

/// The first file of MPI in a text like that of `/proc/self/maps`: `libmpi.so.40`, `libmpich.so.12`, `libmpi_abi.so.0` and so on.
fn in_maps(maps: &str) -> Option<String> {
    let found = files(maps).find(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        // `libmpir.so` is about long numbers.
        let more = name.strip_prefix("libmpi");
        more.is_some_and(|more| more.contains(".so") && [".", "_", "ch"].iter().any(|s| more.starts_with(s)))
    });
    found.map(str::to_owned)
}

/// The files in a text like that of `/proc/self/maps`.
pub(crate) fn files(maps: &str) -> impl Iterator<Item = &str> {
    maps.lines().filter_map(|line| Some(&line[line.find('/')?..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpi_is_found_by_the_name_of_its_file() {
        let map = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 12 {path}\n7f02-7f03 rw-p 0 00:00 0\n");
        for path in ["/usr/lib/libmpi.so.40.30.4", "/opt/my mpi/libmpich.so.12", "/a/libmpi_abi.so.0"] {
            assert_eq!(in_maps(&map(path)).as_deref(), Some(path));
        }
        for path in [
            "/usr/lib/libpmix.so.2",
            "/home/libmpi/train",
            "/usr/share/libmpi.txt",
            "/a/libmpir.so.23",
            "[heap]",
            "",
        ] {
            assert_eq!(in_maps(&map(path)), None, "{path}");
        }
    }
}
