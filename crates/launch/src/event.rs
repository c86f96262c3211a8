//! The events of a job, for the thread that supervises it, or that is an agent's.

use crate::exit_kind::{ExitKind, signal_name};
use crate::hosts::protocol::Order;
use phalanx_core::Error;
use phalanx_rendezvous::lifeline::Heard;
use std::fmt;

/// Something that happened to the job.
#[derive(Debug)]
pub(crate) enum Event {
    /// A rank ended.
    Exited { rank: usize, exit: ExitKind },
    /// The launcher was sent a signal.
    Signal(i32),
    /// A process of this attempt said something.
    Heard { attempt: usize, heard: Heard },
    /// Something happened to another host.
    Host(HostEvent),
    /// To an agent: the leader wants something.
    Order(Order),
    /// To an agent: the session with the leader has broken.
    LeaderLost(Box<Error>),
    /// To an agent: a process that it has started ended.
    TaskExited { task: u64, exit: ExitKind },
}

/// Something that happened to another host, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostEvent {
    Came {
        node: usize,
        host: String,
    },
    Lost {
        node: usize,
        host: String,
        why: String,
    },
    /// The remote shell in which its agent was started has ended.
    ShellEnded {
        node: usize,
        host: String,
        exit: ExitKind,
    },
    /// A signal was not passed on to a process there.
    Deaf {
        node: usize,
        pid: u32,
        signal: i32,
    },
}

impl fmt::Display for HostEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Came { node, host } => write!(f, "node {node} ({host}) is here"),
            Self::Lost { node, host, why } => write!(f, "node {node} ({host}) is lost: {why}"),
            Self::ShellEnded { node, host, exit } => {
                write!(f, "the remote shell to node {node} ({host}) {exit}")
            }
            Self::Deaf { node, pid, signal } => write!(
                f,
                "{} was not passed on to process {pid} on node {node}, which has no handler for it and would die of it",
                signal_name(*signal)
            ),
        }
    }
}
