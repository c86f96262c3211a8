//! How a job went, for programs that read it.

use crate::outcome::Outcome;
use std::time::{Duration, SystemTime};

/// How a job ended, with what else is known of it: of [`Launch::report`](crate::Launch::report).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The job's name.
    pub job_id: String,
    /// How many ranks it had; 0 if none was started here.
    pub ranks: usize,
    /// How often the job was started again, or of an elastic job, how many processes were replaced.
    pub restarts: usize,
    /// When the launcher began.
    pub started: SystemTime,
    /// How long it took, until all output was written.
    pub took: Duration,
    /// How it ended.
    pub outcome: Outcome,
}
