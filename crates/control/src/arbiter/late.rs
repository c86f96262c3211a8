//! What the arbiter decides of calls that were late.
//!
//! A rank that is late sees only that others have not come. Those may wait themselves, in another group, for a rank that does nothing: that one is
//! named. So all ranks are asked for what they wait, once for all calls that are late at that time.

use super::inquiry::Inquiry;
use super::{Arbiter, Mail};
use crate::notice::{Through, Verdict};
use crate::wait_graph::wait_ends;
use phalanx_core::{Cause, Envelope, GroupId, Loss, Peer};
use std::collections::BTreeSet;

impl Arbiter {
    /// A call was late. Who came to it, and what the others do instead, only the ranks know.
    pub(super) fn inquire(
        &mut self,
        reporter: usize,
        group: GroupId,
        members: Vec<usize>,
        cause: Cause,
    ) -> Mail {
        let Cause::TimedOut { seq, awaited, .. } = &cause else { return Vec::new() };
        let seq = *seq;
        if seq == 0
            && !is_for_any(&cause)
            && let Some(peer) = awaited.iter().find(|peer| self.has_left(group, peer.rank)).cloned()
        {
            let (cause, through) = self.origin(Cause::Lost { peer, how: Loss::Left });
            return self.fail(reporter, group, cause, through);
        }
        let is_open = |&r: &usize| r != reporter && !self.has_left(group, r) && self.place(group, r) < seq;
        let unheard: BTreeSet<usize> = members.iter().copied().filter(is_open).collect();
        let mut mail: Mail = unheard.iter().map(|&r| (r, Verdict::WhereAreYou { group })).collect();
        let here =
            |r: &usize| self.members[*r].is_some() && !self.lost.contains(r) && !self.left.contains_key(r);
        let here = (0..self.members.len()).filter(here).collect();
        // Whoever has reported another cause, and was doubted, insists when it does so again.
        let doubted = self.doubted.iter().filter(|(_, (of, _))| *of == group).map(|((rank, _), _)| *rank);
        let reporters = doubted.chain([reporter]).collect();
        self.inquiries.insert(group, Inquiry { reporters, members, cause, unheard, insisted: false });
        self.failed_by[reporter] += 1;
        let step = self.waits.survey(here);
        mail.extend(self.step(step));
        mail
    }

    /// A rank that reports something twice waits no longer.
    pub(super) fn insist(&mut self, reporter: usize, group: GroupId) -> Mail {
        if let Some(inquiry) = self.inquiries.get_mut(&group) {
            inquiry.insisted |= !inquiry.reporters.insert(reporter);
        }
        Vec::new()
    }

    /// Closes inquiries that a reporter insists on: a rank that has not answered any question by now never will.
    pub(super) fn close_insisted(&mut self) -> Mail {
        if !self.inquiries.values().any(|inquiry| inquiry.insisted) {
            return Vec::new();
        }
        self.waits.close_survey();
        for inquiry in self.inquiries.values_mut().filter(|inquiry| inquiry.insisted) {
            inquiry.unheard.clear();
        }
        self.conclude_answered()
    }

    /// Decides on all late calls of which everything is known that will be known.
    pub(super) fn conclude_answered(&mut self) -> Mail {
        if !self.waits.is_surveyed() {
            return Vec::new();
        }
        let silent = |rank: &usize| self.waits.answers().is_none_or(|answers| !answers.contains_key(rank));
        let is_answered = |inquiry: &Inquiry| inquiry.unheard.iter().all(silent);
        let answered = self.inquiries.iter().filter(|(_, inquiry)| is_answered(inquiry));
        let mut answered: Vec<GroupId> = answered.map(|(&group, _)| group).collect();
        // In one order, whatever the map's is.
        answered.sort();
        let mut judged = Vec::new();
        for group in answered {
            let Some(inquiry) = self.inquiries.remove(&group) else { continue };
            let first = inquiry.reporters.first().copied().unwrap_or(0);
            judged.push((first, group, self.judge_late(group, inquiry)));
        }
        if self.inquiries.is_empty() {
            self.waits.end_survey();
        }
        let fail = |(first, group, (cause, through))| self.fail(first, group, cause, through);
        judged.into_iter().flat_map(fail).collect()
    }

    /// Why a call was late, by what is known now.
    fn judge_late(&self, group: GroupId, inquiry: Inquiry) -> (Cause, Through) {
        let Inquiry { members, cause, .. } = inquiry;
        let for_any = is_for_any(&cause);
        let Cause::TimedOut { reporter, op, seq, site, envelope, waited, awaited, .. } = cause else {
            return (cause, None);
        };
        // Who has left in order is another matter.
        let is_absent =
            |&r: &usize| r != reporter.rank && !self.has_left(group, r) && self.place(group, r) < seq;
        let absent: Vec<usize> = match seq {
            // A rank that has left sends nothing any more, and it was expected to send no more than the others.
            0 if for_any => {
                let here = awaited.iter().filter(|peer| !self.has_left(group, peer.rank));
                here.map(|peer| peer.rank).collect()
            }
            0 => awaited.iter().map(|peer| peer.rank).collect(),
            _ => members.iter().copied().filter(is_absent).collect(),
        };
        if absent.is_empty() {
            // Whoever this rank waits for may itself wait for another, which left before it came to this, or after an error.
            let is_missed = |&&r: &&usize| self.left_before(group, r, seq);
            let has_fallen = |&&r: &&usize| self.has_left(group, r) && self.errors[r].is_some();
            let awaits = awaited.iter().map(|peer| &peer.rank);
            let left = awaits.clone().find(is_missed).or_else(|| members.iter().find(is_missed));
            let left = left.or_else(|| awaits.clone().find(|&&r| self.has_left(group, r)));
            let left = left.or_else(|| members.iter().find(has_fallen)).map(|&r| self.peer(r));
            if let Some(peer) = left {
                let how = if for_any { Loss::LeftLast } else { Loss::Left };
                return self.origin(Cause::Lost { peer, how });
            }
        }
        let none = Default::default();
        let answers = self.waits.answers().unwrap_or(&none);
        let error_of = |rank: usize| {
            let failing = || answers.get(&rank).and_then(|standing| standing.failing.as_ref());
            self.errors[rank].as_ref().or_else(failing)
        };
        let has_left = |group, rank| self.has_left(group, rank);
        let mut ends = wait_ends(&absent, answers, |rank| error_of(rank).is_some(), has_left);
        // Who is furthest behind comes first.
        let order = |rank: &usize| (answers.contains_key(rank), self.place(group, *rank), *rank);
        ends.roots.sort_by_key(order);
        ends.fallen.sort_by_key(order);
        if ends.roots.is_empty() {
            if let Some(&first) = ends.fallen.first()
                && let Some(cause) = error_of(first)
            {
                return (cause.clone(), Some((self.peer(first), Loss::LeftAfterError)));
            }
            // A collective is late by who has not come to it, and says what those do.
            if !ends.circle.is_empty() && seq == 0 {
                let waits = ends.circle.iter().map(|link| self.wait(link)).collect();
                return (Cause::Deadlock { waits }, None);
            }
            ends.roots = absent;
        }
        if for_any {
            // Any of the others might have sent.
            ends.roots.clear();
        }
        let peers = |ranks: &[usize]| ranks.iter().map(|&rank| self.peer(rank)).collect::<Vec<Peer>>();
        let missing = peers(&ends.roots);
        let others = ends.meanwhile.iter().filter(|(rank, ..)| *rank != reporter.rank);
        let meanwhile = others.map(|link| self.wait(link)).collect();
        (Cause::TimedOut { reporter, op, seq, site, envelope, waited, awaited, missing, meanwhile }, None)
    }
}

/// Whether a message was late that any rank might have sent.
fn is_for_any(cause: &Cause) -> bool {
    matches!(cause, Cause::TimedOut { envelope: Some(Envelope { peer: None, .. }), .. })
}
