//! The membership: what a rank has heard from the arbiter, and the latches by which that stops running operations.

use crate::address_book::AddressBook;
use crate::changes::Changes;
use crate::error_state::ErrorState;
use crate::failure_latch::{Departure, FailureLatch, OnFailure};
use crate::limits::{LEFT_MAX, VERDICTS_MAX};
use crate::lock::lock;
use crate::notice::{Notice, Through, Verdict};
use crate::runtime::Runtime;
use phalanx_core::{Cause, Deadline, GroupId, Loss, Peer, WORLD};
use phalanx_trace::{GroupRecord, Recorded, Trace, snapshot};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

mod standing;

#[derive(Debug, Default)]
struct State {
    members: Option<Arc<AddressBook>>,
    missing: Vec<usize>,
    /// Verdicts in the order in which they came.
    verdicts: Vec<(Scope, Cause, Through)>,
    left: BTreeMap<usize, Departure>,
    /// Ranks that left groups which are not made here yet: others may be done with a group before.
    left_groups: VecDeque<(GroupId, usize, Departure)>,
    /// For what an operation of rank 0 has failed.
    arbiter_error: Option<Cause>,
    /// The line to the arbiter has ended: nothing more is heard.
    line_ended: bool,
    latches: Vec<Weak<FailureLatch>>,
}

/// Which groups a verdict concerns.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scope {
    Group(GroupId),
    /// The verdict is about all groups of a rank, which is gone, or has only failed.
    Rank {
        rank: usize,
        is_gone: bool,
    },
}

/// Everything a rank has heard from the arbiter. Shared by all its groups.
#[derive(Debug)]
pub struct Membership {
    state: Mutex<State>,
    changes: Changes,
    /// An operation of this rank has failed, and it has not gone on since.
    pub error_state: ErrorState,
    recorded: Recorded,
    /// How many operations of each kind each group remembers.
    log_len: usize,
    runtime: Arc<dyn Runtime>,
}

impl Membership {
    /// That of a rank of a job, of which nothing was heard yet. Each of its groups remembers `log_len` operations of each kind.
    pub fn new(recorded: Recorded, log_len: usize, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        let (state, changes, error_state) = Default::default();
        Arc::new(Self { state, changes, error_state, recorded, log_len, runtime })
    }

    /// This rank.
    pub fn me(&self) -> &Peer {
        &self.recorded.me
    }

    /// Ranks of the job.
    pub fn world_size(&self) -> usize {
        self.recorded.world_size
    }

    /// The process around it.
    pub fn runtime(&self) -> &dyn Runtime {
        &*self.runtime
    }

    /// The trace of this rank: its latest operations in all its groups.
    pub fn trace(&self, reason: &str) -> Trace {
        let state = lock(&self.state);
        let (groups, first) = (state.groups(), state.first_cause());
        drop(state);
        self.snapshot(&groups, first.as_ref(), reason)
    }

    /// The next that is to be written. Waits while a verdict is taken: all groups that fail by it are in one trace.
    fn next_trace(&self, reason: &dyn Fn() -> Option<String>) -> Option<Trace> {
        let (groups, first, reason) = {
            let state = lock(&self.state);
            (state.groups(), state.first_cause(), reason()?)
        };
        Some(self.snapshot(&groups, first.as_ref(), &reason))
    }

    fn snapshot(&self, groups: &[Arc<FailureLatch>], first: Option<&Cause>, reason: &str) -> Trace {
        let records: Vec<GroupRecord<'_>> = groups.iter().map(|group| group.record()).collect();
        snapshot(&self.recorded, self.runtime.trace_time(), &records, first, reason)
    }

    /// Begins to write that, where the job keeps it.
    pub fn write_trace(self: &Arc<Self>, reason: String) {
        let membership = self.clone();
        self.runtime.write_trace(Box::new(move |reason| membership.next_trace(reason)), reason);
    }

    /// The answer to a question of the arbiter, whatever the threads of the program do.
    pub fn answer(&self, verdict: &Verdict) -> Option<Notice> {
        if let &Verdict::WhatDoYouWaitFor { round } = verdict {
            return Some(Notice::Waits { round, standing: self.standing() });
        }
        let &Verdict::WhereAreYou { group } = verdict else { return None };
        let latches = &lock(&self.state).latches;
        let latch = latches.iter().filter_map(Weak::upgrade).find(|latch| latch.group() == group);
        // Of a group that is not made here yet, nothing was called.
        Some(latch.map_or_else(|| Notice::Calls { group, calls: Vec::new() }, |latch| latch.calls()))
    }

    /// Takes word from the arbiter that came at this moment.
    pub fn hear(self: &Arc<Self>, verdict: Verdict, now: Instant) {
        if let Err(what) = verdict.check(self.world_size()) {
            return tracing::warn!(what, "a verdict that makes no sense");
        }
        let mut state = lock(&self.state);
        match verdict {
            Verdict::Complete { members } => drop(state.members.get_or_insert(members)),
            Verdict::Missing { ranks } => state.missing = ranks,
            Verdict::Group { group, cause, through } => state.verdict(Scope::Group(group), cause, through),
            Verdict::Lost { rank, is_gone, cause, through } => {
                state.verdict(Scope::Rank { rank, is_gone }, cause, through);
            }
            Verdict::InError { cause } => state.arbiter_error = cause,
            Verdict::Beat | Verdict::WhereAreYou { .. } | Verdict::WhatDoYouWaitFor { .. } => return,
            Verdict::Behind { group, seq, ranks } => {
                let mut latches = state.latches.iter().filter_map(Weak::upgrade);
                if let Some(latch) = latches.find(|latch| latch.group() == group) {
                    latch.fall_behind(seq, ranks);
                }
                return;
            }
            Verdict::Trace { by } => self.write_trace(format!("SIGUSR1 at rank {by}")),
            Verdict::Left { rank, after, finished } => {
                let departure = Departure { at: now, after, finished: (WORLD, finished) };
                state.left.insert(rank, departure.clone());
                let latches = state.latches.iter().filter_map(Weak::upgrade);
                latches.for_each(|latch| latch.leaves(rank, departure.clone()));
            }
            Verdict::LeftGroup { group, rank, after, finished } => {
                let departure = Departure { at: now, after, finished: (group, finished) };
                let mut latches = state.latches.iter().filter_map(Weak::upgrade);
                if let Some(latch) = latches.find(|latch| latch.group() == group) {
                    latch.leaves(rank, departure);
                } else {
                    drop(latches);
                    if state.left_groups.len() == LEFT_MAX {
                        state.left_groups.pop_front();
                    }
                    state.left_groups.push_back((group, rank, departure));
                }
            }
        }
        self.changes.tell();
    }

    /// For what an operation of rank 0 has failed, before it left or its line broke.
    pub fn arbiter_error(&self) -> Option<Cause> {
        let state = lock(&self.state);
        let left = state.left.get(&0).and_then(|departure| departure.after.clone());
        left.or_else(|| state.arbiter_error.clone())
    }

    /// Waits until this rank, which has the arbiter, has heard what it said of its own error: so have the others.
    pub fn wait_arbiter_error(&self, deadline: &Deadline) {
        self.wait_until(deadline, |state| state.arbiter_error.is_some());
    }

    /// The line to the arbiter on rank 0 broke, or fell silent. Whether that is a loss: not if that rank left in order before, nor if it is this rank
    /// that was lost to the arbiter, which then ends the line.
    pub fn lost_arbiter(&self, how: Loss) -> bool {
        let mut state = lock(&self.state);
        state.line_ended = true;
        let is_loss = !state.left.contains_key(&0) && !state.is_given_up(self.me().rank);
        if is_loss {
            let peer = state.arbiter();
            let (cause, through) = match state.arbiter_error.clone() {
                Some(first) => (first, Some((peer, how))),
                None => (Cause::Lost { peer, how }, None),
            };
            state.verdict(Scope::Rank { rank: 0, is_gone: true }, cause, through);
        }
        self.changes.tell();
        is_loss
    }

    /// A new group's latch; raised already if its health is known.
    pub fn latch(self: &Arc<Self>, group: GroupId, members: Vec<usize>) -> Arc<FailureLatch> {
        let mut state = lock(&self.state);
        let mut left = state.left.clone();
        let here = state.left_groups.iter().filter(|(of, ..)| *of == group);
        left.extend(here.map(|(_, rank, departure)| (*rank, departure.clone())));
        state.left_groups.retain(|(of, ..)| *of != group);
        let membership = Arc::downgrade(self);
        let on_failure = OnFailure(Box::new(move |cause, reason| {
            if let Some(membership) = membership.upgrade() {
                membership.runtime.launcher().iter().for_each(|launcher| launcher.report(cause));
                membership.write_trace(reason);
            }
        }));
        let latch =
            Arc::new(FailureLatch::new(group, members, left, self.log_len, self.runtime.clone(), on_failure));
        state.latches.retain(|weak| weak.strong_count() > 0);
        state.latches.push(Arc::downgrade(&latch));
        for (scope, cause, through) in &state.verdicts {
            if scope.concerns(&latch) {
                latch.raise(cause.clone(), through.clone());
            }
        }
        latch
    }

    /// Waits until all ranks are there.
    pub fn wait_complete(&self, deadline: &Deadline) -> Result<Arc<AddressBook>, Incomplete> {
        self.wait_until(deadline, |state| state.members.is_some() || !state.verdicts.is_empty());
        let state = lock(&self.state);
        let hopeless = || state.verdicts.first().map(|(_, cause, _)| Box::new(cause.clone()));
        let incomplete = || Incomplete { missing: state.missing.clone(), hopeless: hopeless() };
        state.members.clone().ok_or_else(incomplete)
    }

    /// Ranks whose line to the arbiter has ended: they are lost, or have left.
    pub fn gone(&self) -> Vec<usize> {
        let state = lock(&self.state);
        let lost = state.verdicts.iter().filter_map(|(scope, ..)| match scope {
            Scope::Rank { rank, is_gone: true } => Some(*rank),
            _ => None,
        });
        lost.chain(state.left.keys().copied()).collect()
    }

    /// Those of them that were stopped or cut off: their processes may live.
    pub fn silent(&self) -> Vec<usize> {
        let state = lock(&self.state);
        let silent = |(scope, cause, through): &(Scope, Cause, Through)| {
            let Scope::Rank { rank, is_gone: true } = scope else { return None };
            let ((Some((_, how)), _) | (None, Cause::Lost { how, .. })) = (through, cause) else {
                return None;
            };
            matches!(how, Loss::Silent { .. } | Loss::Unreachable { .. } | Loss::Apart { .. })
                .then_some(*rank)
        };
        state.verdicts.iter().filter_map(silent).collect()
    }

    /// Whether the arbiter is there, and hears the ranks that have not [`gone`](Self::gone).
    pub fn has_arbiter(&self) -> bool {
        let gone = self.gone();
        !gone.contains(&0) && !gone.contains(&self.me().rank)
    }

    /// Whether rank 0 has left in order, and the arbiter with it: nobody tells the others of trouble any more.
    pub fn arbiter_has_left(&self) -> bool {
        lock(&self.state).left.contains_key(&0)
    }

    /// Rank 0, as errors name it.
    pub fn arbiter(&self) -> Peer {
        lock(&self.state).arbiter()
    }

    /// The addresses of all ranks, once they are known.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        let members = lock(&self.state).members.clone();
        members.iter().flat_map(|book| book.members()).map(|member| member.addr).collect()
    }

    /// This host is cut off from all others: this rank is lost, to the arbiter and to itself.
    pub fn lost_itself(&self, how: Loss) -> Cause {
        let cause = Cause::Lost { peer: self.me().clone(), how };
        let scope = Scope::Rank { rank: self.me().rank, is_gone: true };
        lock(&self.state).verdict(scope, cause.clone(), None);
        self.changes.tell();
        cause
    }

    /// The notice with which this rank leaves the job in order.
    pub fn farewell(&self) -> Notice {
        let groups = self.groups();
        let world = groups.iter().find(|latch| latch.group() == WORLD);
        Notice::Leave { finished: world.map_or(0, |latch| latch.collectives.finished()) }
    }

    /// The groups that are here.
    pub fn groups(&self) -> Vec<Arc<FailureLatch>> {
        lock(&self.state).groups()
    }

    /// While nothing can be heard, nor told of.
    #[doc(hidden)]
    pub fn while_locked(&self, act: impl FnOnce()) {
        let _state = lock(&self.state);
        act();
    }

    /// Whether all of `ranks` have left or are lost.
    pub fn have_left(&self, ranks: impl Fn(usize) -> bool, world_size: usize) -> bool {
        lock(&self.state).are_gone(ranks, world_size)
    }

    /// Waits until all of `ranks` have left or are lost.
    pub fn wait_left(&self, ranks: impl Fn(usize) -> bool, world_size: usize, deadline: &Deadline) {
        self.wait_until(deadline, |state| state.are_gone(&ranks, world_size));
    }

    /// As [`wait_left`](Self::wait_left), and no longer than all is well: once something has failed, the ranks do not end together.
    pub fn wait_left_in_peace(&self, ranks: impl Fn(usize) -> bool, world_size: usize, deadline: &Deadline) {
        self.wait_until(deadline, |state| !state.verdicts.is_empty() || state.are_gone(&ranks, world_size));
    }

    /// Waits until the arbiter has heard that `rank`, which is this one, leaves; or there is no arbiter to hear it.
    pub fn wait_heard(&self, rank: usize, deadline: &Deadline) {
        self.wait_until(deadline, |state| {
            state.line_ended || state.left.contains_key(&rank) || state.is_lost(rank)
        });
    }

    fn wait_until(&self, deadline: &Deadline, is_so: impl Fn(&State) -> bool) {
        loop {
            let seen = self.changes.seen();
            if is_so(&lock(&self.state)) {
                return;
            }
            let left = deadline.remaining(self.runtime.now());
            if left.is_zero() {
                return;
            }
            self.runtime.sleep(&self.changes, seen, left);
        }
    }
}

/// Not all ranks are there.
#[derive(Debug)]
pub struct Incomplete {
    /// The ranks that are not there, as far as is known.
    pub missing: Vec<usize>,
    /// Why they never will be.
    pub hopeless: Option<Box<Cause>>,
}

impl State {
    fn arbiter(&self) -> Peer {
        let known = self.members.as_ref().and_then(|book| Some(book.members().first()?.peer.clone()));
        known.unwrap_or_else(|| Peer { rank: 0, host: "the arbiter".into() })
    }

    /// Those that are here.
    fn groups(&self) -> Vec<Arc<FailureLatch>> {
        let mut groups: Vec<_> = self.latches.iter().filter_map(Weak::upgrade).collect();
        groups.sort_by_key(|latch| latch.group());
        groups
    }

    /// Whether all of `ranks` have left or are lost; or rank 0 itself is, which hears of nobody any more once it was given up.
    fn are_gone(&self, ranks: impl Fn(usize) -> bool, world_size: usize) -> bool {
        let gone = |r: usize| self.left.contains_key(&r) || self.is_lost(r);
        self.is_lost(0) || (0..world_size).filter(|&r| ranks(r)).all(gone)
    }

    /// Whether the arbiter has said that this rank is lost.
    fn is_given_up(&self, rank: usize) -> bool {
        let given_up = Scope::Rank { rank, is_gone: true };
        self.verdicts.iter().any(|(scope, ..)| *scope == given_up)
    }

    fn is_lost(&self, rank: usize) -> bool {
        let is_named = |(_, cause, _): &(Scope, Cause, Through)| matches!(cause, Cause::Lost { peer, .. } if peer.rank == rank);
        self.is_given_up(rank) || self.verdicts.iter().any(is_named)
    }

    fn verdict(&mut self, scope: Scope, cause: Cause, through: Through) {
        for latch in self.latches.iter().filter_map(Weak::upgrade) {
            if scope.concerns(&latch) {
                latch.raise(cause.clone(), through.clone());
            }
        }
        if self.verdicts.len() < VERDICTS_MAX {
            self.verdicts.push((scope, cause, through));
        }
    }
}

impl Scope {
    fn concerns(self, latch: &FailureLatch) -> bool {
        match self {
            Self::Group(group) => group == latch.group(),
            // Without rank 0, and the arbiter on it, nobody would hear of the next loss, in whichever group.
            Self::Rank { rank, .. } => rank == 0 || latch.members().contains(&rank),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has a clock")]
pub(crate) mod tests;
