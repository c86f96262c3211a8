//! `phalanx trace`: what the ranks of a job wrote of their latest operations, put together.

mod chrome;
mod verdict;

use crate::cli::Trace as Flags;
use phalanx_core::{Error, Result};
use phalanx_group::trace::Trace;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The text that the command prints.
pub(crate) fn text(flags: &Flags) -> Result<String> {
    let traces = read(&flags.files)?;
    let mut text = verdict::text(&traces);
    if let Some(file) = &flags.chrome {
        std::fs::write(file, chrome::json(&traces).to_string())
            .map_err(|error| Error::io(format!("writing {}", file.display()), error))?;
        text += &format!("{} can be opened in ui.perfetto.dev or chrome://tracing\n", file.display());
    }
    Ok(text)
}

/// One trace a rank, in rank order.
fn read(files: &[PathBuf]) -> Result<Vec<Trace>> {
    let mut traces: BTreeMap<usize, (&Path, Trace)> = BTreeMap::new();
    for file in files {
        let shown = file.display();
        let text = std::fs::read(file).map_err(|error| Error::io(format!("reading {shown}"), error))?;
        let trace: Trace = serde_json::from_slice(&text)
            .map_err(|error| Error::config(format!("{shown} is not what a rank wrote: {error}")))?;
        let (rank, world_size) = (trace.rank, trace.world_size);
        if let Some((other, first)) = traces.values().next()
            && first.world_size != world_size
        {
            let (other, size) = (other.display(), first.world_size);
            let what = format!("{shown} is from a job of {world_size} ranks, {other} from one of {size}");
            return Err(Error::config(what));
        }
        if let Some((other, _)) = traces.insert(rank, (file, trace)) {
            return Err(Error::config(format!("{shown} and {} are both from rank {rank}", other.display())));
        }
    }
    Ok(traces.into_values().map(|(_, trace)| trace).collect())
}
