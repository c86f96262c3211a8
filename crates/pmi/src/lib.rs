//! The channels that launchers give the processes they start, for one purpose: one process says a few words, and all hear them.
//!
//! | channel | given by |
//! |---|---|
//! | [`pmi`]: PMI-1, lines of text over a descriptor | `mpiexec.hydra` of MPICH and of Intel MPI, `srun --mpi=pmi2` |
//! | [`pmix`]: PMIx, by its library, found at run time | `mpirun` of Open MPI, `srun --mpi=pmix` |
//!
//! PMI-2, the successor of PMI-1, is not here: whatever speaks it over a descriptor speaks PMI-1 as well.
//!
//! Deliberately absent: who the processes are and what they say to each other; MPI.
//!
//! ```no_run
//! use phalanx_core::Deadline;
//! use std::time::{Duration, Instant};
//!
//! # fn main() -> Result<(), phalanx_pmi::Fault> {
//! let rank: usize = std::env::var("PMI_RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
//! let descriptor = std::env::var("PMI_FD").ok().and_then(|fd| fd.parse().ok()).unwrap_or(-1);
//! let soon = Deadline::after(Instant::now(), Duration::from_secs(60));
//! let words = (rank == 0).then_some("10.0.0.7:41234");
//! let heard = phalanx_pmi::pmi::share(descriptor, "meeting", words, &soon)?;
//! assert_eq!(heard, "10.0.0.7:41234"); // on each
//! # Ok(())
//! # }
//! ```

#[cfg(unix)]
mod descriptor;
mod fault;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod loaded_mpi;
#[cfg(unix)]
pub mod pmi;
#[cfg(unix)]
pub mod pmix;
#[cfg(any(unix, feature = "__fuzz"))]
mod talk;

pub use fault::Fault;
pub use loaded_mpi::loaded_mpi;
