//! When a rank that waits for long says so, and for whom. A state machine without a clock.
//!
//! An operation has minutes, since deaths and silence are found without its limit. Whoever looks at a job that stands still must not have
//! to wait for the limit to learn which rank is late.

use phalanx_core::{OpKind, Signature};
use std::fmt::Display;
use std::time::Duration;

/// When it is said first; then after twice that, and so on.
const FIRST: Duration = Duration::from_secs(30);
/// The least time before the first reminder: it comes after half of a limit that is shorter than usual, but not before this.
const FIRST_MIN: Duration = Duration::from_secs(1);
/// How long the arbiter's answer may take.
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// One call's wait.
#[derive(Debug)]
pub struct Reminder {
    next: Duration,
    asked: u32,
}

/// A reminder that is due.
#[derive(Debug, PartialEq, Eq)]
pub enum Reminding {
    Nothing,
    /// Ask the arbiter who has not come.
    Ask,
    /// Warn who is waited for.
    Say,
}

impl Reminder {
    /// The reminder of a call with this limit that has waited for so long. What was due before is not said again.
    pub fn new(limit: Duration, waited: Duration) -> Self {
        let mut next = FIRST.min((limit / 2).max(FIRST_MIN));
        while next <= waited {
            next = next.saturating_mul(2);
        }
        Self { next, asked: 0 }
    }

    /// The arbiter is asked twice: its first answer is what it has heard so far, and it asks the ranks that seem late.
    fn due(&self) -> Duration {
        match self.asked {
            0 => self.next - 2 * ANSWER_TIME,
            1 => self.next - ANSWER_TIME,
            _ => self.next,
        }
    }

    /// How long until something is due.
    pub fn left(&self, waited: Duration) -> Duration {
        self.due().saturating_sub(waited)
    }

    pub fn poll(&mut self, waited: Duration) -> Reminding {
        if waited < self.due() {
            return Reminding::Nothing;
        }
        if self.asked < 2 {
            self.asked += 1;
            return Reminding::Ask;
        }
        while self.next <= waited {
            self.next = self.next.saturating_mul(2);
        }
        self.asked = 0;
        Reminding::Say
    }
}

/// `still waiting for rank 2 (h:1), rank 3 (h:2)`
pub fn waiting_for(awaited: &[impl Display]) -> String {
    still_waiting(" for ", awaited)
}

fn still_waiting(first: &str, awaited: &[impl Display]) -> String {
    const NAMED_MAX: usize = 8;
    let mut words = String::from("still waiting");
    for (i, peer) in awaited.iter().take(NAMED_MAX).enumerate() {
        words.push_str(if i == 0 { first } else { ", " });
        words.push_str(&peer.to_string());
    }
    if awaited.len() > NAMED_MAX {
        words.push_str(&format!(" and {} others", awaited.len() - NAMED_MAX));
    }
    words
}

/// `still waiting for rank 2 (h:1) in all_reduce #7 of world (train.rs:41), for 30 s`
pub fn words(
    awaited: &[impl Display],
    signature: &Signature,
    seq: u64,
    of: &str,
    waited: Duration,
) -> String {
    let any = signature.op == OpKind::RecvAny && awaited.len() > 1;
    let mut words = still_waiting(if any { " for any of " } else { " for " }, awaited);
    words.push_str(&format!(" in {}", signature.op));
    if seq > 0 {
        words.push_str(&format!(" #{seq}"));
    }
    words.push_str(&format!(" of {of} ({}), for {:.0} s", signature.site, waited.as_secs_f64()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::{CallSite, Peer};

    const fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    /// When it is said, if somebody looks every 100 ms for so long.
    fn said(mut reminder: Reminder, from: Duration, until: Duration) -> (Vec<Duration>, u32) {
        let (mut said, mut asked, mut now) = (Vec::new(), 0, from);
        while now < until {
            match reminder.poll(now) {
                Reminding::Nothing => {
                    assert!(reminder.left(now) > Duration::ZERO, "it would spin");
                    now += Duration::from_millis(100);
                }
                Reminding::Ask => asked += 1,
                Reminding::Say => said.push(now),
            }
        }
        (said, asked)
    }

    #[test]
    fn it_is_said_after_half_a_minute_and_then_ever_more_rarely() {
        let of = |limit, from| said(Reminder::new(limit, from), from, seconds(600));
        assert_eq!(of(seconds(600), Duration::ZERO), ([30, 60, 120, 240, 480].map(seconds).to_vec(), 10));
        assert_eq!(of(seconds(600), seconds(70)).0, [120, 240, 480].map(seconds), "the part before said it");
        assert_eq!(of(seconds(8), Duration::ZERO).0[..2], [4, 8].map(seconds));
        assert_eq!(of(Duration::ZERO, Duration::ZERO).0[0], FIRST_MIN);
    }

    #[test]
    fn who_looks_seldom_says_it_once() {
        let mut reminder = Reminder::new(seconds(600), Duration::ZERO);
        let polls = [100, 100, 100, 100].map(|s| reminder.poll(seconds(s)));
        assert_eq!(polls, [Reminding::Ask, Reminding::Ask, Reminding::Say, Reminding::Nothing]);
    }

    #[test]
    fn it_names_whom_where_and_for_how_long() {
        let site = CallSite { file: "train.rs".into(), line: 41 };
        let op = OpKind::AllReduce;
        let signature = Signature::bare(op, site);
        let peers: Vec<_> = (0..11).map(|rank| Peer { rank, host: "h:1".into() }).collect();
        let said = |peers, seq| words(peers, &signature, seq, "world", seconds(30));
        assert_eq!(
            said(&peers[2..3], 7),
            "still waiting for rank 2 (h:1) in all_reduce #7 of world (train.rs:41), for 30 s"
        );
        assert_eq!(
            words(&[] as &[Peer], &signature, 0, "world", seconds(30)),
            "still waiting in all_reduce of world (train.rs:41), for 30 s"
        );
        let any = Signature { op: OpKind::RecvAny, ..signature.clone() };
        assert_eq!(
            words(&peers[1..3], &any, 0, "world", seconds(30)),
            "still waiting for any of rank 1 (h:1), rank 2 (h:1) in recv_any of world (train.rs:41), for 30 s"
        );
        assert!(said(&peers, 7).contains("rank 7 (h:1) and 3 others in all_reduce"));
    }
}
