//! `phalanx trace`: what the ranks of a job wrote of their latest operations, put together.

use crate::cli::Trace as Flags;
use phalanx_core::{Error, Result};
use phalanx_group::trace::{chrome, merged, verdict};
use std::path::PathBuf;

/// The text that the command prints.
pub(crate) fn text(flags: &Flags) -> Result<String> {
    let read = |file: &PathBuf| {
        let text =
            std::fs::read(file).map_err(|error| Error::io(format!("reading {}", file.display()), error))?;
        Ok((file.display().to_string(), text))
    };
    let traces = merged(flags.files.iter().map(read))?;
    let mut text = verdict(&traces);
    if let Some(file) = &flags.chrome {
        std::fs::write(file, chrome(&traces).to_string())
            .map_err(|error| Error::io(format!("writing {}", file.display()), error))?;
        text += &format!("{} can be opened in ui.perfetto.dev or chrome://tracing\n", file.display());
    }
    Ok(text)
}
