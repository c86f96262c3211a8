//! How the ranks of one host come to have memory in common.

use crate::control::Control;
use crate::control::arbiter::Notice;
use crate::control::watch::Alarm;
use crate::realm::{Realm, TcpRealm};
use phalanx_core::{Cause, Context, Deadline, Error, GroupId, Loss, OpKind, Result};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long the arbiter's word is waited for, before a rank tells it what it saw, and then before it believes that itself.
const VERDICT_TIME: Duration = Duration::from_secs(1);
/// How long after an orderly farewell what a rank gave before may still be on its way.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// One [`Realm::share`] of a realm of processes.
#[derive(Debug)]
pub(crate) struct Sharing<'r> {
    realm: &'r TcpRealm,
    op: OpKind,
    /// Ranks of the job.
    members: &'r [usize],
    /// Which of the group's sharings this is.
    seq: u64,
    alarm: Arc<Alarm>,
    deadline: Deadline,
}

impl<'r> Sharing<'r> {
    pub(crate) fn new(realm: &'r TcpRealm, op: OpKind, group: GroupId, members: &'r [usize]) -> Self {
        let seq = {
            let mut shares = realm.shares.lock().unwrap_or_else(PoisonError::into_inner);
            let last = shares.entry(group).or_default();
            *last += 1;
            *last
        };
        let alarm = realm.watch.alarm(group, members.to_vec());
        let deadline = Deadline::after(Instant::now(), realm.place.timeout);
        Self { realm, op, members, seq, alarm, deadline }
    }

    pub(crate) fn run(&self, make: &dyn Fn() -> Result<OwnedFd>) -> Result<OwnedFd> {
        match self.members {
            [first, ..] if *first != self.realm.place.rank => self.take(*first),
            [_, others @ ..] => self.give(others, make()?),
            [] => make(),
        }
    }

    fn take(&self, from: usize) -> Result<OwnedFd> {
        let (group, stop) = (self.alarm.group(), || self.is_over(from));
        let taken = self.realm.exchange.take(group, self.seq, from, &self.deadline, stop);
        taken.map_err(|why| self.failed(from, &why.to_string()))
    }

    /// To all others side by side. Each has its own once it says so, whether it asks for it yet or not.
    fn give(&self, others: &[usize], memory: OwnedFd) -> Result<OwnedFd> {
        let (group, memory) = (self.alarm.group(), Arc::new(memory));
        let give = |&to: &usize| {
            let local = self.realm.members[to].local.as_ref();
            let name = &local.expect("a rank of this host has a name here").name;
            (to, self.realm.exchange.give(group, self.seq, name, memory.clone(), self.deadline))
        };
        let given: Vec<_> = others.iter().map(give).collect();
        for (to, given) in given {
            given.wait(&self.deadline, || self.is_over(to)).map_err(|why| self.failed(to, &why))?;
        }
        memory.try_clone().map_err(|e| Error::io("duplicating the descriptor of shared memory", e))
    }

    fn is_over(&self, peer: usize) -> bool {
        self.alarm.cause().is_some() || self.has_left(peer)
    }

    fn has_left(&self, peer: usize) -> bool {
        self.alarm.left_at(peer).is_some_and(|at| at.elapsed() > FAREWELL_TIME)
    }

    /// The error for the first cause of all, which may be on its way, or else for what this rank saw of `peer`.
    fn failed(&self, peer: usize, why: &str) -> Error {
        let soon = || Deadline::after(Instant::now(), VERDICT_TIME);
        let cause = self.alarm.wait(&soon()).cloned().unwrap_or_else(|| {
            let cause = self.view_of(peer);
            tracing::warn!(%cause, why, "memory was not shared");
            let (group, members) = (self.alarm.group(), self.members.to_vec());
            // If the line is broken, the watch knows.
            let _ = self.realm.line.send(Notice::Failed { group, members, cause: cause.clone() });
            self.alarm.wait(&soon()).cloned().unwrap_or(cause)
        });
        let at = Context {
            op: self.op,
            seq: 0,
            group: self.alarm.group(),
            rank: self.realm.place.rank,
            world_size: self.realm.place.world_size,
            bytes: (0, 0),
            elapsed: self.deadline.elapsed(Instant::now()),
        };
        Error::from_cause(cause, at)
    }

    fn view_of(&self, peer: usize) -> Cause {
        let who = self.realm.peer(peer);
        if self.has_left(peer) {
            return Cause::Lost { peer: who, how: Loss::Left };
        }
        if !self.deadline.has_passed(Instant::now()) {
            return Cause::Lost { peer: who, how: Loss::Unreachable };
        }
        let reporter = self.realm.peer(self.realm.place.rank);
        let (op, waited) = (self.op, self.deadline.limit());
        Cause::TimedOut { reporter, op, seq: 0, waited, missing: vec![who] }
    }
}
