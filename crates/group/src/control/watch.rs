//! What a rank knows of its groups' fate, and the alarms that stop running operations.

use super::limits::{CALLS_MAX, LEFT_MAX, VERDICTS_MAX};
use super::notice::{Member, Notice, Through, Verdict};
use super::stricken::Stricken;
use crate::standstill::{Program, Waiting};
use crate::trace::Trace;
use crate::trace::log::Log;
use crate::trace::writer::Recorder;
use phalanx_core::{Cause, Deadline, GroupId, Loss, Peer};
use phalanx_transport::{Bell, Tally};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

mod standing;

/// The fate of one group on this rank.
#[derive(Debug)]
pub(crate) struct Alarm {
    group: GroupId,
    /// Ranks of the job, in group order.
    members: Vec<usize>,
    cause: OnceLock<Verdicted>,
    raised: AtomicBool,
    /// Ranks of the job that left it, or this group, and when that became known here.
    left: Mutex<BTreeMap<usize, Departure>>,
    bells: Mutex<Vec<Bell>>,
    heard: (Mutex<()>, Condvar),
    /// Whether the program has got the error for the cause; later calls say that the group is poisoned.
    pub(crate) returned: AtomicBool,
    /// Who has not come to which collective, as the arbiter said last.
    behind: Mutex<Option<(u64, Vec<usize>)>>,
    /// The group's latest operations on this rank.
    pub(crate) collectives: Log,
    pub(crate) messages: Log,
    /// What has moved over the links of the group, each with its members.
    links: Mutex<Vec<(Vec<usize>, Arc<Tally>)>>,
    /// Receives that need not get anything.
    pub(crate) in_vain: AtomicUsize,
    /// Whether a collective takes messages off the links while it waits.
    pub(crate) takes_messages: AtomicBool,
    watch: Weak<Watch>,
}

/// Why a group has failed.
#[derive(Debug)]
struct Verdicted {
    cause: Cause,
    /// How that came into this group, if it happened in another.
    through: Through,
}

/// A rank that left.
#[derive(Debug, Clone)]
struct Departure {
    at: Instant,
    /// For what one of its operations had failed before, if that was so.
    after: Option<Cause>,
}

impl Alarm {
    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Why the group has failed, if it has. One atomic load while it has not.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        if self.raised.load(Ordering::Acquire) { self.first_cause() } else { None }
    }

    /// Who brought the cause into this group by leaving or ending, if it happened in another.
    pub(crate) fn through(&self) -> Through {
        self.cause.get()?.through.clone()
    }

    /// Like [`cause`](Self::cause), but visible while the failure is still being published.
    pub(crate) fn first_cause(&self) -> Option<&Cause> {
        self.cause.get().map(|verdict| &verdict.cause)
    }

    /// Fails the group, unless it has failed already, and wakes all its sleepers.
    pub(crate) fn raise(&self, cause: Cause, through: Through) {
        let reason = format!("{}: {cause}", self.group);
        if self.cause.set(Verdicted { cause, through }).is_ok() {
            // Before anybody hears of it, and may end the process.
            if let Some(watch) = self.watch.upgrade() {
                if let Some((launcher, cause)) = watch.recorder.launcher.as_ref().zip(self.cause.get()) {
                    launcher.report(&cause.cause);
                }
                watch.write_trace(reason);
            }
            self.raised.store(true, Ordering::Release);
            let _heard = lock(&self.heard.0);
            self.heard.1.notify_all();
        }
        self.ring();
    }

    /// Waits for somebody else to raise it.
    pub(crate) fn wait(&self, deadline: &Deadline) -> Option<&Cause> {
        let mut heard = lock(&self.heard.0);
        while !self.raised.load(Ordering::Acquire) {
            let left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return None;
            }
            heard = self.heard.1.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(heard);
        self.cause()
    }

    /// The group has links between these members, ranks of the job.
    pub(crate) fn has_links(&self, members: Vec<usize>, tally: Arc<Tally>) {
        lock(&self.links).push((members, tally));
    }

    /// The group's latest collectives on this rank, as the arbiter wants to know them.
    pub(crate) fn calls(&self) -> Notice {
        Notice::Calls { group: self.group, calls: self.collectives.latest(CALLS_MAX) }
    }

    /// When it became known that `rank` (of the job) left.
    pub(crate) fn left_at(&self, rank: usize) -> Option<Instant> {
        lock(&self.left).get(&rank).map(|departure| departure.at)
    }

    /// For what an operation of `rank` had failed before it left, if that was so.
    pub(crate) fn left_after(&self, rank: usize) -> Option<Cause> {
        lock(&self.left).get(&rank)?.after.clone()
    }

    fn leaves(&self, rank: usize, departure: Departure) {
        lock(&self.left).entry(rank).or_insert(departure);
        self.ring();
    }

    /// Who has not come to this collective (ranks of the job), if the arbiter was asked and has answered.
    pub(crate) fn behind(&self, seq: u64) -> Option<Vec<usize>> {
        lock(&self.behind).clone().filter(|(of, _)| *of == seq).map(|(_, ranks)| ranks)
    }

    /// Rings `bell` when anything changes, until [`hush`](Self::hush).
    pub(crate) fn listen(&self, bell: &Bell) {
        lock(&self.bells).push(bell.clone());
    }

    /// Undoes [`listen`](Self::listen).
    pub(crate) fn hush(&self, bell: &Bell) {
        lock(&self.bells).retain(|b| !b.is(bell));
    }

    fn ring(&self) {
        lock(&self.bells).iter().for_each(Bell::ring);
    }
}

#[derive(Debug, Default)]
struct State {
    members: Option<Vec<Member>>,
    missing: Vec<usize>,
    /// Verdicts in the order in which they came.
    verdicts: Vec<(Scope, Cause, Through)>,
    left: BTreeMap<usize, Departure>,
    /// Who left which group, of those that are not here: others may be done with a group before it is made here.
    left_groups: VecDeque<(GroupId, usize, Departure)>,
    /// For what an operation of rank 0 has failed.
    arbiter_stricken: Option<Cause>,
    /// The line to the arbiter has ended: nothing more is heard.
    line_ended: bool,
    alarms: Vec<Weak<Alarm>>,
}

/// Which groups a verdict concerns.
#[derive(Debug, Clone, Copy)]
enum Scope {
    Group(GroupId),
    /// All groups of a rank, which is gone, or has only failed.
    Rank {
        rank: usize,
        is_gone: bool,
    },
}

/// Everything a rank has heard from the arbiter. Shared by all its groups.
#[derive(Debug)]
pub(crate) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
    /// An operation of this rank has failed, and it has not gone on since.
    pub(crate) stricken: Stricken,
    pub(crate) recorder: Recorder,
    /// The program's threads that wait.
    pub(crate) waiting: Arc<Waiting>,
    /// How its threads are known, if they are.
    pub(crate) program: OnceLock<Program>,
}

impl Watch {
    pub(crate) fn new(recorder: Recorder) -> Arc<Self> {
        let (state, stricken) = Default::default();
        let (waiting, program) = Default::default();
        Arc::new(Self { state, changed: Condvar::new(), stricken, recorder, waiting, program })
    }

    /// What this rank did lately, in all its groups.
    pub(crate) fn trace(&self, reason: &str) -> Trace {
        let state = lock(&self.state);
        let (groups, first) = (state.groups(), state.first_cause());
        drop(state);
        self.recorder.trace(&groups, first.as_ref(), reason)
    }

    /// The next that is to be written. Waits while a verdict is taken: all groups that fail by it are in one trace.
    pub(crate) fn next_trace(&self) -> Option<Trace> {
        let (groups, first, reason) = {
            let state = lock(&self.state);
            (state.groups(), state.first_cause(), self.recorder.next_reason()?)
        };
        Some(self.recorder.trace(&groups, first.as_ref(), &reason))
    }

    /// Begins to write that, where the job keeps it.
    pub(crate) fn write_trace(self: &Arc<Self>, reason: String) {
        self.recorder.begin_to_write(self.clone(), reason);
    }

    /// What the arbiter wants to hear in return, whatever the threads of the program do.
    pub(crate) fn answer(&self, verdict: &Verdict) -> Option<Notice> {
        if let &Verdict::WhatDoYouWaitFor { round } = verdict {
            return Some(Notice::Waits { round, standing: self.standing() });
        }
        let &Verdict::WhereAreYou { group } = verdict else { return None };
        let alarms = &lock(&self.state).alarms;
        let alarm = alarms.iter().filter_map(Weak::upgrade).find(|alarm| alarm.group == group);
        // Of a group that is not made here yet, nothing was called.
        Some(alarm.map_or_else(|| Notice::Calls { group, calls: Vec::new() }, |alarm| alarm.calls()))
    }

    /// Takes word from the arbiter that came at this moment.
    pub(crate) fn hear(self: &Arc<Self>, verdict: Verdict, now: Instant) {
        if let Err(what) = verdict.check(self.recorder.world_size) {
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
            Verdict::Stricken { cause } => state.arbiter_stricken = cause,
            Verdict::Beat | Verdict::WhereAreYou { .. } | Verdict::WhatDoYouWaitFor { .. } => return,
            Verdict::Behind { group, seq, ranks } => {
                let mut alarms = state.alarms.iter().filter_map(Weak::upgrade);
                if let Some(alarm) = alarms.find(|alarm| alarm.group == group) {
                    *lock(&alarm.behind) = Some((seq, ranks));
                }
                return;
            }
            Verdict::Trace { by } => self.write_trace(format!("SIGUSR1 at rank {by}")),
            Verdict::Left { rank, after } => {
                let departure = Departure { at: now, after };
                state.left.insert(rank, departure.clone());
                let alarms = state.alarms.iter().filter_map(Weak::upgrade);
                alarms.for_each(|alarm| alarm.leaves(rank, departure.clone()));
            }
            Verdict::LeftGroup { group, rank, after } => {
                let departure = Departure { at: now, after };
                let mut alarms = state.alarms.iter().filter_map(Weak::upgrade);
                if let Some(alarm) = alarms.find(|alarm| alarm.group == group) {
                    alarm.leaves(rank, departure);
                } else {
                    drop(alarms);
                    if state.left_groups.len() == LEFT_MAX {
                        state.left_groups.pop_front();
                    }
                    state.left_groups.push_back((group, rank, departure));
                }
            }
        }
        self.changed.notify_all();
    }

    /// For what an operation of rank 0 has failed, before it left or its line broke.
    pub(crate) fn arbiter_stricken(&self) -> Option<Cause> {
        let state = lock(&self.state);
        let left = state.left.get(&0).and_then(|departure| departure.after.clone());
        left.or_else(|| state.arbiter_stricken.clone())
    }

    /// Waits until this rank, which has the arbiter, has heard what it said of its own error: so have the others.
    pub(crate) fn wait_arbiter_stricken(&self, deadline: &Deadline) {
        let mut state = lock(&self.state);
        while state.arbiter_stricken.is_none() {
            let left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The line to the arbiter on rank 0 broke, or fell silent. Whether that is a loss: not if that rank left in order before.
    pub(crate) fn lost_arbiter(&self, how: Loss) -> bool {
        let mut state = lock(&self.state);
        state.line_ended = true;
        let is_loss = !state.left.contains_key(&0);
        if is_loss {
            let peer = state.arbiter();
            let (cause, through) = match state.arbiter_stricken.clone() {
                Some(first) => (first, Some((peer, how))),
                None => (Cause::Lost { peer, how }, None),
            };
            state.verdict(Scope::Rank { rank: 0, is_gone: true }, cause, through);
        }
        self.changed.notify_all();
        is_loss
    }

    /// A new group's alarm; raised already if its fate is known.
    pub(crate) fn alarm(self: &Arc<Self>, group: GroupId, members: Vec<usize>) -> Arc<Alarm> {
        let mut state = lock(&self.state);
        let mut left = state.left.clone();
        let here = state.left_groups.iter().filter(|(of, ..)| *of == group);
        left.extend(here.map(|(_, rank, departure)| (*rank, departure.clone())));
        state.left_groups.retain(|(of, ..)| *of != group);
        let alarm = Arc::new(Alarm {
            group,
            members,
            cause: OnceLock::new(),
            raised: AtomicBool::new(false),
            left: Mutex::new(left),
            bells: Mutex::default(),
            heard: Default::default(),
            behind: Mutex::default(),
            collectives: Log::new(self.recorder.len),
            messages: Log::new(self.recorder.len),
            links: Mutex::default(),
            returned: AtomicBool::new(false),
            in_vain: AtomicUsize::new(0),
            takes_messages: AtomicBool::new(true),
            watch: Arc::downgrade(self),
        });
        state.alarms.retain(|weak| weak.strong_count() > 0);
        state.alarms.push(Arc::downgrade(&alarm));
        for (scope, cause, through) in &state.verdicts {
            if scope.concerns(&alarm) {
                alarm.raise(cause.clone(), through.clone());
            }
        }
        alarm
    }

    /// Waits until all ranks are there.
    pub(crate) fn wait_complete(&self, deadline: &Deadline) -> Result<Vec<Member>, Incomplete> {
        let mut state = lock(&self.state);
        loop {
            if let Some(members) = &state.members {
                return Ok(members.clone());
            }
            let hopeless = state.verdicts.first().map(|(_, cause, _)| Box::new(cause.clone()));
            let left = deadline.remaining(Instant::now());
            if left.is_zero() || hopeless.is_some() {
                return Err(Incomplete { missing: state.missing.clone(), hopeless });
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ranks whose line to the arbiter has ended: they are lost, or have left.
    pub(crate) fn gone(&self) -> Vec<usize> {
        let state = lock(&self.state);
        let lost = state.verdicts.iter().filter_map(|(scope, ..)| match scope {
            Scope::Rank { rank, is_gone: true } => Some(*rank),
            _ => None,
        });
        lost.chain(state.left.keys().copied()).collect()
    }

    /// Those of them that were stopped or cut off: their processes may live.
    pub(crate) fn silent(&self) -> Vec<usize> {
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
    pub(crate) fn has_arbiter(&self) -> bool {
        let gone = self.gone();
        !gone.contains(&0) && !gone.contains(&self.recorder.me.rank)
    }

    /// Rank 0, as errors name it.
    pub(crate) fn arbiter(&self) -> Peer {
        lock(&self.state).arbiter()
    }

    /// The addresses of all ranks, once they are known.
    pub(crate) fn addrs(&self) -> Vec<SocketAddr> {
        let members = &lock(&self.state).members;
        members.iter().flatten().map(|member| member.addr).collect()
    }

    /// This host is cut off from all others: this rank is lost, to the arbiter and to itself.
    pub(crate) fn lost_itself(&self, how: Loss) -> Cause {
        let cause = Cause::Lost { peer: self.recorder.me.clone(), how };
        let scope = Scope::Rank { rank: self.recorder.me.rank, is_gone: true };
        lock(&self.state).verdict(scope, cause.clone(), None);
        self.changed.notify_all();
        cause
    }

    /// The groups that are here.
    pub(crate) fn groups(&self) -> Vec<Arc<Alarm>> {
        lock(&self.state).groups()
    }

    /// While nothing can be heard, nor told of.
    #[cfg(test)]
    pub(crate) fn while_locked(&self, act: impl FnOnce()) {
        let _state = lock(&self.state);
        act();
    }

    /// Whether all of `ranks` have left or are lost.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn have_left(&self, ranks: impl Fn(usize) -> bool, world_size: usize) -> bool {
        lock(&self.state).are_gone(ranks, world_size)
    }

    /// Waits until all of `ranks` have left or are lost.
    pub(crate) fn wait_left(&self, ranks: impl Fn(usize) -> bool, world_size: usize, deadline: &Deadline) {
        self.wait_until(deadline, |state| state.are_gone(&ranks, world_size));
    }

    /// As [`wait_left`](Self::wait_left), and no longer than all is well: once something has failed, the ranks do not end together.
    pub(crate) fn wait_left_in_peace(
        &self,
        ranks: impl Fn(usize) -> bool,
        world_size: usize,
        deadline: &Deadline,
    ) {
        self.wait_until(deadline, |state| !state.verdicts.is_empty() || state.are_gone(&ranks, world_size));
    }

    /// Waits until the arbiter has heard that `rank`, which is this one, leaves; or there is no arbiter to hear it.
    pub(crate) fn wait_heard(&self, rank: usize, deadline: &Deadline) {
        self.wait_until(deadline, |state| {
            state.line_ended || state.left.contains_key(&rank) || state.is_lost(rank)
        });
    }

    fn wait_until(&self, deadline: &Deadline, is_so: impl Fn(&State) -> bool) {
        let mut state = lock(&self.state);
        loop {
            let left = deadline.remaining(Instant::now());
            if left.is_zero() || is_so(&state) {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Not all ranks are there.
#[derive(Debug)]
pub(crate) struct Incomplete {
    /// Who is not, as far as is known.
    pub(crate) missing: Vec<usize>,
    /// Why they never will be.
    pub(crate) hopeless: Option<Box<Cause>>,
}

impl State {
    fn arbiter(&self) -> Peer {
        let known = self.members.as_ref().map(|m| m[0].peer.clone());
        known.unwrap_or_else(|| Peer { rank: 0, host: "the arbiter".into() })
    }

    /// Those that are here.
    fn groups(&self) -> Vec<Arc<Alarm>> {
        let mut groups: Vec<_> = self.alarms.iter().filter_map(Weak::upgrade).collect();
        groups.sort_by_key(|alarm| alarm.group);
        groups
    }

    /// Whether all of `ranks` have left or are lost; or rank 0 itself is, which hears of nobody any more once it was given up.
    fn are_gone(&self, ranks: impl Fn(usize) -> bool, world_size: usize) -> bool {
        let gone = |r: usize| self.left.contains_key(&r) || self.is_lost(r);
        self.is_lost(0) || (0..world_size).filter(|&r| ranks(r)).all(gone)
    }

    fn is_lost(&self, rank: usize) -> bool {
        let lost = |(scope, cause, _): &(Scope, Cause, Through)| {
            matches!(cause, Cause::Lost { peer, .. } if peer.rank == rank)
                || matches!(scope, Scope::Rank { rank: r, is_gone: true } if *r == rank)
        };
        self.verdicts.iter().any(lost)
    }

    fn verdict(&mut self, scope: Scope, cause: Cause, through: Through) {
        for alarm in self.alarms.iter().filter_map(Weak::upgrade) {
            if scope.concerns(&alarm) {
                alarm.raise(cause.clone(), through.clone());
            }
        }
        if self.verdicts.len() < VERDICTS_MAX {
            self.verdicts.push((scope, cause, through));
        }
    }
}

impl Scope {
    fn concerns(self, alarm: &Alarm) -> bool {
        match self {
            Self::Group(group) => group == alarm.group,
            // Without rank 0, and the arbiter on it, nobody would hear of the next loss, in whichever group.
            Self::Rank { rank, .. } => rank == 0 || alarm.members.contains(&rank),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
