//! How a process becomes a rank.

use crate::ProcessGroup;
use crate::bootstrap::launcher;
use crate::bootstrap::regroup::processes::ProcessBootstrap;
use crate::bootstrap::regroup::{self, Assignment, Bootstrap};
use crate::bootstrap::start::Start;
use crate::bootstrap::threads::first_generation;
use crate::host::backend_registry::{BackendKind, chosen_kind};
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{Config, Lifeline, StoreLocation};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Joins the job that the environment describes: phalanx's own variables (set by `phalanx run`), else torchrun's, else those of another launcher
/// (Open MPI, MPICH, Intel MPI, Slurm), through whose channel the ranks meet; else a group of one. See [`Config`] for their names.
///
/// Collective among the processes of the job: returns when all of them have called it, in whatever order they start.
///
/// Before it returns, the ranks add up numbers whose sum is known. That is operation #1 of the group. `PHALANX_SELF_TEST=0`
/// leaves it out.
///
/// # Errors
/// [`WrongSum`](phalanx_core::Error::WrongSum): they did not add up right here; on other ranks this call, or the next, says that the group was aborted.
/// [`Config`](phalanx_core::Error::Config): variables are missing or make no sense, or another launcher (`mpirun`, `srun`, a Kubernetes job)
/// says that there are several processes, and they have no way to meet (`PHALANX_ALONE=1` says that each is a job of its own). [`Rendezvous`](phalanx_core::Error::Rendezvous): the others did not come
/// within the one deadline of init; says who is missing. (A process that replaces a lost one waits for the survivors, which may take as long as an
/// operation, too.) A rank that gives up tells the others, which end with its reason.
/// [`Unavailable`](phalanx_core::Error::Unavailable): the launcher that started this process is gone; the process is killed 5 s later if it still runs.
///
/// # The launcher's end
/// From here on a process that `phalanx run` has started ends with its launcher: when that is killed, or ends first for whatever reason, this process
/// and all of its process group are killed at once, also behind `sh -c` and the like. What never calls `init` is reached only as a direct child of the launcher.
///
/// # Examples
/// ```
/// let group = phalanx_group::init()?;
/// println!("rank {} of {}", group.rank(), group.world_size()); // without a launcher: rank 0 of 1
/// group.finalize()?;
/// # Ok::<(), phalanx_group::Error>(())
/// ```
#[track_caller]
pub fn init() -> Result<ProcessGroup> {
    join(&Config::from_env()?)
}

/// As [`init`], with the configuration as an argument.
///
/// # Errors
/// As for [`init`].
///
/// # Examples
/// ```
/// use phalanx_rendezvous::Config;
/// use std::time::Duration;
///
/// let mut config = Config::from_env()?;
/// config.timeout = Duration::from_secs(60);
/// let group = phalanx_group::join(&config)?;
/// assert_eq!(group.timeout(), Duration::from_secs(60));
/// # Ok::<(), phalanx_group::Error>(())
/// ```
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
    if config.reproducible {
        selector.forced.keys().try_for_each(|op| selector.check_rank_order(*op))?;
    }
    // Before anybody is met: a name that nobody registered is refused here.
    let kind = chosen_kind(config)?;
    let deadline = Deadline::after(Instant::now(), config.init_timeout);
    // Such a store goes with the last handle of rank 0's group; one that rank 0 starts for a launcher's channel stays as long as its process.
    let store_goes = config.rank > 0 && matches!(config.store, StoreLocation::Tcp { host_it: true, .. });
    let config = &config.met(&deadline)?;
    let job = config.secret.as_ref().filter(|_| config.world_size > 1 || config.elastic.is_some());
    let Some(secret) = job else {
        let group = alone(config.timeout, kind, selector)?;
        return Ok(if config.reproducible { group.reproducible() } else { group });
    };
    let processes = Arc::new(ProcessBootstrap::new(config.clone(), secret.clone(), selector));
    let bootstrap: Arc<dyn Bootstrap> = processes.clone();
    if let Some(elastic) = config.elastic {
        return regroup::enter(&bootstrap, config.worker, elastic);
    }
    let roster: Vec<u64> = (0..config.world_size as u64).collect();
    loop {
        let open = Arc::new(config.open_store(&deadline)?);
        if open.server.is_some() {
            processes.keep(open.clone());
        }
        let assignment = Assignment::new(0, config.rank, roster.clone());
        match regroup::found(&bootstrap, assignment, &open, &deadline) {
            // It was the store of the group before, which rank 0 has given up by now. It starts another.
            Err(Error::Io { .. })
                if store_goes
                    && Start::any_was_joined()
                    && !processes.has_begun()
                    && !deadline.has_passed(Instant::now()) => {}
            outcome => return outcome,
        }
    }
}

/// The group of a process that is a job of its own.
fn alone(timeout: Duration, kind: Arc<dyn BackendKind>, selector: Selector) -> Result<ProcessGroup> {
    Ok(first_generation(1, timeout, kind, selector)?.pop().expect("one group was created"))
}
