//! One rank's file: safetensors, hashed as it is written, and read again piece by piece.

use crate::TensorInfo;
use crate::folder;
use crate::manifest::{FileInfo, Hash};
use crate::{Error, Result};
use phalanx::DType;
use safetensors::tensor::{Dtype, Metadata, TensorInfo as Entry};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use twox_hash::XxHash3_64;

/// Bytes that are read at a time to be hashed.
const BLOCK: usize = 1 << 20;

/// A run of elements with its bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    /// As it is called in the file.
    pub(crate) name: String,
    pub(crate) info: TensorInfo,
    pub(crate) bytes: Vec<u8>,
}

fn dtype(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        _ => return None,
    })
}

/// Writes `runs` to a new file at `path`, down to the disk. Returns its size and hash, and where each run begins.
pub(crate) fn write(path: &Path, runs: &[Run]) -> Result<(FileInfo, Vec<u64>)> {
    let doing = || format!("writing {}", path.display());
    let Header { bytes: header, order, offsets } =
        header(runs).map_err(io::Error::other).map_err(Error::io(doing()))?;
    let write = || {
        let mut file = Hashed::new(BufWriter::with_capacity(BLOCK, File::create_new(path)?));
        file.write_all(&header)?;
        order.iter().try_for_each(|&run| file.write_all(&runs[run].bytes))?;
        file.flush()?;
        let (bytes, xxh3) = (file.bytes, Hash(file.hash.finish()));
        file.inner.into_inner()?.sync_all()?;
        folder::sync(path.parent().unwrap_or(Path::new(".")))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(FileInfo { name, bytes, xxh3 })
    };
    Ok((write().map_err(Error::io(doing()))?, offsets))
}

/// The header of a file, and the lengths of what follows.
struct Header {
    bytes: Vec<u8>,
    /// The runs as they stand in the file.
    order: Vec<usize>,
    /// The offset of each run in the file.
    offsets: Vec<u64>,
}

fn header(runs: &[Run]) -> Result<Header, String> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    // Wide elements first, so that all are aligned.
    order.sort_by_key(|&run| (Reverse(runs[run].info.dtype.size()), &runs[run].name));
    let mut entries = Vec::new();
    let (mut end, mut starts) = (0, vec![0; runs.len()]);
    for &at in &order {
        let Run { name, info, bytes } = &runs[at];
        let unknown = || format!("safetensors has no element type {}", info.dtype);
        let data_offsets = (end, end + bytes.len());
        let dtype = dtype(info.dtype).ok_or_else(unknown)?;
        entries.push((name.clone(), Entry { dtype, shape: info.shape.clone(), data_offsets }));
        (starts[at], end) = data_offsets;
    }
    let metadata = Metadata::new(None, entries).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let bytes = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    let offsets = starts.iter().map(|start| (bytes.len() + start) as u64).collect();
    Ok(Header { bytes, order, offsets })
}

/// A file that is damaged or can't be read, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Whether it may be good, and only can't be read.
    pub(crate) is_unreadable: bool,
    /// A sentence.
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn damage(what: impl Into<String>) -> Self {
        Self { is_unreadable: false, what: what.into() }
    }

    /// The file of this name can't be read.
    pub(crate) fn unread(name: &str, error: &io::Error) -> Self {
        // One that is not there is lost, and one that is no text has changed. Of any other nobody knows what is in it.
        let is_damage =
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData | ErrorKind::NotADirectory);
        Self { is_unreadable: !is_damage, what: format!("{name} can't be read: {error}") }
    }
}

/// Whether the file in `folder` is the one that was written: size and hash.
pub(crate) fn verify(folder: &Path, expected: &FileInfo) -> Result<(), Finding> {
    verify_size(folder, expected)?;
    let name = &expected.name;
    let found = File::open(folder.join(name)).and_then(hash);
    let found = found.map_err(|error| Finding::unread(name, &error))?;
    if found == expected.xxh3 {
        return Ok(());
    }
    Err(Finding::damage(format!("{name} has hash {found}, and should have {}", expected.xxh3)))
}

/// The hash of everything that is left to read.
fn hash(mut file: impl Read) -> io::Result<Hash> {
    let (mut hash, mut block) = (XxHash3_64::with_seed(0), vec![0; BLOCK]);
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(Hash(hash.finish())),
            Ok(n) => hash.write(&block[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// As [`verify`], but only the size.
pub(crate) fn verify_size(folder: &Path, expected: &FileInfo) -> Result<(), Finding> {
    let FileInfo { name, bytes, .. } = expected;
    match std::fs::metadata(folder.join(name)) {
        Ok(metadata) if metadata.len() == *bytes => Ok(()),
        Ok(metadata) => {
            Err(Finding::damage(format!("{name} has {} bytes, and should have {bytes}", metadata.len())))
        }
        Err(error) => Err(Finding::unread(name, &error)),
    }
}

/// Fills `buffer` with the bytes from `offset`.
pub(crate) fn read(path: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let mut read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(buffer)
    };
    read().map_err(Error::io(format!("reading {}", path.display())))
}

/// Counts and hashes what is written.
struct Hashed<W> {
    inner: W,
    hash: XxHash3_64,
    bytes: u64,
}

impl<W> Hashed<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: XxHash3_64::with_seed(0), bytes: 0 }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.write(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    fn run(name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Run {
        Run { name: name.into(), info: TensorInfo { dtype, shape: shape.to_vec() }, bytes: bytes.to_vec() }
    }

    #[test]
    fn others_can_read_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let runs = [
            run("bytes", DType::U8, &[3], &[1, 2, 3]),
            run("wide", DType::F64, &[1, 2], &[9; 16]),
            run("a[4..6]", DType::BF16, &[2], &[7; 4]),
        ];
        let (info, offsets) = write(&path, &runs).unwrap();
        let text = std::fs::read(&path).unwrap();
        assert_eq!((info.bytes, info.xxh3), (text.len() as u64, Hash(XxHash3_64::oneshot(&text))));
        let read = SafeTensors::deserialize(&text).unwrap();
        assert_eq!(read.len(), runs.len());
        for (Run { name, info, bytes }, offset) in runs.iter().zip(offsets) {
            let found = read.tensor(name).unwrap();
            assert_eq!((found.dtype(), found.shape()), (dtype(info.dtype).unwrap(), &info.shape[..]));
            assert_eq!(found.data(), bytes);
            assert_eq!(offset as usize % info.dtype.size(), 0, "aligned");
            let mut again = vec![0; bytes.len()];
            super::read(&path, offset, &mut again).unwrap();
            assert_eq!(&again, bytes);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_lost_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let (info, _) = write(&path, &[run("a", DType::U8, &[5], &[1, 2, 3, 4, 5])]).unwrap();
        let good = std::fs::read(&path).unwrap();
        verify(folder.path(), &info).unwrap();
        for bit in 0..8 * good.len() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bad).unwrap();
            let Finding { is_unreadable: false, what: told } = verify(folder.path(), &info).unwrap_err()
            else {
                panic!("it can be read")
            };
            assert!(
                told.starts_with("x.safetensors has hash ") && told.ends_with(&info.xxh3.to_string()),
                "{told}"
            );
        }
        std::fs::write(&path, &good[..good.len() - 1]).unwrap();
        let told = verify(folder.path(), &info).unwrap_err().what;
        assert!(
            told.ends_with(&format!("has {} bytes, and should have {}", good.len() - 1, good.len())),
            "{told}"
        );
        std::fs::remove_file(&path).unwrap();
        let lost = verify(folder.path(), &info).unwrap_err();
        assert!(!lost.is_unreadable && lost.what.contains("can't be read"), "{lost:?}");
    }

    #[test]
    fn a_read_that_a_signal_interrupts_goes_on() {
        /// Is interrupted before each byte.
        struct Interrupted(Vec<u8>, bool);
        impl Read for Interrupted {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 = !self.1;
                if self.1 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                self.0.pop().map_or(Ok(0), |byte| (&[byte][..]).read(buffer))
            }
        }
        let found = hash(Interrupted(vec![3, 2, 1], false)).unwrap();
        assert_eq!(found, Hash(XxHash3_64::oneshot(&[1, 2, 3])));
    }

    #[test]
    fn every_type_of_phalanx_has_one_in_safetensors() {
        assert!(DType::ALL.into_iter().all(|d| dtype(d).is_some_and(|s| s.bitsize() == 8 * d.size())));
    }
}
