//! The memory of the process at the other end of a pipe, for what is lent there.

use crate::copy_probe::kernel_copies_are_worth_it;
use crate::other_process::{Process, pid_namespace, word_of};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::io::{Error, ErrorKind};

/// What a rank says of itself, in the words that it writes for all others. All zero before it has joined.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Identity {
    /// Says which rank it is, and is found at this address of its process.
    probe: AtomicU64,
    probe_addr: AtomicU64,
    /// Among whom the number of its process means what it means there.
    namespace: AtomicU64,
    /// Written last.
    pid: AtomicU32,
}

impl Identity {
    /// It is this process's, as rank `rank`.
    pub(crate) fn is_of(&self, rank: usize) {
        self.probe.store(word_of(rank), Ordering::Relaxed);
        self.probe_addr.store((&raw const self.probe).expose_provenance() as u64, Ordering::Relaxed);
        self.namespace.store(pid_namespace(), Ordering::Relaxed);
        self.pid.store(std::process::id(), Ordering::Release);
    }
}

/// What is known of the process at the other end.
#[derive(Debug, Default)]
pub(crate) enum PeerMemory {
    /// Nobody has looked.
    #[default]
    Unknown,
    OutOfReach,
    Reached(Process),
}

impl PeerMemory {
    /// The process of rank `peer`, if its memory can be read and written, and should be. Takes a descriptor the first time, and a millisecond if it is the
    /// first of this process.
    pub(crate) fn reach(&mut self, theirs: &Identity, own: &Identity, peer: usize) -> Option<&Process> {
        let has_joined = theirs.pid.load(Ordering::Acquire) != 0;
        if has_joined && let Self::Unknown = self {
            *self = Self::look(theirs, own, peer).map_or(Self::OutOfReach, Self::Reached);
        }
        match self {
            Self::Reached(process) => Some(process),
            Self::Unknown | Self::OutOfReach => None,
        }
    }

    fn look(theirs: &Identity, own: &Identity, peer: usize) -> Option<Process> {
        let pid = theirs.pid.load(Ordering::Relaxed);
        // In another container the number means another process: often this one.
        let is_here = theirs.namespace.load(Ordering::Relaxed) == own.namespace.load(Ordering::Relaxed);
        if !is_here || !is_worth_it() {
            return None;
        }
        let process = Process::open(pid).ok()?;
        // The right to write is the right to read.
        process.is_of_rank(peer, theirs.probe_addr.load(Ordering::Relaxed)).then_some(process)
    }
}

/// Tests lend whatever a measurement beside other tests says.
fn is_worth_it() -> bool {
    cfg!(test) || kernel_copies_are_worth_it()
}

/// Whether the process, or its memory, is gone.
pub(crate) fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || error.raw_os_error().is_some_and(|code| [libc::ESRCH, libc::EFAULT].contains(&code))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let word = || AtomicU64::new(0);
        Identity { probe: word(), probe_addr: word(), namespace: word(), pid: AtomicU32::new(0) }
    }

    #[test]
    fn only_the_rank_that_it_says_it_is_is_reached() {
        let (own, theirs) = (identity(), identity());
        own.is_of(0);
        let mut early = PeerMemory::default();
        assert!(early.reach(&theirs, &own, 1).is_none(), "it has not joined");
        theirs.is_of(1);
        assert!(early.reach(&theirs, &own, 1).is_some(), "now it has");
        let reach = |theirs: &Identity, peer| {
            let mut memory = PeerMemory::default();
            memory.reach(theirs, &own, peer).is_some()
        };
        assert!(reach(&theirs, 1));
        assert!(!reach(&theirs, 2), "another rank");
        theirs.namespace.store(1, Ordering::Relaxed);
        assert!(!reach(&theirs, 1), "in another container");
    }

    #[test]
    fn memory_that_is_gone_is_told_from_memory_that_is_kept() {
        let of = Error::from_raw_os_error;
        assert!(
            is_gone(&of(libc::ESRCH)) && is_gone(&of(libc::EFAULT)) && is_gone(&ErrorKind::NotFound.into())
        );
        assert!(!is_gone(&of(libc::EPERM)));
    }
}
