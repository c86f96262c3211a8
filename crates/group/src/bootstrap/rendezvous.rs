//! How a rank waits for the others at the start. A state machine without a clock.

use crate::control::membership::Incomplete;
use crate::control::notice::Notice;
use phalanx_core::{Cause, Deadline, Error, OpKind, Peer, WORLD};
use std::time::{Duration, Instant};

/// How often a waiting rank asks who is missing.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// One rank's wait.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    pub(crate) me: Peer,
    pub(crate) world_size: usize,
    pub(crate) deadline: Deadline,
}

/// A step to take while not all ranks are there.
#[derive(Debug)]
pub(crate) enum Step {
    /// Tell this, and wait on.
    Ask(Notice),
    /// The wait is over: tell this, if anything, and end in this error.
    End(Option<Notice>, Error),
}

impl Rendezvous {
    /// How long to wait before the next [`step`](Self::step).
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        // The arbiter looks at all ranks for an answer, so in a large job each of them asks less often.
        let interval = ASK_INTERVAL.max(Duration::from_millis(self.world_size as u64));
        interval.min(self.deadline.remaining(now) / 2).max(Duration::from_millis(10))
    }

    /// Not all have come.
    pub(crate) fn step(&self, incomplete: Incomplete, now: Instant) -> Step {
        let (rank, world_size, waited) = (self.me.rank, self.world_size, self.deadline.elapsed(now));
        let Incomplete { missing, hopeless } = incomplete;
        if let Some(cause) = hopeless {
            let what = match *cause {
                Cause::TimedOut { missing, .. } => {
                    missing_text(&missing.iter().map(|p| p.rank).collect::<Vec<_>>(), world_size)
                }
                // In its own words.
                Cause::Aborted { reason, .. } => reason,
                cause => cause.to_string(),
            };
            return Step::End(None, Error::Rendezvous { rank, world_size, what, waited });
        }
        if self.deadline.has_passed(now) {
            // Said before this rank goes, so that the others don't take it for the one who failed.
            let absent = missing.iter().map(|&rank| Peer { rank, host: "never joined".into() });
            let cause = Cause::TimedOut {
                reporter: self.me.clone(),
                op: OpKind::Init,
                seq: 0,
                site: None,
                envelope: None,
                waited,
                awaited: Vec::new(),
                missing: absent.collect(),
                meanwhile: Vec::new(),
            };
            let notice = Notice::Failed { group: WORLD, members: (0..world_size).collect(), cause };
            let what = missing_text(&missing, world_size);
            return Step::End(Some(notice), Error::Rendezvous { rank, world_size, what, waited });
        }
        if !missing.is_empty() {
            let have = world_size - missing.len();
            tracing::info!(rank, ?missing, have, world_size, "waiting for ranks");
        }
        Step::Ask(Notice::WhoIsMissing)
    }

    /// Tells those who have joined why this rank goes. If they know a reason already, that one stays.
    pub(crate) fn give_up(&self, error: &Error) -> Notice {
        let words = match error {
            Error::Rendezvous { what, .. } => what.clone(),
            other => other.to_string(),
        };
        let reason = crate::control::limits::cut(&format!("{} gave up: {words}", self.me));
        let cause = Cause::Aborted { peer: self.me.clone(), reason };
        Notice::Failed { group: WORLD, members: (0..self.world_size).collect(), cause }
    }
}

fn missing_text(missing: &[usize], world_size: usize) -> String {
    format!("{} of {world_size} ranks came, missing: {missing:?}", world_size - missing.len())
}
