//! The folders where Python's packages and conda put NCCL, in which the system does not look.

use std::path::{Path, PathBuf};

const FILE: &str = "libnccl.so.2";
/// The path in a Python environment to the folders of its versions.
const LIB: &str = "lib";
/// The path in such a version's folder where the wheels `nvidia-nccl-cu12` and `-cu13` have NCCL.
const WHEEL: &str = "site-packages/nvidia/nccl/lib";

/// The files of NCCL in the active environments: that of Python (`VIRTUAL_ENV`), and that of conda (`CONDA_PREFIX`), which has it as a package of its own, or as Python's.
pub(crate) fn of_environments() -> Vec<PathBuf> {
    let folder = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    find(folder("VIRTUAL_ENV").as_deref(), folder("CONDA_PREFIX").as_deref())
}

fn find(python: Option<&Path>, conda: Option<&Path>) -> Vec<PathBuf> {
    let of_conda = conda.map(|conda| conda.join(LIB).join(FILE));
    let places =
        python.into_iter().flat_map(wheels).chain(of_conda).chain(conda.into_iter().flat_map(wheels));
    places.filter(|file| file.is_file()).collect()
}

/// The folders where a wheel would be, newest Python first.
fn wheels(environment: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(environment.join(LIB)).into_iter().flatten().flatten();
    let minor = |path: &Path| path.file_name()?.to_str()?.strip_prefix("python3.")?.parse::<u32>().ok();
    let mut versions: Vec<_> =
        entries.filter_map(|entry| Some((minor(&entry.path())?, entry.path()))).collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    versions.into_iter().map(|(_, folder)| folder.join(WHEEL).join(FILE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_where_wheels_and_conda_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let (python, conda) = (folder.path().join("venv"), folder.path().join("conda"));
        let make = |file: PathBuf| {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            file
        };
        let wheel = |environment: &Path, version: &str| {
            make(environment.join("lib").join(version).join("site-packages/nvidia/nccl/lib/libnccl.so.2"))
        };
        assert!(find(Some(&python), Some(&conda)).is_empty());
        let expected = [
            wheel(&python, "python3.12"),
            wheel(&python, "python3.9"),
            make(conda.join("lib/libnccl.so.2")),
            wheel(&conda, "python3.11"),
        ];
        assert_eq!(find(Some(&python), Some(&conda)), expected);
        assert_eq!(find(None, None), Vec::<PathBuf>::new());
    }
}
