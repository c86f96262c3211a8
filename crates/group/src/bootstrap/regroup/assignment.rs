//! One worker's place in a generation.

use super::watch::Watch;
use phalanx_core::{Error, Result};
use phalanx_rendezvous::Workers;
use std::sync::Arc;
use std::time::Duration;

/// A place in a generation.
#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub(crate) generation: u64,
    pub(crate) rank: usize,
    /// The workers, in rank order.
    pub(crate) roster: Vec<u64>,
    /// The watch over the others while they come together, in a generation that forms.
    pub(crate) watch: Option<Arc<Watch>>,
}

impl Assignment {
    pub(crate) fn new(generation: u64, rank: usize, roster: Vec<u64>) -> Self {
        Self { generation, rank, roster, watch: None }
    }

    /// Whether all the workers that are to come still live, as far as the launcher knows and as their beats show; asked now and then
    /// while they are waited for.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] with who has ended, or is silent.
    pub(crate) fn check(&self, launcher: Option<&Workers>, waited: Duration) -> Result<()> {
        let has_ended = |worker: &u64| launcher.is_some_and(|workers| workers.ended.contains(worker));
        let silent = self.watch.as_ref().map(|watch| watch.silent()).unwrap_or_default();
        let is_lost = |worker: &u64| has_ended(worker) || silent.contains(worker);
        let Some(rank) = self.roster.iter().position(is_lost) else { return Ok(()) };
        let worker = self.roster[rank];
        let how = match &self.watch {
            Some(watch) if !has_ended(&worker) => {
                format!(
                    "has shown no sign of life for {} s (stopped, or cut off?)",
                    watch.limit().as_secs_f64()
                )
            }
            _ => "ended before all had come".into(),
        };
        let what = format!("rank {rank}, which is worker {worker}, {how}");
        Err(Error::Rendezvous { rank: self.rank, world_size: self.roster.len(), what, waited })
    }
}
