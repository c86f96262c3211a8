//! What is known of a process when a run is over: what it called in each generation, and how it went on.

use super::job::Seat;
use phalanx_core::{Cause, Deadline, Error, GroupId, OpKind, Signature};
use std::time::Instant;

/// One call of a rank, and how it ended.
#[derive(Debug)]
pub(super) struct Record {
    /// Its place in the program.
    pub(super) at: usize,
    pub(super) seq: u64,
    pub(super) signature: Signature,
    pub(super) called: Instant,
    /// When, and whether its result was the right one if it ended well.
    pub(super) ended: Option<(Instant, Result<bool, Error>)>,
}

/// What is known of a process's life in a generation.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) seat: Seat,
    pub(super) started: Instant,
    /// How long coming together might take.
    pub(super) met_by: Deadline,
    /// When the ranks had come together, or why they did not.
    pub(super) met: Option<(Instant, Result<(), Error>)>,
    pub(super) records: Vec<Record>,
    /// Why its groups have failed, as it saw it, each in its order of the program.
    pub(super) causes: Vec<(GroupId, Cause)>,
    /// It has come to the end of its program.
    pub(super) is_done: bool,
    /// When it said farewell to the others.
    pub(super) left: Option<Instant>,
    /// When it was over.
    pub(super) ended: Option<Instant>,
}

impl Account {
    pub(super) fn begin(seat: Seat, started: Instant, met_by: Deadline) -> Self {
        Self {
            seat,
            started,
            met_by,
            met: None,
            records: Vec::new(),
            causes: Vec::new(),
            is_done: false,
            left: None,
            ended: None,
        }
    }
}

/// A process's way from one generation to the next; or into its first, where the others decide that.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) op: OpKind,
    /// The last generation in which it was.
    pub(super) from: Option<u64>,
    pub(super) called: Instant,
    /// When it was over: the generation in which it is then, or why it is in none.
    pub(super) ended: Option<(Instant, Result<u64, Error>)>,
}
