//! The kept inputs of a fuzz target: one archive, so that the list of files is the project's.
//!
//! The same inputs make the same archive, byte for byte: entries in the order of their names, without times and owners.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Puts the inputs of `archive` into the folder `into`, which is emptied first.
pub(crate) fn unpack(archive: &Path, into: &Path) -> io::Result<()> {
    if into.exists() {
        fs::remove_dir_all(into)?;
    }
    fs::create_dir_all(into)?;
    for (name, input) in read(archive)? {
        fs::write(into.join(name), input)?;
    }
    Ok(())
}

/// Makes `archive` of all files in the folder `from`.
pub(crate) fn pack(from: &Path, archive: &Path) -> io::Result<()> {
    let mut inputs = BTreeMap::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        inputs.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
    }
    write(archive, &inputs)
}

/// Adds the contents of `files` to `archive`, under their names.
pub(crate) fn add(archive: &Path, files: &[impl AsRef<Path>]) -> io::Result<()> {
    let mut inputs = read(archive)?;
    for file in files.iter().map(AsRef::as_ref) {
        let name =
            file.file_name().ok_or_else(|| io::Error::other(format!("{} is no file", file.display())))?;
        inputs.insert(name.to_string_lossy().into_owned(), fs::read(file)?);
    }
    write(archive, &inputs)
}

fn read(archive: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut inputs = BTreeMap::new();
    for entry in tar::Archive::new(GzDecoder::new(File::open(archive)?)).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let name = path.file_name().ok_or_else(|| io::Error::other("an entry has no name"))?;
        let mut input = Vec::new();
        entry.read_to_end(&mut input)?;
        inputs.insert(name.to_string_lossy().into_owned(), input);
    }
    Ok(inputs)
}

fn write(archive: &Path, inputs: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    let mut packed = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for (name, input) in inputs {
        let mut header = tar::Header::new_ustar();
        header.set_size(input.len() as u64);
        header.set_mode(0o644);
        packed.append_data(&mut header, name, input.as_slice())?;
    }
    fs::write(archive, packed.into_inner()?.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A new folder for one test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("phalanx-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_is_packed_comes_out_again() {
        let folder = folder("corpus");
        let (from, into, archive) = (folder.join("from"), folder.join("into"), folder.join("a.tar.gz"));
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("b"), [0, 255, 10]).unwrap();
        fs::write(from.join("a"), "").unwrap();
        pack(&from, &archive).unwrap();
        let first = fs::read(&archive).unwrap();
        unpack(&archive, &into).unwrap();
        pack(&into, &archive).unwrap();
        assert_eq!(fs::read(&archive).unwrap(), first, "the same inputs made another archive");

        fs::write(folder.join("found"), "crash").unwrap();
        add(&archive, &[folder.join("found")]).unwrap();
        // What lies there of an earlier run goes.
        fs::write(into.join("stale"), "").unwrap();
        unpack(&archive, &into).unwrap();
        let inputs = read(&archive).unwrap();
        let names: Vec<_> = inputs.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b", "found"]);
        assert_eq!(fs::read(into.join("b")).unwrap(), [0, 255, 10]);
        assert_eq!(fs::read_dir(&into).unwrap().count(), 3);
        fs::remove_dir_all(folder).unwrap();
    }
}
