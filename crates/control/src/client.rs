//! The control client, one rank's end of the line to the arbiter: a state machine without a socket or a clock.

use super::heartbeat::{Due, Heartbeat};
use super::membership::Membership;
use super::notice::Notice;
use super::outage::Silence;
use phalanx_core::{Loss, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The control client: hears the arbiter's verdicts, and keeps the line to it alive.
#[derive(Debug)]
pub struct ControlClient {
    membership: Arc<Membership>,
    heartbeat: Option<Heartbeat>,
    answers: Vec<Notice>,
}

impl ControlClient {
    /// The rank at the other end.
    const ARBITER: usize = 0;

    /// The client of a line that stands since `now`. If nothing comes for as long as `heartbeat`, the arbiter is lost.
    pub fn new(membership: Arc<Membership>, heartbeat: Option<Duration>, now: Instant) -> Self {
        let mut heartbeat = heartbeat.map(|limit| Heartbeat::new(limit, now));
        heartbeat.iter_mut().for_each(|heartbeat| heartbeat.heard(Self::ARBITER, now));
        Self { membership, heartbeat, answers: Vec::new() }
    }

    /// Takes a message from the arbiter, a [`Verdict`](crate::notice::Verdict) as postcard writes it.
    pub fn hear(&mut self, message: &[u8], now: Instant) {
        self.heartbeat.iter_mut().for_each(|heartbeat| heartbeat.heard(Self::ARBITER, now));
        match postcard::from_bytes(message) {
            Ok(verdict) => {
                self.answers.extend(self.membership.answer(&verdict));
                self.membership.hear(verdict, now);
            }
            Err(error) => tracing::warn!(%error, "a verdict that cannot be read"),
        }
    }

    /// Whether nothing has come for long.
    pub fn is_in_doubt(&self, now: Instant) -> bool {
        self.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.in_doubt(now).next().is_some())
    }

    /// Notes a sign of life of the arbiter that came, though not on this line.
    pub fn heard(&mut self, at: Instant) {
        self.heartbeat.iter_mut().for_each(|heartbeat| heartbeat.heard(Self::ARBITER, at));
    }

    /// Whether that is a loss.
    pub fn line_broke(&self, how: Loss) -> bool {
        self.membership.lost_arbiter(how)
    }

    /// How the arbiter's process ended, if the launcher has said so; or whether there is a launcher that may.
    pub fn exit(&self) -> Result<Loss, bool> {
        let launcher = self.membership.runtime().launcher();
        launcher.and_then(|launcher| launcher.exit_of(Self::ARBITER)).ok_or(launcher.is_some())
    }

    /// When to [`poll`](Self::poll), if nothing comes before.
    pub fn deadline(&self) -> Option<Instant> {
        self.heartbeat.as_ref().map(Heartbeat::deadline)
    }

    /// The notices to send now. Call it after everything that has arrived was heard. `meaning` says whose trouble it is if the arbiter is
    /// silent.
    pub fn poll(&mut self, now: Instant, meaning: impl FnOnce() -> Silence) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.answers);
        let Some(heartbeat) = &mut self.heartbeat else { return notices };
        let Due { beat, silent } = heartbeat.poll(now);
        if !silent.is_empty() {
            let after = heartbeat.limit();
            let me = self.membership.me().rank;
            let failed = |cause| {
                let members = (0..self.membership.world_size()).collect();
                Notice::Failed { group: phalanx_core::WORLD, members, cause }
            };
            match meaning() {
                Silence::Peer => {
                    self.membership.lost_arbiter(Loss::Silent { after });
                    notices.push(Notice::YouWereSilent);
                }
                // What is said now arrives if the cut heals, where nobody should be blamed for it but this host.
                Silence::Itself => notices.push(failed(self.membership.lost_itself(Loss::Silent { after }))),
                Silence::Between => {
                    let how = Loss::Apart { from: me, after };
                    self.membership.lost_arbiter(how);
                    let peer = self.membership.arbiter();
                    notices.push(failed(phalanx_core::Cause::Lost { peer, how }));
                }
            }
        }
        if beat {
            notices.push(Notice::Beat);
        }
        notices
    }
}
