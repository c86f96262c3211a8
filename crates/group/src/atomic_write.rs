//! Atomic file replacement: write a temporary file, then rename it.

use phalanx_core::{Error, Result};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Makes `text` what is in `file`, whose folder is made too. Whoever reads it meanwhile finds what was there before, or this whole;
/// and after an error what was there before, and nothing beside it.
pub(crate) fn atomic_write(file: &Path, text: &[u8]) -> Result<()> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let fresh = file.with_extension(format!("{}.{number}", std::process::id()));
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    let written = folder.and_then(|()| fs::write(&fresh, text)).and_then(|()| fs::rename(&fresh, file));
    written.map_err(|error| {
        let _ = fs::remove_file(&fresh);
        Error::io(format!("writing {}", file.display()), error)
    })
}
