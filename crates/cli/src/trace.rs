//! `phalanx trace`: what the ranks of a job wrote of their latest operations, put together.

mod folder;

use crate::cli::Trace as Flags;
use phalanx_core::{Error, Result};
use phalanx_group::trace::{chrome, merged, verdict, verdict_json};
use std::path::PathBuf;

/// The text that the command prints.
pub(crate) fn text(flags: &Flags) -> Result<String> {
    let (mut text, mut files, mut folders) = (String::new(), Vec::new(), Vec::new());
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
        folders.push(folder.path.display().to_string());
    }
    let read = |file: PathBuf| {
        let text = std::fs::read(&file).map_err(|error| error.to_string());
        (file.display().to_string(), text)
    };
    let merged = merged(files.into_iter().map(read))?;
    if flags.json {
        let mut verdict = verdict_json(&merged);
        verdict["folders"] = folders.into();
        text = format!("{verdict}\n");
    } else {
        text += &verdict(&merged);
    }
    if let Some(file) = &flags.chrome {
        std::fs::write(file, chrome(&merged.traces).to_string())
            .map_err(|error| Error::io(format!("writing {}", file.display()), error))?;
        if !flags.json {
            text += &format!("{} can be opened in ui.perfetto.dev or chrome://tracing\n", file.display());
        }
    }
    Ok(text)
}
