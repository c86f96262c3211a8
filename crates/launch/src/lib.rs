//! Starts the ranks of a phalanx job, watches them, and cleans up.
//!
//! [`Launch`] describes a job of N copies of one program on this host; [`run`](Launch::run) starts them, shows
//! what they write line by line, and returns how it ended as an [`Outcome`], with an exit code and a report that
//! names the rank that failed first. The command `phalanx run` is this and flags.
//!
//! ```no_run
//! use phalanx_launch::Launch;
//!
//! // A program that starts its own ranks: itself, told by the environment which rank it is.
//! let myself = std::env::current_exe().expect("the path of this program");
//! let outcome = Launch::new(myself).args(std::env::args_os().skip(1)).ranks(4).run()?;
//! if !outcome.is_success() {
//!     eprintln!("{outcome}");
//! }
//! std::process::exit(outcome.exit_code());
//! # #[allow(unreachable_code)]
//! # Ok::<(), phalanx_core::Error>(())
//! ```
//!
//! # The environment of a rank
//! What this process has, except `PHALANX_ELASTIC`, `PHALANX_WORKER`, `PHALANX_SECRET_FILE`, `TORCHELASTIC_USE_AGENT_STORE` and, if it is
//! a rank itself (it has `PHALANX_RANK`), `PHALANX_TRACE_DIR`: what it was told as a rank of another job does not hold in this one. Then
//! what [`Launch::env`] adds, and on top, for each rank:
//!
//! | Variable | |
//! |---|---|
//! | `PHALANX_RANK`, `PHALANX_WORLD_SIZE`, `PHALANX_LOCAL_RANK`, `PHALANX_LOCAL_WORLD_SIZE`, `PHALANX_NODE_RANK` | who it is |
//! | `PHALANX_STORE` | `tcp://host:port` of the store, which the launcher hosts: there is no port to choose and none to lose to another program |
//! | `PHALANX_LIFELINE` | `host:port` of the launcher: a rank that has called `init` ends when the launcher does, behind whatever wrapper |
//! | `PHALANX_SECRET` | the job's secret, fresh for each start of it; not on any command line, in no log and in no error |
//! | `PHALANX_ENCRYPT` | left as it is; with `1` or `require` the launcher's store encrypts as the ranks do |
//! | `PHALANX_JOB_ID` | the job's name |
//! | `PHALANX_RESTART_COUNT` | how often the job was restarted before, or in an elastic job, how often the process of this rank was replaced |
//! | `PHALANX_ELASTIC`, `PHALANX_WORKER` | in an elastic job, its least and most ranks, and the number of this process among all that the job had |
//! | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `GROUP_RANK`, `GROUP_WORLD_SIZE`, `TORCHELASTIC_RUN_ID`, `TORCHELASTIC_RESTART_COUNT`, `TORCHELASTIC_MAX_RESTARTS` | the same under torchrun's names |
//! | `MASTER_ADDR`, `MASTER_PORT` | the launcher's host, as this one reaches it, and a port that was free there, for other software |
//! | `OMP_NUM_THREADS`, `RAYON_NUM_THREADS` | cores this process may use / ranks, at least 1; unless already set, here or by [`Launch::env`] |
//! | `GLIBC_TUNABLES` | has glibc keep the memory that a rank frees, up to 4 GiB at the end of its heap; unless already set, to nothing too |
//! | `PHALANX_TRACE_DIR` | with [`Launch::log_dir`], where ranks write what they did lately when something fails; unless already set |
//!
//! stdin is empty for every rank, except for rank 0 with [`Launch::stdin`]: N programs cannot share one keyboard, and in process groups of their
//! own they would be stopped for trying.
//!
//! # How a job ends
//! - **All ranks exit with 0**: [`Outcome::Success`].
//! - **A rank fails**: for half a second exits are collected. The rest get SIGTERM, the [grace period](Launch::grace), and SIGKILL. The report names the
//!   rank that failed first: the one that the ranks of a phalanx job have named over their lifelines, before any of them could end of it. If nobody has said anything, as in
//!   programs that don't use phalanx, a death by signal counts as the root, else the earliest exit. [`Failure`] says more.
//! - **A rank of an elastic job fails**: another process takes its place, or the job goes on without it, as
//!   [`Launch::elastic`] says. A process that did not live for 10 s is replaced after a pause of 0.1 s, which doubles each time, up to 5 s; through the store the others learn which processes have ended.
//! - **A job with [restarts](Launch::max_restarts) fails**: when the last rank is gone all are started again, unless the launcher
//!   was asked to end meanwhile.
//! - **The launcher is asked to end** by SIGINT, SIGTERM or SIGHUP: the same signal goes to all ranks, then as above. A
//!   second one kills at once. Signals that were ignored when the launcher started (`nohup`) stay ignored.
//! - **SIGUSR1 and SIGUSR2** end nothing: they are passed on to each rank's own process, unless it would die of it.
//! - **The launcher is killed**: every rank that has called `init` notices it and kills itself with all of its process group, also behind `sh -c`,
//!   `setpriv` or a script that started it. On Linux the kernel kills what the launcher itself has started. A program that a wrapper has started
//!   and that never calls `init` is out of reach.
//!
//! Signals go to a rank's process group, so they reach what it has started; and what it leaves behind in its group when
//! it ends is killed. Where there are no signals (Windows), to be asked to end is to be killed.
//!
//! # Several hosts
//! With [`Launch::node`] there is a launcher on each host, of which the first leads, and with [`Launch::remote_hosts`] it starts the others through ssh. All of the above holds
//! for the ranks of all hosts. What becomes of a host that is lost stands with [`Launch::node`].
//!
//! Deliberately absent: containers; a job that outlives the launcher that leads it.

mod attempts;
mod binding;
mod descriptors;
mod event;
mod exit_code;
mod exit_kind;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod headline;
mod hosts;
mod inbox;
mod job;
mod label;
mod launch;
mod lines;
mod logs;
mod outcome;
mod placement;
mod plan;
mod process;
mod program;
mod rank_process;
mod replacing;
mod report;
mod running;
#[cfg(unix)]
mod signals;
mod start;
mod start_error;
mod stdin;
mod stream;
mod supervise;
mod watcher;
mod writer;

pub use binding::Binding;
pub use exit_code::exit_code;
pub use exit_kind::ExitKind;
pub use headline::NamedBy;
pub use hosts::node::Node;
pub use hosts::ssh::RemoteHost;
pub use launch::Launch;
pub use outcome::{Failure, Outcome, Replacements, TAIL_LINES};
pub use phalanx_rendezvous::{
    Asking, Elastic, StepSecret, ThisHost, TimeLimits, host_name, read_secret, refuse_foreign_job,
    secret_of_environment,
};
pub use phalanx_transport::Secret;
pub use plan::RANKS_MAX;
pub use report::Report;
pub use running::Running;
pub use start::serve_agent;
