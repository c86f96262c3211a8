//! A rank with its host and process, for people.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A rank of the job and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// Rank in the job (not in a subgroup).
    pub rank: usize,
    /// Host name and process, as `host:pid`; a thread's name for ranks in one process.
    pub host: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.rank, self.host)
    }
}
