//! A file that holds the job's secret.

use phalanx_core::{Error, Result};
use phalanx_transport::Secret;
use std::fs::File;
use std::io::{self, Read};

/// More than a secret and the white space around it needs.
const LEN_MAX: u64 = 1 << 10;

/// The secret in a file that belongs to us and that nobody else may read or write.
///
/// # Errors
/// [`Error::Config`]: others may read it, or it holds no secret. [`Error::Io`]: it can't be read.
///
/// # Examples
/// ```
/// assert!(phalanx_rendezvous::read_secret("/no/such/file").is_err());
/// ```
pub fn read_secret(path: &str) -> Result<Secret> {
    Secret::from_hex(&read(path)?)
}

/// Reads a file that belongs to us and that nobody else may read or write.
pub(crate) fn read(path: &str) -> Result<String> {
    read_open(path, File::open(path))
}

/// The same, of a file at that path that is open by now.
pub(crate) fn read_open(path: &str, file: io::Result<File>) -> Result<String> {
    let failed = |e| Error::io(format!("reading the job's secret from {path}"), e);
    let file = file.map_err(failed)?;
    // Of the open file, so that it can't be exchanged between the look and the reading.
    is_private(path, &file.metadata().map_err(failed)?)?;
    let mut text = String::new();
    file.take(LEN_MAX).read_to_string(&mut text).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => Error::config(format!("{path} holds no secret: it is not text")),
        _ => failed(e),
    })?;
    Ok(text)
}

#[cfg(unix)]
fn is_private(path: &str, metadata: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    if metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(Error::config(format!(
        "{path} holds the job's secret, so it must be ours and nobody else's to read (mode {:03o}, user {}): chmod 600 it",
        metadata.mode() & 0o777,
        metadata.uid(),
    )))
}

/// This system does not tell who may read a file.
#[cfg(not(unix))]
fn is_private(path: &str, _metadata: &std::fs::Metadata) -> Result<()> {
    Err(Error::config(format!("PHALANX_SECRET_FILE={path} works on Unix only; set PHALANX_SECRET here")))
}
