//! The backends that can be measured.

use clap::ValueEnum;
use serde::Serialize;

/// The backend that carries the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// What `phalanx::init()` chooses
    Auto,
    /// Shared memory between processes
    Shm,
    /// TCP between processes
    Tcp,
    /// Threads of one process
    Thread,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Thread => "thread",
        }
    }
}
