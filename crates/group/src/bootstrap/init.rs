//! How a process becomes a rank.

use crate::ProcessGroup;
use crate::bootstrap::generation::processes::ProcessBootstrap;
use crate::bootstrap::generation::threads::ThreadBootstrap;
use crate::bootstrap::generation::{self, Assignment, Bootstrap};
use crate::bootstrap::launcher;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Result};
use phalanx_rendezvous::{Config, Lifeline};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Joins the job that the environment describes: phalanx's own variables (set by `phalanx run`), else torchrun's,
/// else a group of one. See [`Config`] for their names.
///
/// Collective among the processes of the job: returns when all of them have called it, in whatever order they start.
///
/// Before it returns, the ranks add up numbers whose sum is known. That is operation #1 of the group. `PHALANX_SELF_TEST=0`
/// leaves it out.
///
/// # Errors
/// [`WrongSum`](phalanx_core::Error::WrongSum): they did not add up right here; on other ranks this call, or the next, says that the group was aborted.
/// [`Config`](phalanx_core::Error::Config): variables are missing or make no sense, or another launcher (`mpirun`, `srun`, a Kubernetes job)
/// says that there are several processes, and nothing tells them how to meet (`PHALANX_ALONE=1` says that each is a job of its own). [`Rendezvous`](phalanx_core::Error::Rendezvous): the others did not come
/// within the one deadline of init; says who is missing. (A process that replaces a lost one waits for the survivors, which may take as long as an
/// operation, too.) A rank that gives up tells the others, which end with its reason.
/// [`Unavailable`](phalanx_core::Error::Unavailable): the launcher that started this process is gone; the process is killed 5 s later if it still runs.
///
/// # The launcher's end
/// From here on a process that `phalanx run` has started ends with its launcher: when that is killed, or ends first for whatever reason, this process
/// and all of its process group are killed at once, also behind `sh -c` and the like. What never calls `init` is reached only as a direct child of the launcher.
#[track_caller]
pub fn init() -> Result<ProcessGroup> {
    join(&Config::from_env()?)
}

/// As [`init`], with the configuration as an argument.
///
/// # Errors
/// As for [`init`].
#[track_caller]
pub fn join(config: &Config) -> Result<ProcessGroup> {
    // Also if nobody else is in the job: no rank outlives its launcher.
    let lifeline = Lifeline::open(config, &Deadline::after(Instant::now(), config.init_timeout))?;
    let joined = join_others(config);
    if let (Some(lifeline), Err(error)) = (lifeline, &joined) {
        launcher::gave_up(&lifeline, config, error);
    }
    joined
}

#[track_caller]
fn join_others(config: &Config) -> Result<ProcessGroup> {
    let selector = Selector::forced_from(config.algorithms.as_deref().unwrap_or_default())?;
    let job = config.secret.as_ref().filter(|_| config.world_size > 1 || config.elastic.is_some());
    let Some(secret) = job else { return alone(config.timeout, selector) };
    let processes = Arc::new(ProcessBootstrap::new(config.clone(), secret.clone(), selector));
    let bootstrap: Arc<dyn Bootstrap> = processes.clone();
    if let Some(elastic) = config.elastic {
        return generation::enter(&bootstrap, config.worker, elastic);
    }
    let deadline = Deadline::after(Instant::now(), config.init_timeout);
    let open = Arc::new(config.open_store(&deadline)?);
    if open.server.is_some() {
        processes.keep(open.clone());
    }
    let roster = (0..config.world_size as u64).collect();
    generation::found(&bootstrap, Assignment::new(0, config.rank, roster), &open, &deadline)
}

/// The group of a process that is a job of its own.
fn alone(timeout: Duration, selector: Selector) -> Result<ProcessGroup> {
    Ok(threads(1, timeout, selector)?.pop().expect("one group was created"))
}

/// The first generation of ranks that are threads.
fn threads(world_size: usize, timeout: Duration, selector: Selector) -> Result<Vec<ProcessGroup>> {
    let bootstrap: Arc<dyn Bootstrap> = Arc::new(ThreadBootstrap::new(timeout, Arc::new(selector)));
    let deadline = Deadline::after(Instant::now(), timeout);
    let open = bootstrap.open(&BTreeSet::new(), &deadline)?;
    let roster: Vec<u64> = (0..world_size as u64).collect();
    let assignment = |rank| Assignment::new(0, rank, roster.clone());
    (0..world_size).map(|rank| generation::found(&bootstrap, assignment(rank), &open, &deadline)).collect()
}

/// Groups whose ranks are threads of this process: for tests, examples, and for code that need not leave the process.
#[derive(Debug)]
pub struct SimulatedBackend;

impl SimulatedBackend {
    /// A group of `world_size` ranks: give each thread one of them. Operations may take 10 minutes.
    ///
    /// # Panics
    /// If `world_size` is 0.
    pub fn create_group(world_size: usize) -> Vec<ProcessGroup> {
        Self::create_group_with(world_size, Duration::from_secs(600), "").expect("no algorithm is forced")
    }

    /// As [`create_group`](Self::create_group), with the time limit of operations, and algorithms to use instead of the recommended
    /// ones (`all_reduce=ring,broadcast=binomial`).
    ///
    /// # Errors
    /// [`Config`](phalanx_core::Error::Config) for an algorithm that does not exist.
    ///
    /// # Panics
    /// If `world_size` is 0.
    pub fn create_group_with(
        world_size: usize,
        timeout: Duration,
        algorithms: &str,
    ) -> Result<Vec<ProcessGroup>> {
        assert!(world_size > 0, "a group has at least one rank");
        threads(world_size, timeout, Selector::forced_from(algorithms)?)
    }
}
