//! Folders and files of the workspace, in order.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of all packages, relative to the root.
pub(super) fn packages(root: &Path) -> Vec<String> {
    let mut packages = vec!["fuzz".to_owned(), "xtask".to_owned()];
    for folder in ["crates", "examples"] {
        let inside = entries(&root.join(folder)).into_iter().filter(|path| path.join("Cargo.toml").exists());
        packages.extend(inside.map(|path| format!("{folder}/{}", file_name(&path))));
    }
    packages
}

/// Adds all files with an extension in a folder and the folders in it.
pub(super) fn collect(dir: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for path in entries(dir) {
        if path.is_dir() {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
}

pub(super) fn entries(dir: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<_> = read.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
