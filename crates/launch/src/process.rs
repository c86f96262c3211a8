//! The process of one rank: started so that it cannot outlive the launcher, watched, signalled, reaped.

#[cfg(not(unix))]
#[path = "process/other.rs"]
mod os;
#[cfg(unix)]
#[path = "process/unix.rs"]
mod os;

pub(crate) use os::Process;
