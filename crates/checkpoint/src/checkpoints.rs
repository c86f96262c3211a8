//! The checkpoints of a training: saved, found and loaded by all ranks together.

use crate::checkpoint::Checkpoint;
use crate::file::Finding;
use crate::layout::{Layout, Table};
use crate::lock::{self, Attempt, Holder, Lock};
use crate::manifest;
use crate::saving::Saving;
use crate::state::State;
use crate::{Error, Result, folder};
use phalanx::{CallSite, ProcessGroup};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

/// How often the folder's lock is tried, and how long between: others may have it for a moment, to look after the folder.
const LOCK_ATTEMPTS: usize = 30;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// A folder of checkpoints, as one rank of the group that writes and reads them.
///
/// All ranks must see the same folder. Every method that returns a `Result` is collective: each rank calls it, in the same
/// order, and all return alike.
///
/// # Examples
/// Two ranks save, one goes on:
/// ```
/// use phalanx::threads;
/// use phalanx_checkpoint::{Checkpoints, Result, State};
///
/// # let temporary = std::env::temp_dir().join(format!("phalanx-checkpoints-{}", std::process::id()));
/// # let folder = temporary.as_path();
/// std::thread::scope(|ranks| {
///     for group in threads(2) {
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
/// let alone = &threads(1)[0];
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
    /// Whether the folder is ours to write into.
    is_claimed: bool,
    /// On rank 0.
    lock: Option<Arc<Lock>>,
}

/// The result of rank 0's attempt to claim the folder.
#[derive(Serialize, Deserialize)]
enum Claim {
    /// The folder is claimed, under this token.
    Ours(u64),
    /// The file system has no locks.
    Unlocked,
    /// The folder is gone, of which the save will tell.
    Gone,
    Taken(Option<Holder>),
}

impl Checkpoints {
    /// Makes the folder if there is none, and removes what killed runs have left in it, unless another job is at work there.
    ///
    /// Any job may load what is in a folder. One alone saves: from its first save on, until rank 0 drops this or ends, the folder is locked
    /// for others. What that rests on, `docs/reference/checkpoint.md` says.
    ///
    /// # Errors
    /// [`Error::Refused`] on all ranks if rank 0 can't do that; those of the group.
    ///
    /// # Examples
    /// ```
    /// use phalanx_checkpoint::Checkpoints;
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// let folder = temporary.path().join("checkpoints");
    /// let group = &phalanx::threads(1)[0];
    /// assert!(Checkpoints::open(&folder, group)?.latest_good()?.is_none());
    /// assert!(folder.is_dir());
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    #[track_caller]
    pub fn open(folder: impl Into<PathBuf>, group: &ProcessGroup) -> Result<Self> {
        let (folder, group) = (folder.into(), group.clone());
        let (keep, timeout, saving, is_claimed, lock) =
            (usize::MAX, Duration::from_secs(600), None, false, None);
        let this = Self { folder, group, keep, timeout, saving, is_claimed, lock };
        this.by_rank_0(&this.group(), || folder::prepare(&this.folder))?;
        Ok(this)
    }

    /// Keeps only the newest `keep` checkpoints, at least one: after each save older ones are deleted. All are kept unless this is called.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut checkpoints = checkpoints.keep(2);
    /// for step in [1, 2, 3] {
    ///     checkpoints.save(step, State::new())?;
    /// }
    /// assert!(checkpoints.load(1).is_err());
    /// assert_eq!(checkpoints.load(2)?.step(), 2);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    #[must_use]
    pub fn keep(mut self, keep: usize) -> Self {
        self.keep = keep;
        self
    }

    /// How long a rank may take to write its file: ten minutes unless this is called.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let minute = std::time::Duration::from_secs(60);
    /// checkpoints.timeout(minute).save(7, State::new())?;
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
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
    /// [`save_async`](Self::save_async) before, in which case this save was not begun. [`Error::FolderTaken`] if another job saves into this
    /// folder. Those of the group.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let weights = [1.0f32, 2.0];
    /// let mut state = State::new();
    /// state.slice("weights", &[2], &weights);
    /// checkpoints.save(7, state)?;
    /// assert_eq!(checkpoints.load(7)?.read::<f32>("weights")?, weights);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut weights = [1.0f32, 2.0];
    /// let mut state = State::new();
    /// state.slice("weights", &[2], &weights);
    /// checkpoints.save_async(7, state)?;
    /// weights[0] = 3.0; // the next step: what is written was copied
    /// checkpoints.wait()?;
    /// assert_eq!(checkpoints.load(7)?.read::<f32>("weights")?, [1.0, 2.0]);
    /// # assert_eq!(weights, [3.0, 2.0]);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
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
        self.claim(&group, step)?;
        let path = match self.by_rank_0(&group, || folder::create_temporary(&self.folder, step)) {
            Err(Error::Refused { what }) => return Err(Error::NotSaved { step, causes: vec![(0, what)] }),
            name => self.folder.join(name?),
        };
        let place = (group.rank(), group.world_size());
        self.saving = Some(Saving::begin(&state, layout, (step, path), place, self.timeout));
        Ok(())
    }

    /// Makes the folder this job's own, at its first save.
    fn claim(&mut self, group: &ProcessGroup, step: u64) -> Result<()> {
        if self.is_claimed {
            return Ok(());
        }
        let mut lock = None;
        let claim = self.by_rank_0(group, || {
            let (found, claim) = claim(&self.folder);
            lock = found;
            Ok(claim)
        })?;
        match claim {
            Claim::Ours(token) => lock::remember(token),
            Claim::Unlocked => {}
            Claim::Gone => return Ok(()),
            Claim::Taken(holder) => {
                // Of a rank of this very job, which the others have given up and which is not dead?
                let are_known = group.all_gather_object(&lock::knows(holder.as_ref()))?;
                if !are_known.contains(&true) {
                    let holder = holder.map_or_else(|| "another job".to_owned(), |holder| holder.to_string());
                    return Err(Error::FolderTaken { step, folder: self.folder.clone(), holder });
                }
                let token = self.by_rank_0(group, || {
                    let doing = format!("taking over the lock of folder {}", self.folder.display());
                    let taken = lock::take_over(&self.folder).map_err(Error::io(doing))?;
                    let token = taken.holder.token;
                    lock = Some(taken);
                    Ok(token)
                })?;
                lock::remember(token);
            }
        }
        (self.is_claimed, self.lock) = (true, lock);
        Ok(())
    }

    /// Waits until the last [`save_async`](Self::save_async) is a checkpoint on the disk; returns at once if there is none.
    ///
    /// # Errors
    /// [`Error::NotSaved`]: some rank could not write, or not in time; each error is returned once. Those of the group.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// checkpoints.wait()?; // nothing is being saved
    /// checkpoints.save_async(7, State::new())?;
    /// checkpoints.wait()?; // now it is on the disk
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
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
    /// that are skipped, because files are lost or not what was written, are named in a warning. One that can't be read for another reason is not
    /// skipped: it may be good.
    ///
    /// # Cost
    /// Each file is read once by one of the ranks, to hash it.
    ///
    /// # Errors
    /// [`Error::NoneGood`] if there are checkpoints, but none is good. [`Error::Unreadable`] and [`Error::OtherFormat`] for the newest that is not
    /// damaged. Those of [`wait`](Self::wait), and of the group.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// assert!(checkpoints.latest_good()?.is_none());
    /// checkpoints.save(7, State::new())?;
    /// checkpoints.save(8, State::new())?;
    /// let found = checkpoints.latest_good()?.expect("two were saved");
    /// assert_eq!(found.step(), 8);
    /// std::fs::write(found.path().join("manifest.json"), "rubbish").unwrap();
    /// assert_eq!(checkpoints.latest_good()?.expect("one is good").step(), 7);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
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
    /// [`Error::Damaged`], also if there is none; [`Error::Unreadable`]; [`Error::OtherFormat`]. Those of [`wait`](Self::wait), and of the group.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// checkpoints.save(7, State::new())?;
    /// assert_eq!(checkpoints.load(7)?.step(), 7);
    /// assert!(checkpoints.load(8).is_err());
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    #[track_caller]
    pub fn load(&mut self, step: u64) -> Result<Checkpoint> {
        self.wait()?;
        let (group, path) = (self.group(), folder::of_step(&self.folder, step));
        // All ranks read the same text, so all come to the same opinion of it.
        let read = || fs::read_to_string(path.join(manifest::NAME));
        let unread = |error| Finding::unread(manifest::NAME, &error);
        let text = match self.by_rank_0(&group, || Ok(read().map_err(unread)))? {
            Ok(text) => text,
            Err(finding) => return Err(judged(path, vec![(0, finding)])),
        };
        let checkpoint = Checkpoint::new(path.clone(), step, &text)?;
        let findings = group.all_gather_object(&checkpoint.findings(group.rank(), group.world_size()))?;
        let by_rank = |(rank, findings): (usize, Vec<Finding>)| findings.into_iter().map(move |f| (rank, f));
        let findings: Vec<_> = findings.into_iter().enumerate().flat_map(by_rank).collect();
        if findings.is_empty() { Ok(checkpoint) } else { Err(judged(path, findings)) }
    }

    /// The group for one call: others may be late by as long as a file may take.
    #[track_caller]
    fn group(&self) -> ProcessGroup {
        let timeout = self.timeout.saturating_add(self.group.timeout());
        self.group.with_timeout(timeout).with_call_site(CallSite::caller())
    }

    /// Has rank 0 do something, and tells all ranks what came of it.
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
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// assert_eq!(checkpoints.folder(), folder.path());
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// The error that the ranks' findings come to. A file that can't be read outweighs damage, which may follow from it.
fn judged(path: PathBuf, findings: Vec<(usize, Finding)>) -> Error {
    let unread = findings.iter().filter(|(_, finding)| finding.is_unreadable);
    let causes: Vec<_> = unread.map(|(rank, finding)| (*rank, finding.what.clone())).collect();
    if !causes.is_empty() {
        return Error::Unreadable { path, causes };
    }
    let mut findings: Vec<String> = findings.into_iter().map(|(_, finding)| finding.what).collect();
    findings.sort();
    findings.dedup();
    Error::Damaged { path, findings }
}

/// Claims the folder for this job, on rank 0.
fn claim(folder: &Path) -> (Option<Arc<Lock>>, Claim) {
    let mut attempts = 1;
    loop {
        match lock::attempt(folder) {
            Attempt::Held(lock) => {
                let token = lock.holder.token;
                return (Some(lock), Claim::Ours(token));
            }
            // One of ours is known at once.
            Attempt::Taken(holder) if attempts == LOCK_ATTEMPTS || lock::knows(holder.as_ref()) => {
                return (None, Claim::Taken(holder));
            }
            Attempt::Taken(_) => {
                attempts += 1;
                sleep(LOCK_PAUSE);
            }
            Attempt::Impossible(error) if error.kind() == ErrorKind::NotFound => return (None, Claim::Gone),
            Attempt::Impossible(error) => {
                let folder = folder.display();
                tracing::warn!(%error, "folder {folder} can't be locked: see to it that no other job saves there");
                return (None, Claim::Unlocked);
            }
        }
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
