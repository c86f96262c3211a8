//! A file that holds the job's secret.

use phalanx_core::{Error, Result};
use rustix::process::geteuid;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

/// More than a secret and the white space around it needs.
const LEN_MAX: u64 = 1 << 10;

/// Reads a file that belongs to us and that nobody else may read or write.
pub(crate) fn read(path: &str) -> Result<String> {
    let failed = |e| Error::io(format!("reading the job's secret from {path}"), e);
    let file = File::open(path).map_err(failed)?;
    // Of the open file, so that it can't be exchanged between the look and the reading.
    let metadata = file.metadata().map_err(failed)?;
    if metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return Err(Error::config(format!(
            "{path} holds the job's secret, so it must be ours and nobody else's to read (mode {:03o}, user {}): chmod 600 it",
            metadata.mode() & 0o777,
            metadata.uid(),
        )));
    }
    let mut text = String::new();
    file.take(LEN_MAX).read_to_string(&mut text).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => Error::config(format!("{path} holds no secret: it is not text")),
        _ => failed(e),
    })?;
    Ok(text)
}
