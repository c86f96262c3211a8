//! The process of a rank, here or on another host.

use crate::exit_kind::ExitKind;
use crate::hosts::remote::RemoteProcess;
use crate::process::{Ends, Process};
use crate::stream::Output;
use std::io;

/// A running rank.
pub(crate) enum RankProcess {
    Here(Process),
    /// Behind the agent of another host.
    There(RemoteProcess),
}

impl RankProcess {
    /// Its number on its own host; 0 before it is known.
    pub(crate) fn id(&self) -> u32 {
        match self {
            Self::Here(process) => process.id(),
            Self::There(process) => process.id(),
        }
    }

    /// Why its host is lost, if it is.
    pub(crate) fn host_fault(&self) -> Option<String> {
        match self {
            Self::Here(_) => None,
            Self::There(process) => process.host_fault(),
        }
    }

    /// Its stdout and stderr; only once.
    pub(crate) fn take_output(&mut self) -> io::Result<Output> {
        match self {
            Self::Here(process) => process.take_output(),
            Self::There(process) => process.take_output(),
        }
    }

    /// Calls `ended` when the process has ended, and leaves it to be reaped.
    pub(crate) fn watch(&self, ends: &Ends, ended: impl FnOnce(ExitKind) + Send + 'static) -> io::Result<()> {
        match self {
            Self::Here(process) => process.watch(ends, ended),
            Self::There(process) => {
                process.watch(ended);
                Ok(())
            }
        }
    }

    /// Sends `signal` to the process and to all it started that are still in its group.
    pub(crate) fn signal(&self, signal: i32) {
        match self {
            Self::Here(process) => process.signal(signal),
            Self::There(process) => process.signal(signal),
        }
    }

    /// Sends `signal` to the rank alone, unless it would die of it; returns whether it was sent. What another host makes of it is heard later.
    pub(crate) fn tell(&self, signal: i32, behind: Option<u32>) -> bool {
        match self {
            Self::Here(process) => process.tell(signal, behind),
            Self::There(process) => {
                process.tell(signal, behind);
                true
            }
        }
    }

    /// Kills what the process, which has ended, left behind in its group; then forgets it.
    pub(crate) fn reap(&mut self) {
        match self {
            Self::Here(process) => process.reap(),
            Self::There(process) => process.reap(),
        }
    }
}
