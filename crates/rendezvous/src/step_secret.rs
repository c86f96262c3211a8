//! The secret of the launchers in a step of Slurm: that of node rank 0 makes it, and the others read it from a private file.

use crate::other_launchers::trimmed;
use crate::shared_file::SharedFile;
use crate::slurm;
use phalanx_core::{Deadline, Error, Result};
use phalanx_pmi::Fault;
use phalanx_transport::Secret;
use std::fmt;

/// A secret that the launchers of a step of Slurm share. The drop of that of node rank 0 removes the file.
pub struct StepSecret {
    secret: Secret,
    written: Option<SharedFile>,
}

impl StepSecret {
    /// The secret of the step of Slurm in which this process is, as `lookup` says: made and written by the launcher of node rank 0, and
    /// waited for by the others. `None`: this is no step of Slurm.
    ///
    /// # Errors
    /// [`Error::Config`]: there is no directory for the file, it can't be written or read, or it did not come before the deadline.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Deadline;
    /// use phalanx_rendezvous::StepSecret;
    /// use std::time::{Duration, Instant};
    ///
    /// let deadline = Deadline::after(Instant::now(), Duration::from_secs(120));
    /// assert!(StepSecret::share(|_| None, 0, &deadline)?.is_none()); // not under Slurm
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn share(
        lookup: impl Fn(&str) -> Option<String>,
        node_rank: usize,
        deadline: &Deadline,
    ) -> Result<Option<Self>> {
        let set = trimmed(lookup);
        let Some(file) = slurm::meeting_file(&set)? else { return Ok(None) };
        let unshared = |fault| {
            let why = match fault {
                Fault::Late(what) => format!("{what} did not come in time"),
                Fault::Unusable(why) => why,
            };
            Error::config(format!(
                "the launchers of a step of Slurm share a secret by a file, but {why}; set {} to a directory that all hosts see, or give all the same \
                 secret: --secret-file or PHALANX_SECRET",
                slurm::SHARED_DIR
            ))
        };
        if node_rank == 0 {
            let secret = Secret::generate()?;
            file.write(&secret.to_hex()).map_err(unshared)?;
            return Ok(Some(Self { secret, written: Some(file) }));
        }
        let words = file.read(deadline).map_err(unshared)?;
        Ok(Some(Self { secret: Secret::from_hex(&words)?, written: None }))
    }

    /// The secret.
    ///
    /// # Examples
    /// As of [`share`](Self::share):
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use phalanx_rendezvous::StepSecret;
    /// # use std::time::Instant;
    /// # let deadline = Deadline::after(Instant::now(), std::time::Duration::ZERO);
    /// if let Some(shared) = StepSecret::share(|_| None, 0, &deadline)? {
    ///     let secret = shared.secret();
    /// }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn secret(&self) -> &Secret {
        &self.secret
    }
}

impl Drop for StepSecret {
    fn drop(&mut self) {
        if let Some(file) = &self.written {
            file.remove();
        }
    }
}

impl fmt::Debug for StepSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepSecret").field("written", &self.written).finish_non_exhaustive()
    }
}
