//! A group belongs to the process that made it, and to none that was forked from it later.

use crate::ProcessGroup;
use phalanx_core::{Error, OpKind, Result};

#[cfg(target_os = "linux")]
pub(crate) use phalanx_shm::QuickBirthplace;
#[cfg(not(target_os = "linux"))]
pub(crate) use phalanx_transport::Birthplace as QuickBirthplace;

/// Why an operation is refused in a forked process.
pub(crate) fn refusal(op: OpKind, rank: usize, birthplace: QuickBirthplace) -> Error {
    let (here, parent) = (std::process::id(), birthplace.pid());
    let what = format!(
        "process {here} was forked from rank {rank} (process {parent}), and the group works only there: its threads are not \
         in the child, and its connections belong to the parent"
    );
    Error::misuse(op, what)
}

impl ProcessGroup {
    /// Refuses in a process that was forked from the one that made the group.
    pub(crate) fn check_process(&self, op: OpKind) -> Result<()> {
        if self.birthplace.is_here() { Ok(()) } else { Err(refusal(op, self.rank(), self.birthplace)) }
    }
}
