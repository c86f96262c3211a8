//! Backends for host memory: schedules over a transport, shared memory, and both for groups over several hosts.

pub(crate) mod backend_choice;
#[cfg(target_os = "linux")]
pub(crate) mod call_thread;
pub(crate) mod choose_backend;
pub(crate) mod forced;
#[cfg(target_os = "linux")]
pub(crate) mod hierarchical;
pub(crate) mod host_context;
pub(crate) mod job_links;
pub(crate) mod neighbours;
pub(crate) mod registry;
pub(crate) mod scheduled;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
pub(crate) mod stage;
