//! What callers see of NCCL's versions, by its sources. `PHALANX_DOUBLE=version=22105` makes it 2.21.5.

use crate::fault;

pub(crate) fn version() -> u64 {
    fault::number("version").unwrap_or(22_899)
}

/// What goes on behind a caller's back is kept in memory of the calling thread.
pub(crate) fn keeps_jobs_in_threads() -> bool {
    version() < 22_700
}

/// Asking for a communicator's state ends a job that is over; before that only the next use of the communicator does.
pub(crate) fn ends_jobs_when_asked() -> bool {
    version() >= 22_600
}

/// A launch for which nothing must be connected is made on the calling thread, also where communicators do not block.
pub(crate) fn launches_in_caller() -> bool {
    version() < 22_300
}

/// An abort waits for a job that another thread began.
pub(crate) fn joins_jobs_of_other_threads() -> bool {
    version() >= 21_900
}

/// A thread whose last job is not over can't begin a group, and hears there what came of the job.
pub(crate) fn has_busy_groups() -> bool {
    (21_803..21_900).contains(&version())
}
