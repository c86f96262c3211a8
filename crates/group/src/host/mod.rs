//! Backends for host memory: schedules over a transport, shared memory, and both for groups over several hosts.

mod at_once;
pub(crate) mod backend_registry;
pub(crate) mod call_check;
pub(crate) mod call_queue;
pub(crate) mod call_thread;
pub(crate) mod choose_backend;
pub(crate) mod forced;
#[cfg(target_os = "linux")]
pub(crate) mod hierarchical;
pub(crate) mod host_context;
pub(crate) mod job_links;
#[cfg(target_os = "linux")]
mod meeting;
pub(crate) mod memory_sharing;
pub(crate) mod own_health;
mod owned_operation;
mod recv_any;
pub(crate) mod scheduled;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
pub(crate) mod workspace;

/// What moves the data in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendChoice {
    /// Shared memory between ranks of one host where they can share it, the job's links for the rest.
    Auto,
    /// Shared memory only: it is an error if ranks can't share it.
    Shm,
    /// The job's links only, which are TCP unless a program has registered others.
    Links,
}
