//! Notices and verdicts: what ranks and the arbiter say to each other.

use crate::address_book::AddressBook;
pub use crate::member::{Local, Member};
use crate::wait_graph::Standing;
use phalanx_core::{Cause, GroupId, Loss, Peer, Signature};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

/// A message of a rank to the arbiter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum Notice {
    /// I am here. `settings` must be the same on all ranks: what else would make them choose differently.
    Join { host: String, addr: SocketAddr, local: Option<Local>, settings: String },
    /// Asks which ranks are not here yet.
    WhoIsMissing,
    /// My latest collectives of this group: I have been waiting for a while in the last, or was asked.
    Calls { group: GroupId, calls: Calls },
    /// This group has failed, as far as I can see. `members` are ranks of the job.
    Failed { group: GroupId, members: Vec<usize>, cause: Cause },
    /// I leave in order. `finished`: my last collective of the group of all ranks that ended well; 0 for none.
    Leave { finished: u64 },
    /// All ranks should write what they did lately.
    Trace,
    /// I am alive.
    Beat,
    /// I have heard nothing from you for too long. For an arbiter whose process was stopped and goes on.
    YouWereSilent,
    /// I leave this group in order, and stay in the job. `members` are ranks of the job; `finished` is my last collective of this group
    /// that ended well, 0 for none.
    LeaveGroup { group: GroupId, members: Vec<usize>, finished: u64 },
    /// One of my operations has returned an error, for this cause. If I leave or end now, that is why.
    InError { cause: Cause },
    /// I have gone on: long after that error I call operations of groups that work.
    GoesOn,
    /// I have waited for long in this collective of this group. Who of its members has not come to it?
    WhoIsBehind { group: GroupId, seq: u64, members: Vec<usize> },
    /// What I wait for: for a while, in round 0, or as I was asked in this round.
    Waits { round: u64, standing: Standing },
}

/// A message of the arbiter to ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum Verdict {
    /// All are here. Shared, for it goes to all of them.
    Complete { members: Arc<AddressBook> },
    /// These are not here yet.
    Missing { ranks: Vec<usize> },
    /// This group has failed; of all verdicts that concern it, the first counts.
    Group { group: GroupId, cause: Cause, through: Through },
    /// Every group of this rank has failed. `is_gone`: the rank is lost; otherwise it may still hear this.
    Lost { rank: usize, is_gone: bool, cause: Cause, through: Through },
    /// This rank has left in order; or because of this cause, for which one of its operations had failed. `finished` is its last collective of
    /// the group of all ranks that ended well, 0 for none.
    Left { rank: usize, after: Option<Cause>, finished: u64 },
    /// This rank wants all to write what they did lately.
    Trace { by: usize },
    /// The arbiter is alive.
    Beat,
    /// Which collectives of this group did this rank call lately?
    WhereAreYou { group: GroupId },
    /// This rank has left this group in order, or because of this cause. `finished` is its last collective of this group that ended well, 0 for
    /// none. Told to the group's members.
    LeftGroup { group: GroupId, rank: usize, after: Option<Cause>, finished: u64 },
    /// An operation of rank 0, where the arbiter is, has failed for this cause: if rank 0 ends now, that is why. `None`: it has gone on.
    InError { cause: Option<Cause> },
    /// These have not come to this collective of this group, as far as is known.
    Behind { group: GroupId, seq: u64, ranks: Vec<usize> },
    /// What does this rank wait for? The answer bears this number.
    WhatDoYouWaitFor { round: u64 },
}

/// The rank that carried a cause into a group where it did not happen, by leaving or ending because of it, and how.
pub type Through = Option<(Peer, Loss)>;

/// Collectives and their places in the sequence, oldest first.
pub type Calls = Vec<(u64, Signature)>;
