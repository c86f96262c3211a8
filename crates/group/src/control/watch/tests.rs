//! What a rank hears, and what becomes of its groups.

use super::*;
use phalanx_core::WORLD;

fn watch() -> Arc<Watch> {
    let me = Peer { rank: 0, host: "h".into() };
    Watch::new(Recorder::new(me, 3, std::time::Duration::from_secs(1)))
}

fn lost(rank: usize) -> Verdict {
    let cause = Cause::Lost { peer: Peer { rank, host: "h".into() }, how: Loss::Died };
    Verdict::Lost { rank, is_gone: true, cause, through: None }
}

#[test]
fn a_loss_concerns_the_groups_of_the_lost() {
    let watch = watch();
    let (world, pair) = (watch.alarm(WORLD, vec![0, 1, 2]), watch.alarm(GroupId(7), vec![0, 1]));
    watch.hear(lost(2), Instant::now());
    assert_eq!(world.cause().and_then(Cause::culprit).map(|p| p.rank), Some(2));
    assert!(pair.cause().is_none());
    watch.hear(lost(1), Instant::now());
    assert_eq!(world.cause().and_then(Cause::culprit).map(|p| p.rank), Some(2), "the first cause stays");
    assert_eq!(pair.cause().and_then(Cause::culprit).map(|p| p.rank), Some(1));
    assert!(watch.alarm(GroupId(8), vec![2, 0]).cause().is_some(), "known before the group was");
}

#[test]
fn who_left_a_group_left_that_one_even_before_it_was_made_here() {
    let watch = watch();
    let pair = watch.alarm(GroupId(7), vec![0, 1]);
    for group in [7, 8] {
        watch.hear(Verdict::LeftGroup { group: GroupId(group), rank: 1, after: None }, Instant::now());
    }
    let left = |alarm: &Alarm| alarm.left_at(1).is_some();
    assert!(left(&pair) && left(&watch.alarm(GroupId(8), vec![0, 1])));
    assert!(!left(&watch.alarm(WORLD, vec![0, 1, 2])));
    assert_eq!(watch.gone(), [0; 0], "it is in the job still");
}

#[test]
fn no_group_outlives_the_arbiter() {
    let watch = watch();
    let pair = watch.alarm(GroupId(7), vec![1, 2]);
    watch.lost_arbiter(Loss::Died);
    assert_eq!(pair.cause().and_then(Cause::culprit).map(|p| p.rank), Some(0));
    assert!(watch.alarm(GroupId(8), vec![1, 2]).cause().is_some(), "nor does one begin");
}

#[test]
fn who_was_given_up_waits_for_nobody() {
    let watch = watch();
    watch.hear(lost(0), Instant::now());
    let begun = Instant::now();
    let minute = std::time::Duration::from_secs(60);
    watch.wait_left(|rank| rank != 0, 3, &Deadline::after(begun, minute));
    assert!(begun.elapsed() < minute);
}

#[test]
fn the_arbiter_may_leave_last_without_alarm() {
    let watch = watch();
    let alarm = watch.alarm(WORLD, vec![0, 1]);
    watch.hear(Verdict::Left { rank: 0, after: None }, Instant::now());
    watch.lost_arbiter(Loss::Died);
    assert!(alarm.cause().is_none() && alarm.left_at(0).is_some());
    let watch = self::watch();
    let alarm = watch.alarm(WORLD, vec![0, 1]);
    watch.lost_arbiter(Loss::Died);
    assert!(alarm.cause().is_some());
}

#[test]
fn an_arbiter_that_lies_about_the_members_is_not_believed() {
    let watch = watch();
    watch.hear(Verdict::Complete { members: Vec::new() }, Instant::now());
    let now = Deadline::after(Instant::now(), std::time::Duration::ZERO);
    assert!(watch.wait_complete(&now).is_err());
    let alarm = watch.alarm(WORLD, vec![0, 1, 2]);
    watch.lost_arbiter(Loss::Died);
    assert_eq!(alarm.cause().and_then(Cause::culprit).map(|p| p.rank), Some(0));
}
