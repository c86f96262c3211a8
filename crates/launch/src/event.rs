//! What the thread that supervises a job is told.

use crate::exit::ExitKind;
use phalanx_rendezvous::lifeline::Heard;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A rank ended.
    Exited { rank: usize, exit: ExitKind },
    /// The launcher was sent a signal.
    Signal(i32),
    /// A process of this attempt said something.
    Heard { attempt: usize, heard: Heard },
}
