//! The choice between this crate's backends for host memory.

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
