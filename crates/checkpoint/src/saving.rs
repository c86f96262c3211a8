//! A checkpoint on its way to the disk: this rank's part of it, on a thread of its own.

use crate::file::{self, Run};
use crate::layout::{Layout, Parts};
use crate::manifest::{self, FileInfo, Manifest, Place, Tensor};
use crate::{Error, Result, folder};
use crate::{State, TensorInfo};
use phalanx::backend::Deadline;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Advice where one rank does not see what another wrote.
const SHARED: &str = "do all hosts share this folder?";

/// A rank's message to the others when its file is on the disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    file: FileInfo,
    /// The offsets of its runs, in the order of the layout.
    offsets: Vec<u64>,
    /// JSON: the encoding of objects between ranks can't carry values of unknown type.
    rank_values: String,
}

/// A save that has begun.
#[derive(Debug)]
pub(crate) struct Saving {
    pub(crate) step: u64,
    /// The folder into which the checkpoint is written.
    pub(crate) path: PathBuf,
    layout: Layout,
    values: BTreeMap<String, Value>,
    rank_values: String,
    written: Receiver<Result<(FileInfo, Vec<u64>)>>,
    deadline: Deadline,
}

impl Saving {
    /// Copies what `rank` writes of `state`, and begins to write it to the folder `path`, which must be done within `limit`.
    /// What goes wrong is told by [`outcome`](Self::outcome).
    pub(crate) fn begin(
        state: &State<'_>,
        layout: Layout,
        (step, path): (u64, PathBuf),
        (rank, world_size): (usize, usize),
        limit: Duration,
    ) -> Self {
        let (sender, written) = channel();
        let to = path.join(format!("rank-{rank:05}-of-{world_size:05}.safetensors"));
        let started = copy(state, &layout, rank).and_then(|runs| {
            let (sender, doing) = (sender.clone(), format!("starting a thread that writes {}", to.display()));
            let write = move || {
                // Nobody listens any more if the time was over.
                let _ = sender.send(write(&to, &runs));
            };
            thread::Builder::new().name("phalanx-checkpoint".into()).spawn(write).map_err(Error::io(doing))
        });
        if let Err(error) = started {
            let _ = sender.send(Err(error));
        }
        let rank_values = serde_json::to_string(&state.rank_values).expect("JSON values are JSON");
        let deadline = Deadline::after(Instant::now(), limit);
        Self { step, path, layout, values: state.values.clone(), rank_values, written, deadline }
    }

    /// Waits until this rank's file is on the disk.
    pub(crate) fn outcome(&self) -> Result<Report, String> {
        let outcome = self.written.recv_timeout(self.deadline.remaining(Instant::now()));
        let (file, offsets) = match outcome {
            Ok(written) => written.map_err(|error| error.to_string())?,
            Err(RecvTimeoutError::Timeout) => {
                let (path, limit) = (self.path.display(), self.deadline.limit().as_secs_f64());
                return Err(format!("its file in {path} was not on the disk within {limit} s"));
            }
            Err(RecvTimeoutError::Disconnected) => return Err("the thread that writes panicked".to_owned()),
        };
        Ok(Report { file, offsets, rank_values: self.rank_values.clone() })
    }

    /// Makes a checkpoint of what all ranks have written. Done by one rank, which must see all their files.
    pub(crate) fn commit(self, folder: &Path, reports: Vec<Report>) -> Result<()> {
        let unseen = |what| {
            let doing = format!("looking for the files of all ranks in {}", self.path.display());
            Error::io(doing)(std::io::Error::other(format!("{what} ({SHARED})")))
        };
        reports
            .iter()
            .try_for_each(|report| file::verify_size(&self.path, &report.file))
            .map_err(|finding| unseen(finding.what))?;
        let manifest = manifest(self.step, &self.layout, self.values, &reports);
        let path = self.path.join(manifest::NAME);
        let write = || {
            let mut file = fs::File::create_new(&path)?;
            file.write_all(manifest.seal()?.as_bytes())?;
            file.sync_all()?;
            folder::sync(&self.path)
        };
        write().map_err(Error::io(format!("writing {}", path.display())))?;
        folder::commit(folder, self.step, &self.path)
    }
}

/// Copies what `rank` writes, in the order of the layout.
fn copy(state: &State<'_>, layout: &Layout, rank: usize) -> Result<Vec<Run>> {
    let wholes = state.wholes.iter().chain(&state.of_rank_0);
    let wholes: HashMap<&str, _> = wholes.map(|whole| (whole.name.as_str(), whole)).collect();
    let piece = |name: &str, elements: &std::ops::Range<usize>| {
        let of_name = state.pieces.iter().find(|piece| piece.name == name && piece.elements == *elements);
        &of_name.expect("the layout is made of what each rank has").copy
    };
    let copy = |(name, info, elements): (&str, &TensorInfo, &std::ops::Range<usize>)| {
        let copy = wholes.get(name).map_or_else(|| piece(name, elements), |whole| &whole.copy);
        let bytes = copy(elements.clone())?;
        let expected = elements.len() * info.dtype.size();
        if bytes.len() != expected {
            let what =
                format!("elements {elements:?} of tensor `{name}` were given as {} bytes", bytes.len());
            return Err(Error::Tensors(format!("{what}, not {expected}").into()));
        }
        // A part has a name that says so, and no shape but its length.
        let whole = info.elements() == Some(elements.len());
        let (name, shape) = match whole {
            true => (name.to_owned(), info.shape.clone()),
            false => (format!("{name}[{}..{}]", elements.start, elements.end), vec![elements.len()]),
        };
        Ok(Run { name, info: TensorInfo { dtype: info.dtype, shape }, bytes })
    };
    layout.of_rank(rank).map(copy).collect()
}

/// The folder was made by one rank for all.
fn write(path: &Path, runs: &[Run]) -> Result<(FileInfo, Vec<u64>)> {
    file::write(path, runs).map_err(|error| match error {
        Error::Io { doing, source } if source.kind() == ErrorKind::NotFound => {
            Error::Io { doing: format!("{doing} ({SHARED})"), source }
        }
        error => error,
    })
}

fn manifest(step: u64, layout: &Layout, values: BTreeMap<String, Value>, reports: &[Report]) -> Manifest {
    let mut offsets: Vec<_> = reports.iter().map(|report| report.offsets.iter().copied()).collect();
    let mut tensors = BTreeMap::new();
    for (name, Parts { info, parts }) in &layout.0 {
        let place = |part: &crate::layout::Part| Place {
            elements: part.elements.clone(),
            file: part.rank,
            offset: offsets[part.rank].next().unwrap_or(u64::MAX),
        };
        let places = parts.iter().map(place).collect();
        tensors.insert(name.clone(), Tensor { info: info.clone(), places });
    }
    let files = reports.iter().map(|report| report.file.clone()).collect();
    let of_rank = |report: &Report| serde_json::from_str(&report.rank_values).unwrap_or_default();
    let rank_values = reports.iter().map(of_rank).collect();
    Manifest::new(step, files, tensors).with_values(values, rank_values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_is_waited_for_no_longer_than_was_said() {
        let (sender, written) = channel();
        let saving = Saving {
            step: 1,
            path: "/checkpoints/step-00000001.tmp-0".into(),
            layout: Layout(BTreeMap::new()),
            values: BTreeMap::new(),
            rank_values: "{}".to_owned(),
            written,
            deadline: Deadline::after(Instant::now(), Duration::from_millis(250)),
        };
        let told = saving.outcome().unwrap_err();
        assert_eq!(told, "its file in /checkpoints/step-00000001.tmp-0 was not on the disk within 0.25 s");
        drop(sender);
        assert_eq!(saving.outcome().unwrap_err(), "the thread that writes panicked");
    }
}
