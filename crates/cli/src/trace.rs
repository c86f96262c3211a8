//! `phalanx trace`: what the ranks of a job wrote of their latest operations, put together.

mod folder;

use crate::cli::Trace as Flags;
use phalanx_core::{Error, Result};
use phalanx_group::trace::{chrome, merged, verdict};
use std::path::PathBuf;

/// The text that the command prints.
pub(crate) fn text(flags: &Flags) -> Result<String> {
    let (mut text, mut files) = (String::new(), Vec::new());
    for path in &flags.files {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let folder = folder::newest(path)?;
        if folder.of > 1 || folder.path != *path {
            text += &format!("read {}", folder.path.display());
            text += &if folder.of > 1 {
                format!(", the newest of {} folders with traces\n", folder.of)
            } else {
                "\n".into()
            };
        }
        files.extend(folder.files);
    }
    let read = |file: PathBuf| {
        let text = std::fs::read(&file).map_err(|error| error.to_string());
        (file.display().to_string(), text)
    };
    let merged = merged(files.into_iter().map(read))?;
    text += &verdict(&merged);
    if let Some(file) = &flags.chrome {
        std::fs::write(file, chrome(&merged.traces).to_string())
            .map_err(|error| Error::io(format!("writing {}", file.display()), error))?;
        text += &format!("{} can be opened in ui.perfetto.dev or chrome://tracing\n", file.display());
    }
    Ok(text)
}
