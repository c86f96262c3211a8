//! The arbiter's part against ranks that wait for each other.

use super::{Arbiter, Mail};
use crate::notice::Verdict;
use crate::wait_graph::{Link, Step, With};
use phalanx_core::{Cause, Wait};

impl Arbiter {
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
            Step::Surveyed => self.conclude_answered(),
        }
    }

    /// A wait, as errors tell it.
    pub(super) fn wait(&self, (rank, wait, on): &Link) -> Wait {
        let (seq, tag) = match wait.with {
            With::Peer(_, tag) | With::Any(_, tag) => (0, Some(tag)),
            With::Members(..) => (wait.number, None),
        };
        Wait { peer: self.peer(*rank), call: wait.call.clone(), seq, tag, on: *on }
    }
}
