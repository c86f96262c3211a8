//! How long hosts of a job wait for each other.

use crate::program::Program;
use phalanx_core::Result;
use phalanx_rendezvous::TimeLimits;
use std::time::Duration;

/// How often each end of a session says that it is there: several times before the other gives it up.
pub(crate) const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// How long something that does not know the secret is called again: it may be the launcher of the job before this one, which is about to leave.
pub(super) const STRANGER_TIME: Duration = Duration::from_secs(5);
/// How long agents may take to end when the job is over, before the leader leaves without them: as long as a process may take to vanish after SIGKILL.
pub(super) const LEAVE_TIME: Duration = Duration::from_secs(10);
/// How often a launcher that waits for another looks what else has happened.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The limits that can be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long the hosts may take to come together, as their ranks.
    pub(crate) join: Duration,
    /// How long the other end of a session may say nothing; `None`: for ever. Three fifths of what a rank may: a host is named before its ranks are,
    /// and its processes are gone within the whole.
    pub(crate) silence: Option<Duration>,
}

impl Limits {
    pub(crate) fn of(program: &Program) -> Result<Self> {
        let limits =
            TimeLimits::from_lookup(|name| Some(program.value(name)?.to_string_lossy().into_owned()))?;
        Ok(Self { join: limits.init_timeout, silence: limits.heartbeat_timeout.map(|limit| limit * 3 / 5) })
    }
}
