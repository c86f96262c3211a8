//! What a rank hears, and what becomes of its groups.

use super::*;
use phalanx_core::{CallSite, OpKind, Signature, WORLD};
use phalanx_trace::Now;
use std::time::Duration;

/// A process whose time goes on only while it sleeps.
#[derive(Debug)]
struct Virtual(Mutex<Instant>);

impl Runtime for Virtual {
    fn now(&self) -> Instant {
        *lock(&self.0)
    }

    fn sleep(&self, changes: &Changes, seen: u64, limit: Duration) {
        assert_eq!(changes.seen(), seen, "there is something to look at");
        *lock(&self.0) += limit;
    }

    fn trace_time(&self) -> Now {
        Now { at: 0, epoch: 0 }
    }
}

fn membership() -> Arc<Membership> {
    membership_of(0)
}

pub(crate) fn membership_of(rank: usize) -> Arc<Membership> {
    let me = Peer { rank, host: "h".into() };
    let recorded = Recorded { me, world_size: 3, timeout: Duration::from_secs(1) };
    Membership::new(recorded, 64, Arc::new(Virtual(Mutex::new(Instant::now()))))
}

fn lost(rank: usize) -> Verdict {
    let cause = Cause::Lost { peer: Peer { rank, host: "h".into() }, how: Loss::Died };
    Verdict::Lost { rank, is_gone: true, cause, through: None }
}

#[test]
fn a_loss_concerns_the_groups_of_the_lost() {
    let membership = membership();
    let (world, pair) = (membership.latch(WORLD, vec![0, 1, 2]), membership.latch(GroupId(7), vec![0, 1]));
    membership.hear(lost(2), Instant::now());
    assert_eq!(world.cause().and_then(Cause::culprit).map(|p| p.rank), Some(2));
    assert!(pair.cause().is_none());
    membership.hear(lost(1), Instant::now());
    assert_eq!(world.cause().and_then(Cause::culprit).map(|p| p.rank), Some(2), "the first cause stays");
    assert_eq!(pair.cause().and_then(Cause::culprit).map(|p| p.rank), Some(1));
    assert!(membership.latch(GroupId(8), vec![2, 0]).cause().is_some(), "known before the group was");
}

#[test]
fn who_left_a_group_left_that_one_even_before_it_was_made_here() {
    let membership = membership();
    let pair = membership.latch(GroupId(7), vec![0, 1]);
    for group in [7, 8] {
        membership.hear(
            Verdict::LeftGroup { group: GroupId(group), rank: 1, after: None, finished: 0 },
            Instant::now(),
        );
    }
    let left = |latch: &FailureLatch| latch.left_at(1).is_some();
    assert!(left(&pair) && left(&membership.latch(GroupId(8), vec![0, 1])));
    assert!(!left(&membership.latch(WORLD, vec![0, 1, 2])));
    assert_eq!(membership.gone(), [0; 0], "it is in the job still");
}

#[test]
fn who_left_after_a_collective_is_not_missed_in_it() {
    let membership = membership();
    let (world, pair) = (membership.latch(WORLD, vec![0, 1, 2]), membership.latch(GroupId(7), vec![0, 1]));
    membership
        .hear(Verdict::LeftGroup { group: GroupId(7), rank: 0, after: None, finished: 4 }, Instant::now());
    membership.hear(Verdict::Left { rank: 0, after: None, finished: 2 }, Instant::now());
    assert_eq!([2, 3].map(|seq| world.left_before(0, seq)), [false, true]);
    assert_eq!(
        [4, 5].map(|seq| pair.left_before(0, seq)),
        [false, true],
        "what it said of that group counts"
    );
    let unsaid = membership.latch(GroupId(8), vec![0, 1]);
    assert!(unsaid.left_before(0, 1), "how far it came in the group of all ranks says nothing of others");
    assert!(!world.left_before(1, 9), "it has not left");
    assert!(world.left_before(0, 0), "of what has no number nothing is known");
    assert_eq!([2, 3].map(|seq| world.first_that_left_before(seq)), [None, Some(0)]);
}

#[test]
fn who_leaves_the_job_says_how_far_it_came_in_the_group_of_all_ranks() {
    let membership = membership();
    let (world, pair) = (membership.latch(WORLD, vec![0, 1, 2]), membership.latch(GroupId(7), vec![0, 1]));
    assert_eq!(membership.farewell(), Notice::Leave { finished: 0 });
    let barrier = Signature::bare(OpKind::Barrier, CallSite::caller());
    for (latch, ended) in [(&world, 3), (&pair, 5)] {
        for seq in 1..=ended + 1 {
            latch.collectives.begin(seq, &barrier, |_| 2);
            if seq <= ended {
                latch.collectives.end(seq, &barrier, |_| 3);
            }
        }
    }
    assert_eq!(membership.farewell(), Notice::Leave { finished: 3 }, "the fourth has not ended");
}

#[test]
fn no_group_outlives_the_arbiter() {
    let membership = membership();
    let pair = membership.latch(GroupId(7), vec![1, 2]);
    membership.lost_arbiter(Loss::Died);
    assert_eq!(pair.cause().and_then(Cause::culprit).map(|p| p.rank), Some(0));
    assert!(membership.latch(GroupId(8), vec![1, 2]).cause().is_some(), "nor does one begin");
}

#[test]
fn the_arbiter_is_not_lost_where_it_ends_the_line_of_a_rank_that_it_has_given_up() {
    let membership = membership_of(1);
    let world = membership.latch(WORLD, vec![0, 1, 2]);
    membership.hear(lost(1), Instant::now());
    assert!(!membership.lost_arbiter(Loss::Died));
    assert_eq!(membership.gone(), [1]);
    assert_eq!(world.cause().and_then(Cause::culprit).map(|p| p.rank), Some(1));
}

#[test]
fn who_was_given_up_waits_for_nobody() {
    let membership = membership();
    membership.hear(lost(0), Instant::now());
    let begun = membership.runtime().now();
    membership.wait_left(|rank| rank != 0, 3, &Deadline::after(begun, Duration::from_secs(60)));
    assert_eq!(membership.runtime().now(), begun);
}

#[test]
fn who_does_not_leave_is_waited_for_until_the_deadline() {
    let membership = membership();
    let (begun, minute) = (membership.runtime().now(), Duration::from_secs(60));
    membership.wait_left(|rank| rank == 1, 3, &Deadline::after(begun, minute));
    assert_eq!(membership.runtime().now(), begun + minute);
}

#[test]
fn the_arbiter_may_leave_last_without_alarm() {
    let membership = membership();
    let latch = membership.latch(WORLD, vec![0, 1]);
    membership.hear(Verdict::Left { rank: 0, after: None, finished: 0 }, Instant::now());
    membership.lost_arbiter(Loss::Died);
    assert!(latch.cause().is_none() && latch.left_at(0).is_some());
    let membership = self::membership();
    let latch = membership.latch(WORLD, vec![0, 1]);
    membership.lost_arbiter(Loss::Died);
    assert!(latch.cause().is_some());
}

#[test]
fn an_arbiter_that_lies_about_the_members_is_not_believed() {
    let membership = membership();
    membership.hear(Verdict::Complete { members: Default::default() }, Instant::now());
    let now = Deadline::after(membership.runtime().now(), Duration::ZERO);
    assert!(membership.wait_complete(&now).is_err());
    let latch = membership.latch(WORLD, vec![0, 1, 2]);
    membership.lost_arbiter(Loss::Died);
    assert_eq!(latch.cause().and_then(Cause::culprit).map(|p| p.rank), Some(0));
}
