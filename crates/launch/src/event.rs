//! The events of a job, for the thread that supervises it.

use crate::exit_kind::ExitKind;
use phalanx_rendezvous::lifeline::Heard;

/// Something that happened to the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A rank ended.
    Exited { rank: usize, exit: ExitKind },
    /// The launcher was sent a signal.
    Signal(i32),
    /// A process of this attempt said something.
    Heard { attempt: usize, heard: Heard },
}
