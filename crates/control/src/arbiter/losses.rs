//! Which ranks are lost: those whose line closes, from which nothing comes any more, or that panic.

use super::{Arbiter, Mail};
use crate::heartbeat::{Due, Heartbeat};
use crate::notice::Verdict;
use crate::outage::{Silence, judge};
use phalanx_core::{Cause, Loss};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

impl Arbiter {
    /// The line of `rank` has closed.
    pub fn disconnected(&mut self, rank: usize, how: Loss) -> Mail {
        if self.left.contains_key(&rank) || !self.lost.insert(rank) {
            return Vec::new();
        }
        self.lose(rank, how)
    }

    /// The line of `rank` has closed without a farewell. Somebody may say until then how its process ended; see [`settle`](Self::settle).
    pub fn closed(&mut self, rank: usize, until: Instant) -> Mail {
        if self.left.contains_key(&rank) || self.lost.contains(&rank) || self.errors[rank].is_some() {
            return self.disconnected(rank, Loss::Died);
        }
        self.ending.push_back((rank, until));
        Vec::new()
    }

    /// Decides on those whose lines have closed, in that order: nobody who ended later is to be taken for the first.
    pub fn settle(&mut self, now: Instant, exit_of: impl Fn(usize) -> Option<Loss>) -> Mail {
        let mut mail = Vec::new();
        while let Some(&(rank, until)) = self.ending.front() {
            let Some(how) = exit_of(rank).or_else(|| (now >= until).then_some(Loss::Died)) else { break };
            self.ending.pop_front();
            mail.extend(self.disconnected(rank, how));
        }
        mail
    }

    /// Whether it is open how a process ended: [`settle`](Self::settle) again soon.
    pub fn is_settling(&self) -> bool {
        !self.ending.is_empty()
    }

    /// `rank` said something, whatever it was.
    pub fn heard(&mut self, rank: usize, now: Instant) {
        let expected = !self.admits(rank) && !self.left.contains_key(&rank) && !self.lost.contains(&rank);
        if let Some(heartbeat) = self.heartbeat.as_mut().filter(|_| expected) {
            heartbeat.heard(rank, now);
        }
    }

    /// When to [`poll`](Self::poll), if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        self.heartbeat.as_ref().map(Heartbeat::deadline)
    }

    /// Does what is due. Call it after everything that has arrived was handled.
    pub fn poll(&mut self, now: Instant) -> Mail {
        // What the others said meanwhile counts: this process may have been stopped.
        let mut mail = self.close_insisted();
        let Some(heartbeat) = &mut self.heartbeat else { return mail };
        let Due { beat, silent } = heartbeat.poll(now);
        for rank in silent {
            let meaning = self.meaning(rank, now);
            mail.extend(match meaning {
                Silence::Peer => self.silent(rank),
                // The ranks of this host hear of it; the others find out by themselves.
                Silence::Itself => self.silent(0),
                Silence::Between => self.apart(rank),
            });
        }
        if beat {
            let step = self.waits.beat();
            mail.extend(self.step(step));
            // To all at one moment: so all notice at one moment when it ends.
            mail.extend(self.tell_all(Verdict::Beat));
        }
        mail
    }

    /// Declares a rank lost whose line stands, but from which nothing comes. It is told as well: it may only have been stopped, and must not go on.
    pub(super) fn silent(&mut self, rank: usize) -> Mail {
        let Some(after) = self.heartbeat.as_ref().map(Heartbeat::limit) else { return Vec::new() };
        if self.left.contains_key(&rank) || self.lost.contains(&rank) {
            return Vec::new();
        }
        let mail = self.lose(rank, Loss::Silent { after });
        self.lost.insert(rank);
        mail
    }

    /// Declares a rank lost that is on the only other host, when the network is cut.
    pub(super) fn apart(&mut self, rank: usize) -> Mail {
        let Some(after) = self.heartbeat.as_ref().map(Heartbeat::limit) else { return Vec::new() };
        if self.left.contains_key(&rank) || !self.lost.insert(rank) {
            return Vec::new();
        }
        self.lose(rank, Loss::Apart { from: 0, after })
    }

    /// The addresses of ranks of which nothing was heard for a while, and of all others that may say whether the network stands.
    pub fn in_doubt(&self, now: Instant) -> Vec<SocketAddr> {
        let is_in_doubt =
            self.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.in_doubt(now).next().is_some());
        let own = self.addr(0).map(|addr| addr.ip());
        let remote = |addr: &SocketAddr| Some(addr.ip()) != own;
        match is_in_doubt {
            true => self.members.iter().flatten().map(|member| member.addr).filter(remote).collect(),
            false => Vec::new(),
        }
    }

    /// Which hosts have answered lately.
    pub fn answered(&mut self, hosts: BTreeSet<IpAddr>) {
        self.answering = Some(hosts);
    }

    pub(super) fn addr(&self, rank: usize) -> Option<SocketAddr> {
        Some(self.members.get(rank)?.as_ref()?.addr)
    }

    /// The end that is in trouble when `rank` is silent.
    pub(super) fn meaning(&self, rank: usize, now: Instant) -> Silence {
        let (Some(answering), Some(own), Some(peer)) = (&self.answering, self.addr(0), self.addr(rank))
        else {
            return Silence::Peer;
        };
        let mut hosts: BTreeMap<IpAddr, bool> = answering.iter().map(|host| (*host, true)).collect();
        for member in self.members.iter().flatten() {
            let is_heard = self.heartbeat.as_ref().is_some_and(|heartbeat| {
                let at = heartbeat.heard_at(member.peer.rank);
                at.is_some_and(|at| now.saturating_duration_since(at) < heartbeat.limit() / 2)
            });
            *hosts.entry(member.addr.ip()).or_default() |= is_heard;
        }
        judge(own.ip(), peer.ip(), &hosts.into_iter().collect::<Vec<_>>())
    }

    pub(super) fn lose(&mut self, rank: usize, how: Loss) -> Mail {
        self.forget(rank);
        let (cause, through) = self.origin(Cause::Lost { peer: self.peer(rank), how });
        let mut mail = self.tell_all(Verdict::Lost { rank, is_gone: true, cause, through });
        // Perhaps it was the last that had not answered.
        mail.extend(self.conclude_answered());
        mail
    }

    /// Declares a rank lost that panicked. It is still there, and hears what comes of it.
    pub(super) fn panicked(&mut self, rank: usize) -> Mail {
        let (cause, through) = self.origin(Cause::Lost { peer: self.peer(rank), how: Loss::Panicked });
        // That it ends after this is no news.
        self.errors[rank].get_or_insert_with(|| cause.clone());
        if !self.panicked.insert(rank) {
            return Vec::new();
        }
        self.tell_all(Verdict::Lost { rank, is_gone: false, cause, through })
    }
}
