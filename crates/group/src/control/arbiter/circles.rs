//! What the arbiter says of ranks that wait for each other, and of messages that were late.

use super::{Arbiter, Mail};
use crate::control::notice::Verdict;
use crate::control::waits::{Link, Standing, Step, With};
use phalanx_core::{Cause, GroupId, Loss, Wait};

impl Arbiter {
    /// A message was late: its two ends are asked what they do, and who else waits for them.
    pub(super) fn late_message(&mut self, reporter: usize, group: GroupId, cause: Cause) -> Mail {
        let Cause::TimedOut { awaited, .. } = &cause else { return Vec::new() };
        let left = awaited.iter().find(|peer| self.has_left(group, peer.rank)).cloned();
        if let Some(peer) = left {
            let (cause, through) = self.origin(Cause::Lost { peer, how: Loss::Left });
            return self.fail(reporter, group, cause, through);
        }
        let here = |r: &usize| self.members[*r].is_some() && !self.lost.contains(r) && !self.left.contains(r);
        let ranks = (0..self.members.len()).filter(here).collect();
        match self.waits.late(group, reporter, ranks) {
            Some(step) => {
                self.failed_by[reporter] += 1;
                self.late.insert(group, cause);
                self.step(step)
            }
            None => self.fail(reporter, group, cause, None),
        }
    }

    /// Does what was found out of who waits for whom.
    pub(super) fn step(&mut self, step: Step) -> Mail {
        match step {
            Step::Nothing => Vec::new(),
            Step::Ask { round, ranks } => {
                ranks.into_iter().map(|r| (r, Verdict::WhatDoYouWaitFor { round })).collect()
            }
            Step::Deadlock(links) => {
                let cause = Cause::Deadlock { waits: links.iter().map(|link| self.wait(link)).collect() };
                let fail = |(rank, wait, _): &Link| self.fail(*rank, wait.group, cause.clone(), None);
                links.iter().flat_map(fail).collect()
            }
            Step::Late { group, circle, answers } => {
                let Some(mut cause) = self.late.remove(&group) else { return Vec::new() };
                let Cause::TimedOut { reporter, awaited, meanwhile, .. } = &mut cause else {
                    return Vec::new();
                };
                let first = reporter.rank;
                *meanwhile = awaited
                    .iter()
                    .filter_map(|peer| self.doing(peer.rank, answers.get(&peer.rank)?))
                    .collect();
                if !circle.is_empty() {
                    cause = Cause::Deadlock { waits: circle.iter().map(|link| self.wait(link)).collect() };
                }
                // Whoever it waited for may have an error of its own.
                let (cause, through) = self.excused(cause);
                self.fail(first, group, cause, through)
            }
        }
    }

    /// A wait, as errors tell it.
    fn wait(&self, (rank, wait, on): &Link) -> Wait {
        let (seq, tag) = match wait.with {
            With::Peer(_, tag) => (0, Some(tag)),
            With::Members(..) => (wait.number, None),
        };
        Wait { peer: self.peer(*rank), call: wait.call.clone(), seq, tag, on: *on }
    }

    /// What a rank does that was waited for in vain: the latest of its operations, and for whom it waits there, as far as can be said.
    fn doing(&self, rank: usize, standing: &Standing) -> Option<Wait> {
        let wait = standing.waits.last()?;
        let on = match &wait.with {
            With::Peer(peer, _) => *peer,
            With::Members(members, _) => {
                let is_behind =
                    |&&other: &&usize| other != rank && self.place(wait.group, other) < wait.number;
                *members.iter().find(is_behind)?
            }
        };
        Some(self.wait(&(rank, wait.clone(), on)))
    }
}
