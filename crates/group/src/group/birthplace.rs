//! A group belongs to the process that made it, and to none that was forked from it later.

use phalanx_core::{Error, OpKind};

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
