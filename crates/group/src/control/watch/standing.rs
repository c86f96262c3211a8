//! What a rank waits for, in all its groups.

use super::{Alarm, State, Watch, lock};
use crate::control::waits::{COUNTS_MAX, Pending, Standing, WAITS_MAX, With};
use crate::trace::log::Call;
use phalanx_core::Cause;
use std::sync::atomic::Ordering;

impl Alarm {
    /// Adds what this rank waits for in this group; false if it can go on by itself, or not all can be told.
    fn tell_waits(&self, standing: &mut Standing) -> bool {
        let (collective, place) = self.collectives.open_collective();
        standing.places.push((self.group, place));
        let takes = self.takes_messages.load(Ordering::Relaxed);
        let in_turn = collective.into_iter().map(|call| (call, With::Members(self.members.clone(), takes)));
        let Some(messages) = self.messages.open_messages() else { return false };
        let to_peers = messages.into_iter().filter_map(|call| {
            let (peer, tag) = call.with?;
            Some((call, With::Peer(peer, tag)))
        });
        let pending = |(call, with): (Call, With)| Pending {
            group: self.group,
            number: call.number,
            call: call.signature,
            with,
        };
        standing.waits.extend(in_turn.chain(to_peers).map(pending));
        for (members, tally) in &*lock(&self.links) {
            standing.bytes = standing.bytes.wrapping_add(tally.bytes());
            let counts = members
                .iter()
                .enumerate()
                .map(|(at, &peer)| (self.group, peer, tally.begun(at), tally.arrived(at)));
            standing.messages.extend(counts.filter(|(.., sent, come)| sent + come > 0));
        }
        self.in_vain.load(Ordering::Relaxed) == 0
    }

    /// For what an operation of this rank in this group fails, while the program has not heard of it.
    fn failing(&self) -> Option<Cause> {
        let cause = self.first_cause().filter(|_| !self.returned.load(Ordering::Acquire))?;
        let is_open = || {
            self.collectives.open_collective().0.is_some()
                || self.messages.open_messages().is_none_or(|messages| !messages.is_empty())
        };
        is_open().then(|| cause.clone())
    }
}

impl Watch {
    /// What this rank waits for now.
    pub(crate) fn standing(&self) -> Standing {
        let standing = self.waits();
        let stands = standing.stands && self.waiting.is_all(self.program.get().copied());
        // What has changed meanwhile is not all it waits for.
        let stands = stands && self.waits() == standing;
        Standing { stands, ..standing }
    }

    /// The same, but not whether the program can do anything.
    pub(crate) fn waits(&self) -> Standing {
        let mut standing = Standing { stands: true, ..Standing::default() };
        for alarm in lock(&self.state).groups() {
            if alarm.first_cause().is_none() {
                standing.stands &= alarm.tell_waits(&mut standing);
            } else if standing.failing.is_none() {
                standing.failing = alarm.failing();
            }
        }
        let Standing { waits, places, messages, stands, .. } = &mut standing;
        *stands &= waits.len() <= WAITS_MAX && places.len().max(messages.len()) <= COUNTS_MAX;
        waits.truncate(WAITS_MAX);
        places.truncate(COUNTS_MAX);
        messages.truncate(COUNTS_MAX);
        standing
    }
}

impl State {
    /// What the arbiter said first of any group of the job.
    pub(super) fn first_cause(&self) -> Option<Cause> {
        self.verdicts.first().map(|(_, cause, _)| cause.clone())
    }
}
