//! NCCL's own connections in a job that encrypts: from 2.32.3 on NCCL encrypts its sockets when it is given a key, if it was built so.

use crate::load::{Nccl, Version};
use crate::sys::nccl::RawEncryption;
use phalanx_core::{Error, Result};
use phalanx_group::Encryption;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const SINCE: Version = Version { major: 2, minor: 32, patch: 3 };

/// Why `nccl` would send in the clear whatever key it is given. Asked, it says nothing: a key is taken by every build, and only the first
/// connection fails in those without TLS.
pub(crate) fn lack(nccl: Nccl) -> Option<String> {
    let version = nccl.version();
    if version < SINCE || nccl.table().set_encryption.function.is_none() {
        return Some(format!("NCCL {version} can't encrypt, which came with {SINCE}"));
    }
    let path = nccl.path();
    match opens_tls(path) {
        Ok(true) => None,
        Ok(false) => Some(format!("{nccl} was built without TLS (TLS_BACKEND=OPENSSL3)")),
        Err(error) => Some(format!("whether {nccl} was built with TLS could not be found out: {error}")),
    }
}

/// The traffic between hosts that a key does not cover, if there is some.
pub(crate) fn lack_of_network() -> Option<String> {
    let is_sockets = std::env::var("NCCL_NET").is_ok_and(|net| net.eq_ignore_ascii_case("socket"));
    let words = "between hosts NCCL may go over InfiniBand or a plugin, which it does not encrypt: set NCCL_NET=Socket";
    (!is_sockets).then(|| words.into())
}

/// Gives NCCL the job's key, before it connects anything.
///
/// # Errors
/// [`Library`](Error::Library): it was refused. [`Config`](Error::Config): NCCL has that of another job; it has one a process.
pub(crate) fn give_key(nccl: Nccl, encryption: &Encryption) -> Result<()> {
    static GIVEN: Mutex<Option<String>> = Mutex::new(None);
    let key = encryption.key_for("nccl");
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*given {
        Some(other) if *other == key => return Ok(()),
        Some(_) => {
            return Err(Error::config("NCCL has one key a process, and has that of another job already"));
        }
        None => {}
    }
    let set = nccl.table().set_encryption.of(&nccl)?;
    let c_key = CString::new(key.clone()).expect("hexadecimal digits");
    let config = RawEncryption::with_key(&c_key);
    // SAFETY: the configuration and the key in it are there during the call, and NCCL copies them.
    let code = unsafe { set(&raw const config) };
    nccl.check("ncclSetEncryption", code, None)?;
    *given = Some(key);
    Ok(())
}

/// Whether the library in the file `path` can open OpenSSL, whose name then stands among its constants.
fn opens_tls(path: &Path) -> io::Result<bool> {
    const NAME: &[u8] = b"libssl.so";
    let constants = section(&File::open(path)?, b".rodata")?;
    Ok(constants.windows(NAME.len()).any(|bytes| bytes == NAME))
}

/// A section of an ELF file of 64 bits.
fn section(file: &File, name: &[u8]) -> io::Result<Vec<u8>> {
    const BYTES_MAX: u64 = 1 << 28;
    const HEADER: u64 = 64;
    let no_elf = || io::Error::other("no ELF file of 64 bits");
    let read = |at: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len.min(BYTES_MAX)).map_err(|_| no_elf())?];
        let mut file = file;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut bytes).map(|()| bytes)
    };
    let number = |bytes: &[u8], at: usize, len: usize| {
        let bytes = bytes.get(at..at + len).unwrap_or_default();
        bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    let header = read(0, HEADER)?;
    if header[..6] != *b"\x7fELF\x02\x01" {
        return Err(no_elf());
    }
    let (at, len) = (number(&header, 40, 8), number(&header, 58, 2));
    let (count, names) = (number(&header, 60, 2), number(&header, 62, 2));
    let sections = read(at, len * count)?;
    let entry = |n: u64| sections.get(usize::try_from(n * len).ok()?..).filter(|entry| entry.len() >= 40);
    let content = |entry: &[u8]| read(number(entry, 24, 8), number(entry, 32, 8));
    let names = content(entry(names).ok_or_else(no_elf)?)?;
    let is_it = |entry: &&[u8]| {
        let called = usize::try_from(number(entry, 0, 4)).ok().and_then(|at| names.get(at..));
        called.is_some_and(|called| called.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0)))
    };
    (0..count).filter_map(entry).find(is_it).map_or_else(|| Err(no_elf()), content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_among_the_constants_of_a_program_is_found() {
        let this = File::open(std::env::current_exe().unwrap()).unwrap();
        let constants = section(&this, b".rodata").unwrap();
        let word = std::hint::black_box("a word that stands nowhere else: 8f1b");
        assert!(constants.windows(word.len()).any(|bytes| bytes == word.as_bytes()));
        assert!(section(&this, b".roda").is_err() && section(&this, b".no-such").is_err());
    }

    #[test]
    fn what_is_no_library_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for bytes in [&b""[..], b"\x7fELF", &[b'x'; 200], &program[..64], &program[..4096]] {
            std::fs::write(&path, bytes).unwrap();
            opens_tls(&path).unwrap_err();
        }
        // The table of sections is said to be anywhere.
        for at in 40..64 {
            let mut bytes = program[..4096].to_vec();
            bytes[at] = 0xff;
            std::fs::write(&path, bytes).unwrap();
            opens_tls(&path).unwrap_err();
        }
    }
}
