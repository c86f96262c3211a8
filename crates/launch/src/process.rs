//! The process of one rank: started so that it cannot outlive the launcher, watched, signalled, reaped.

#[cfg(unix)]
#[path = "process/ends.rs"]
mod ends;
#[cfg(not(unix))]
#[path = "process/other.rs"]
mod os;
#[cfg(unix)]
#[path = "process/unix.rs"]
mod os;

#[cfg(unix)]
pub(crate) use ends::Ends;
#[cfg(not(unix))]
pub(crate) use os::Ends;
pub(crate) use os::Process;
