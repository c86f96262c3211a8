//! The waits of a rank in one group.

use super::FailureLatch;
use crate::lock::lock;
use crate::wait_graph::{Pending, Standing, With};
use phalanx_core::{Cause, Envelope};
use phalanx_trace::Call;
use std::sync::atomic::Ordering;

impl FailureLatch {
    /// Adds what this rank waits for in this group; false if it can go on by itself, or not all can be told.
    pub fn tell_waits(&self, standing: &mut Standing) -> bool {
        let (collective, place) = self.collectives.open_collective();
        standing.places.push((self.group, place));
        let takes = self.takes_messages.load(Ordering::Relaxed);
        let in_turn = collective.into_iter().map(|call| (call, With::Members(self.members.clone(), takes)));
        let Some(messages) = self.messages.open_messages() else { return false };
        let to_peers = messages.into_iter().filter_map(|call| {
            let Envelope { peer, tag } = call.with?;
            let with = peer.map_or_else(|| With::Any(self.still_here(), tag), |peer| With::Peer(peer, tag));
            Some((call, with))
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
    pub fn failing(&self) -> Option<Cause> {
        let cause = self.first_cause().filter(|_| !self.returned.load(Ordering::Acquire))?;
        let is_open = || {
            self.collectives.open_collective().0.is_some()
                || self.messages.open_messages().is_none_or(|messages| !messages.is_empty())
        };
        is_open().then(|| cause.clone())
    }
}
