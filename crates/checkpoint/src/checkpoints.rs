//! The checkpoints of a training: saved, found and loaded by all ranks together.

use crate::checkpoint::Checkpoint;
use crate::layout::{Layout, Table};
use crate::manifest;
use crate::saving::Saving;
use crate::state::State;
use crate::{Error, Result, folder};
use phalanx::{CallSite, ProcessGroup};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder of checkpoints, as one rank of the group that writes and reads them.
///
/// All ranks must see the same folder. Every method that returns a `Result` is collective: each rank calls it, in the same
/// order, and all return alike.
///
/// # Examples
/// Two ranks save, one goes on:
/// ```
/// use phalanx::SimulatedBackend;
/// use phalanx_checkpoint::{Checkpoints, Result, State};
///
/// # let temporary = std::env::temp_dir().join(format!("phalanx-checkpoints-{}", std::process::id()));
/// # let folder = temporary.as_path();
/// std::thread::scope(|ranks| {
///     for group in SimulatedBackend::create_group(2) {
///         ranks.spawn(move || -> Result<()> {
///             let mut checkpoints = Checkpoints::open(folder, &group)?.keep(3);
///             let weights = [1.0f32; 6]; // the same on both
///             let moments = [group.rank() as f32; 3]; // each has one half of them
///             let mut state = State::new();
///             state.slice("weights", &[2, 3], &weights);
///             state.piece("moments", &[2, 3], 3 * group.rank(), &moments);
///             state.value("epoch", &4)?;
///             checkpoints.save(1200, state)
///         });
///     }
/// });
///
/// let alone = &SimulatedBackend::create_group(1)[0];
/// let found = Checkpoints::open(folder, alone)?.latest_good()?.expect("one was saved");
/// assert_eq!((found.step(), found.world_size()), (1200, 2));
/// assert_eq!(found.read::<f32>("moments")?, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
/// assert_eq!(found.value::<u64>("epoch")?, 4);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), phalanx_checkpoint::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    group: ProcessGroup,
    keep: usize,
    timeout: Duration,
    saving: Option<Saving>,
}

impl Checkpoints {
    /// Makes the folder if there is none, and removes what killed runs have left in it. No two jobs may use a folder at a time.
    ///
    /// # Errors
    /// [`Error::Refused`] on all ranks if rank 0 can't do that; those of the group.
    #[track_caller]
    pub fn open(folder: impl Into<PathBuf>, group: &ProcessGroup) -> Result<Self> {
        let (folder, group) = (folder.into(), group.clone());
        let this = Self { folder, group, keep: usize::MAX, timeout: Duration::from_secs(600), saving: None };
        this.by_rank_0(&this.group(), || folder::prepare(&this.folder))?;
        Ok(this)
    }

    /// Keeps only the newest `keep` checkpoints, at least one: after each save older ones are deleted. All are kept unless this is called.
    #[must_use]
    pub fn keep(mut self, keep: usize) -> Self {
        self.keep = keep;
        self
    }

    /// How long a rank may take to write its file: ten minutes unless this is called.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Saves `state` as the checkpoint of `step`, in the place of one that is there. When this returns it is on the disk.
    ///
    /// # Cost
    /// A copy of what this rank writes, in memory until it is written: with n bytes that all ranks have alike, n / P, and its
    /// pieces. Three object collectives; the file is written and synchronised once.
    ///
    /// # Errors
    /// [`Error::State`] if the ranks' states don't fit together, [`Error::NotSaved`] if some rank can't write; also that of a
    /// [`save_async`](Self::save_async) before, in which case this save was not begun. Those of the group.
    #[track_caller]
    pub fn save(&mut self, step: u64, state: State<'_>) -> Result<()> {
        self.save_async(step, state)?;
        self.wait()
    }

    /// As [`save`](Self::save), but returns as soon as this rank's part is copied: a thread writes it. The ranks agree on the outcome in
    /// the next [`wait`](Self::wait), `save`, or load; until then it is no checkpoint. At the end of a program call `wait`.
    ///
    /// # Errors
    /// As for [`save`](Self::save); what goes wrong while it is written is returned by that next call.
    #[track_caller]
    pub fn save_async(&mut self, step: u64, state: State<'_>) -> Result<()> {
        self.wait()?;
        let group = self.group();
        let tables = group.all_gather_object(&(step, Table::of(&state)))?;
        if let Some(rank) = tables.iter().position(|(other, _)| *other != tables[0].0) {
            let what = format!("rank 0 saves step {}, rank {rank} step {}", tables[0].0, tables[rank].0);
            return Err(Error::State { step, what });
        }
        let tables: Vec<Table> = tables.into_iter().map(|(_, table)| table).collect();
        let layout = Layout::agreed(&tables).map_err(|what| Error::State { step, what })?;
        let path = match self.by_rank_0(&group, || folder::create_temporary(&self.folder, step)) {
            Err(Error::Refused { what }) => return Err(Error::NotSaved { step, causes: vec![(0, what)] }),
            name => self.folder.join(name?),
        };
        let place = (group.rank(), group.world_size());
        self.saving = Some(Saving::begin(&state, layout, (step, path), place, self.timeout));
        Ok(())
    }

    /// Waits until the last [`save_async`](Self::save_async) is a checkpoint on the disk; returns at once if there is none.
    ///
    /// # Errors
    /// [`Error::NotSaved`]: some rank could not write, or not in time; each error is returned once. Those of the group.
    #[track_caller]
    pub fn wait(&mut self) -> Result<()> {
        let Some(saving) = self.saving.take() else { return Ok(()) };
        let (group, step) = (self.group(), saving.step);
        let (mut reports, mut causes) = (Vec::new(), Vec::new());
        for (rank, outcome) in group.all_gather_object(&saving.outcome())?.into_iter().enumerate() {
            match outcome {
                Ok(report) => reports.push(report),
                Err(cause) => causes.push((rank, cause)),
            }
        }
        let path = saving.path.clone();
        let commit = || if causes.is_empty() { saving.commit(&self.folder, reports) } else { Ok(()) };
        match self.by_rank_0(&group, commit) {
            Err(Error::Refused { what }) => causes.push((0, what)),
            outcome => outcome?,
        }
        if causes.is_empty() {
            tracing::debug!(step, folder = %self.folder.display(), "checkpoint saved");
            self.tidy_up(|| folder::prune(&self.folder, step, self.keep));
            return Ok(());
        }
        self.tidy_up(|| folder::remove(&path));
        Err(Error::NotSaved { step, causes })
    }

    /// The newest checkpoint all of whose files are what was written, as all ranks see them; `None` if there is no checkpoint. Those
    /// that are skipped are named in a warning.
    ///
    /// # Cost
    /// Each file is read once by one of the ranks, to hash it.
    ///
    /// # Errors
    /// [`Error::NoneGood`] if there are checkpoints, but none is good. Those of [`wait`](Self::wait), and of the group.
    #[track_caller]
    pub fn latest_good(&mut self) -> Result<Option<Checkpoint>> {
        self.wait()?;
        let mut damaged = Vec::new();
        for step in self.by_rank_0(&self.group(), || folder::steps(&self.folder))? {
            match self.load(step) {
                Err(error @ Error::Damaged { .. }) => {
                    if self.group.rank() == 0 {
                        tracing::warn!("{error}; looking for an older one");
                    }
                    damaged.push(error.to_string());
                }
                found => return found.map(Some),
            }
        }
        if damaged.is_empty() {
            return Ok(None);
        }
        Err(Error::NoneGood { folder: self.folder.clone(), damaged })
    }

    /// The checkpoint of `step`.
    ///
    /// # Cost
    /// As for [`latest_good`](Self::latest_good).
    ///
    /// # Errors
    /// [`Error::Damaged`], also if there is none. Those of [`wait`](Self::wait), and of the group.
    #[track_caller]
    pub fn load(&mut self, step: u64) -> Result<Checkpoint> {
        self.wait()?;
        let (group, path) = (self.group(), folder::of_step(&self.folder, step));
        let damaged = |findings| Error::Damaged { path: path.clone(), findings };
        // All ranks read the same text, so all come to the same opinion of it.
        let read = || fs::read_to_string(path.join(manifest::NAME));
        let text = self.by_rank_0(&group, || Ok(read().map_err(|error| error.to_string())))?;
        let text = text.map_err(|why| damaged(vec![format!("{} can't be read: {why}", manifest::NAME)]))?;
        let checkpoint = Checkpoint::new(path.clone(), step, &text).map_err(|what| damaged(vec![what]))?;
        let findings = checkpoint.findings(group.rank(), group.world_size());
        let mut findings: Vec<String> = group.all_gather_object(&findings)?.into_iter().flatten().collect();
        findings.sort();
        findings.dedup();
        if findings.is_empty() { Ok(checkpoint) } else { Err(damaged(findings)) }
    }

    /// The group for one call: others may be late by as long as a file may take.
    #[track_caller]
    fn group(&self) -> ProcessGroup {
        let timeout = self.timeout.saturating_add(self.group.timeout());
        self.group.with_timeout(timeout).with_call_site(CallSite::caller())
    }

    /// What rank 0 finds or does for all.
    fn by_rank_0<V: Serialize + DeserializeOwned>(
        &self,
        group: &ProcessGroup,
        act: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        let outcome = (group.rank() == 0).then(|| act().map_err(|error| error.to_string()));
        group.broadcast_object(outcome, 0)?.map_err(|what| Error::Refused { what })
    }

    /// Removes what is no longer needed. To fail in that does not make the training fail.
    fn tidy_up(&self, remove: impl FnOnce() -> Result<()>) {
        if self.group.rank() == 0
            && let Err(error) = remove()
        {
            tracing::warn!(folder = %self.folder.display(), "{error}");
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(Saving { step, path, .. }) = &self.saving {
            let path = path.display();
            tracing::error!("the checkpoint of step {step} was given up in {path}: nobody waited for it");
        }
    }
}
