//! A group belongs to the process that made it, and to none that was forked from it later.

use phalanx_core::{Error, OpKind};

#[cfg(target_os = "linux")]
pub(crate) use phalanx_shm::QuickOwnerProcess;
#[cfg(not(target_os = "linux"))]
pub(crate) use phalanx_transport::OwnerProcess as QuickOwnerProcess;

/// Why an operation is refused in a forked process.
pub(crate) fn refusal(op: OpKind, rank: usize, owner_process: QuickOwnerProcess) -> Error {
    let (here, parent) = (std::process::id(), owner_process.pid());
    let what = format!(
        "process {here} was forked from rank {rank} (process {parent}), and the group works only there: its threads are not \
         in the child, and its connections belong to the parent"
    );
    Error::misuse(op, what)
}
