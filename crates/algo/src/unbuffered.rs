//! Runs the schedules of all ranks at once without any buffering, and without data.

use crate::{Recv, Send, Step};
use std::fmt;

/// What happens, in an order that respects every dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The send of one step met the receive of another.
    Transfer {
        from: At,
        to: At,
        /// 1 + the transfers that had to come before, one after the other.
        round: usize,
    },
    /// Both halves of a step are through: what it received is in place, and the rank goes on.
    Done(At),
}

/// A step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) rank: usize,
    pub(crate) step: usize,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of rank {}", self.step, self.rank)
    }
}

/// Performs the schedules by rendezvous: a rank posts both halves of its step, each half waits until the peer posts the
/// other end, and the rank goes on when both are through. No message is ever held in between, so schedules that end
/// here end over any transport.
///
/// Which of several possible transfers is taken first makes no difference: none can disable another.
///
/// # Errors
/// Says which ranks can't go on and why: a peer that does not exist, a transfer whose ends differ in length,
/// a message that nobody takes, or ranks that wait in a circle.
pub(crate) fn run(schedules: &[Vec<Step>]) -> Result<Vec<Event>, String> {
    check_peers(schedules)?;
    let mut ranks: Vec<_> =
        schedules.iter().enumerate().map(|(rank, steps)| Progress::new(rank, steps)).collect();
    let mut events = Vec::new();
    let mut awake: Vec<usize> = (0..ranks.len()).rev().collect();
    while let Some(rank) = awake.pop() {
        let ends = (ranks[rank].sending().map(|s| s.peer), ranks[rank].receiving().map(|r| r.peer));
        for (src, dst) in [ends.0.map(|dst| (rank, dst)), ends.1.map(|src| (src, rank))].into_iter().flatten()
        {
            if let Some(transfer) = meet(&mut ranks, src, dst)? {
                events.push(transfer);
                awake.extend([src, dst]);
            }
        }
        if let Some(done) = ranks[rank].advance() {
            events.push(done);
            awake.push(rank);
        }
    }
    match ranks.iter().position(|r| r.current().is_some()) {
        None => Ok(events),
        Some(stuck) => Err(explain(&ranks, stuck)),
    }
}

fn check_peers(schedules: &[Vec<Step>]) -> Result<(), String> {
    for (rank, steps) in schedules.iter().enumerate() {
        for (step, halves) in steps.iter().enumerate() {
            let peers = [halves.send.as_ref().map(|s| s.peer), halves.recv.as_ref().map(|r| r.peer)];
            if let Some(peer) = peers.into_iter().flatten().find(|&p| p == rank || p >= schedules.len()) {
                return Err(format!("{}: rank {peer} is not a peer", At { rank, step }));
            }
        }
    }
    Ok(())
}

/// How far one rank has come.
struct Progress<'a> {
    steps: &'a [Step],
    at: At,
    sent: bool,
    received: bool,
    /// Rounds until this step was posted, and until those of its halves that are through were so.
    posted_after: usize,
    through_after: usize,
}

impl<'a> Progress<'a> {
    fn new(rank: usize, steps: &'a [Step]) -> Self {
        let at = At { rank, step: 0 };
        Self { steps, at, sent: false, received: false, posted_after: 0, through_after: 0 }
    }

    fn current(&self) -> Option<&'a Step> {
        self.steps.get(self.at.step)
    }

    /// The outgoing half, while it waits.
    fn sending(&self) -> Option<&'a Send> {
        self.current().and_then(|s| s.send.as_ref()).filter(|_| !self.sent)
    }

    /// The incoming half, while it waits.
    fn receiving(&self) -> Option<&'a Recv> {
        self.current().and_then(|s| s.recv.as_ref()).filter(|_| !self.received)
    }

    /// Goes on to the next step if nothing of this one waits.
    fn advance(&mut self) -> Option<Event> {
        if self.current().is_none() || self.sending().is_some() || self.receiving().is_some() {
            return None;
        }
        let done = self.at;
        self.at.step += 1;
        (self.sent, self.received) = (false, false);
        self.posted_after = self.through_after;
        Some(Event::Done(done))
    }
}

/// The transfer from `src` to `dst`, if both wait for it.
fn meet(ranks: &mut [Progress<'_>], src: usize, dst: usize) -> Result<Option<Event>, String> {
    let (from, to) = (ranks[src].at, ranks[dst].at);
    let (Some(send), Some(recv)) = (ranks[src].sending(), ranks[dst].receiving()) else { return Ok(None) };
    if send.peer != dst || recv.peer != src {
        return Ok(None);
    }
    if send.span.len() != recv.span.len() {
        let (sent, expected) = (send.span.len(), recv.span.len());
        return Err(format!("{from} sends {sent} elements, but {to} expects {expected}"));
    }
    let round = 1 + ranks[src].posted_after.max(ranks[dst].posted_after);
    ranks[src].sent = true;
    ranks[dst].received = true;
    for rank in [src, dst] {
        ranks[rank].through_after = ranks[rank].through_after.max(round);
    }
    Ok(Some(Event::Transfer { from, to, round }))
}

/// Why `rank` can't go on, following those it waits for until one is met twice or has ended.
fn explain(ranks: &[Progress<'_>], mut rank: usize) -> String {
    let mut chain: Vec<String> = Vec::new();
    let mut seen = vec![false; ranks.len()];
    while !std::mem::replace(&mut seen[rank], true) {
        let stuck = &ranks[rank];
        let (verb, peer) = match (stuck.sending(), stuck.receiving()) {
            (Some(send), _) => ("sends to", send.peer),
            (None, Some(recv)) => ("receives from", recv.peer),
            (None, None) => {
                return format!("{}, which has ended: nobody takes the other end", chain.join(", which "));
            }
        };
        let place =
            if chain.is_empty() { stuck.at.to_string() } else { format!("in step {}", stuck.at.step) };
        chain.push(format!("{place} {verb} rank {peer}"));
        rank = peer;
    }
    format!("circular wait: {}, which waits itself", chain.join(", which "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;

    fn send(peer: usize, len: usize) -> Option<Send> {
        Some(Send { peer, span: (0..len).into() })
    }

    fn recv(peer: usize, len: usize) -> Option<Recv> {
        Some(Recv { peer, span: (0..len).into(), action: Action::Copy })
    }

    #[test]
    fn both_halves_of_a_step_are_posted_together() {
        let swap = |peer| vec![Step { send: send(peer, 3), recv: recv(peer, 3) }];
        let events = run(&[swap(1), swap(0)]).unwrap();
        assert_eq!(events.iter().filter(|e| matches!(e, Event::Transfer { round: 1, .. })).count(), 2);
    }

    #[test]
    fn two_that_send_first_wait_for_each_other() {
        let steps =
            |peer| vec![Step { send: send(peer, 3), recv: None }, Step { send: None, recv: recv(peer, 3) }];
        let why = run(&[steps(1), steps(0)]).unwrap_err();
        assert_eq!(
            why,
            "circular wait: step 0 of rank 0 sends to rank 1, which in step 0 sends to rank 0, which waits itself"
        );
    }

    #[test]
    fn rounds_count_transfers_one_after_the_other() {
        let relay = vec![Step { send: None, recv: recv(0, 1) }, Step { send: send(2, 1), recv: None }];
        let events = run(&[
            vec![Step { send: send(1, 1), recv: None }],
            relay,
            vec![Step { send: None, recv: recv(1, 1) }],
        ]);
        let rounds: Vec<_> = events
            .unwrap()
            .iter()
            .filter_map(|e| if let Event::Transfer { round, .. } = e { Some(*round) } else { None })
            .collect();
        assert_eq!(rounds, [1, 2]);
    }
}
