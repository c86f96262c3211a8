//! Which backend a job is to use for host memory.

use phalanx_core::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The backend that moves data in host memory; the same for all ranks of a job.
///
/// # Examples
/// ```
/// use phalanx_rendezvous::BackendChoice;
///
/// assert_eq!("shm".parse::<BackendChoice>()?, BackendChoice::Shm);
/// let error = "mpi".parse::<BackendChoice>().unwrap_err();
/// assert_eq!(error.to_string(), r#"configuration: "mpi" is no backend: choose auto, shm or tcp"#);
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum BackendChoice {
    /// Shared memory between ranks of one host where they can share it, TCP for the rest.
    #[default]
    Auto,
    /// Shared memory only: it is an error if ranks can't share it.
    Shm,
    /// TCP only, also between ranks of one host.
    Tcp,
}

impl FromStr for BackendChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Shm, Self::Tcp]
            .into_iter()
            .find(|choice| choice.to_string() == text)
            .ok_or_else(|| Error::config(format!("{text:?} is no backend: choose auto, shm or tcp")))
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        })
    }
}
