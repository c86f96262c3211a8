//! What the arbiter decides, notice by notice.

use super::*;
use crate::wait_graph::{Pending, Standing, With};
use phalanx_core::{CallSite, Method, OpKind};
use std::net::SocketAddr;
use std::time::Duration;

mod late;

fn joined(world_size: usize) -> Arbiter {
    joined_to(Arbiter::new(world_size, None))
}

fn joined_to(mut arbiter: Arbiter) -> Arbiter {
    let world_size = arbiter.members.len();
    for rank in 0..world_size {
        let addr = SocketAddr::from(([127, 0, 0, 1], 1000 + rank as u16));
        let host = format!("h{rank}");
        let mail = arbiter.handle(rank, Notice::Join { host, addr, local: None, settings: String::new() });
        assert_eq!(mail.len(), if rank + 1 == world_size { world_size } else { 0 });
    }
    arbiter
}

fn peer(rank: usize) -> Peer {
    Peer { rank, host: format!("h{rank}") }
}

/// What is said of a rank whose loss is a cause of its own.
fn lost(rank: usize, how: Loss) -> Verdict {
    Verdict::Lost { rank, is_gone: true, cause: Cause::Lost { peer: peer(rank), how }, through: None }
}

fn signature(count: u64) -> Signature {
    let site = CallSite { file: "a.rs".into(), line: count as u32 };
    Signature {
        op: OpKind::Barrier,
        dtype: None,
        count,
        reduce: None,
        root: None,
        detail: 0,
        method: Method::UNSAID,
        site,
    }
}

#[test]
fn a_rank_is_admitted_once() {
    let mut arbiter = Arbiter::new(2, None);
    assert!(arbiter.admits(1) && !arbiter.admits(2));
    let addr = ([127, 0, 0, 1], 1).into();
    arbiter.handle(1, Notice::Join { host: "h".into(), addr, local: None, settings: String::new() });
    assert!(!arbiter.admits(1));
    assert_eq!(arbiter.handle(1, Notice::WhoIsMissing), [(1, Verdict::Missing { ranks: vec![0] })]);
}

#[test]
fn ranks_on_different_terms_do_not_come_together() {
    let mut arbiter = Arbiter::new(2, None);
    let addr = ([127, 0, 0, 1], 1).into();
    let join =
        |settings: &str| Notice::Join { host: "h".into(), addr, local: None, settings: settings.into() };
    assert!(arbiter.handle(1, join("PHALANX_BACKEND=shm\nPHALANX_CHECKSUM=on")).is_empty());
    let mail = arbiter.handle(0, join("PHALANX_BACKEND=tcp\nPHALANX_CHECKSUM=on"));
    assert_eq!(mail.len(), 2);
    let Verdict::Group { cause: Cause::Aborted { peer, reason }, .. } = &mail[0].1 else {
        panic!("{mail:?}")
    };
    assert_eq!((peer.rank, reason.as_str()), (0, "PHALANX_BACKEND differs: tcp at rank 0, shm at rank 1"));
}

#[test]
fn a_death_is_told_to_the_survivors_once() {
    let mut arbiter = joined(3);
    let lost = lost(1, Loss::Died);
    assert_eq!(arbiter.disconnected(1, Loss::Died), [(2, lost.clone()), (0, lost)]);
    assert!(arbiter.disconnected(1, Loss::Died).is_empty());
}

#[test]
fn who_comes_after_a_death_is_told() {
    let mut arbiter = Arbiter::new(3, None);
    let join = |rank| {
        let addr = ([127, 0, 0, 1], rank).into();
        Notice::Join { host: format!("h{rank}"), addr, local: None, settings: String::new() }
    };
    assert!(arbiter.handle(2, join(2)).is_empty() && arbiter.handle(0, join(0)).is_empty());
    arbiter.disconnected(2, Loss::Died);
    let lost = lost(2, Loss::Died);
    assert_eq!(arbiter.handle(1, join(1)), [(1, lost)], "and not that all are there");
}

#[test]
fn leaving_is_not_dying() {
    let mut arbiter = joined(2);
    let left = Verdict::Left { rank: 1, after: None, finished: 6 };
    assert_eq!(arbiter.handle(1, Notice::Leave { finished: 6 }), [(1, left.clone()), (0, left)]);
    assert!(arbiter.disconnected(1, Loss::Died).is_empty());
    // Whose links were closed by that may take it for a death.
    let lost = |how| Cause::Lost { peer: peer(1), how };
    let report = Notice::Failed { group: WORLD, members: vec![0, 1], cause: lost(Loss::Died) };
    let verdict = Verdict::Group { group: WORLD, cause: lost(Loss::Left), through: None };
    assert_eq!(arbiter.handle(0, report).last(), Some(&(0, verdict)));
}

#[test]
fn a_death_that_only_others_saw_is_believed_when_they_insist() {
    let lost = |how| Cause::Lost { peer: peer(1), how };
    let report = |how| Notice::Failed { group: WORLD, members: vec![0, 1, 2], cause: lost(how) };
    let verdict = |how| Verdict::Group { group: WORLD, cause: lost(how), through: None };
    // Whom it had a link to, or who was about to make one.
    for how in [Loss::Died, Loss::Unreachable { from: 0 }, Loss::Left] {
        let mut arbiter = joined(3);
        assert!(arbiter.handle(0, report(how)).is_empty());
        assert!(arbiter.handle(2, report(how)).is_empty());
        assert_eq!(arbiter.handle(0, report(how)).last(), Some(&(0, verdict(how))));
    }

    let mut arbiter = joined(3);
    assert!(arbiter.handle(0, report(Loss::Died)).is_empty());
    let cause = lost(Loss::Panicked);
    let own_words = Verdict::Lost { rank: 1, is_gone: false, cause, through: None };
    assert_eq!(arbiter.handle(1, report(Loss::Panicked)).last(), Some(&(0, own_words)));
}

#[test]
fn two_ranks_that_are_cut_apart_are_named_whichever_insists_first() {
    let failed = |rank, how| {
        let cause = Cause::Lost { peer: peer(rank), how };
        Notice::Failed { group: WORLD, members: vec![0, 1, 2], cause }
    };
    // Rank 2 has lost rank 1 and closes its links. Rank 1 sees only that.
    let saw = failed(1, Loss::Unreachable { from: 2 });
    let heard = failed(2, Loss::Died);
    for (insists, report) in [(1, &heard), (2, &saw)] {
        let mut arbiter = joined(3);
        assert!(arbiter.handle(2, saw.clone()).is_empty());
        assert!(arbiter.handle(1, heard.clone()).is_empty());
        let cause = Cause::Lost { peer: peer(1), how: Loss::Unreachable { from: 2 } };
        let verdict = Verdict::Group { group: WORLD, cause, through: None };
        assert_eq!(arbiter.handle(insists, report.clone()).last(), Some(&(0, verdict)), "{insists}");
    }
}

/// Something between them has closed the link at both ends: both have seen that, and neither is known to be at fault.
#[test]
fn two_ranks_whose_link_was_cut_are_named_alike_whichever_reports_and_insists_first() {
    let failed = |rank| {
        let cause = Cause::Lost { peer: peer(rank), how: Loss::Died };
        Notice::Failed { group: WORLD, members: vec![0, 1, 2], cause }
    };
    for (first, insists) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let mut arbiter = joined(3);
        assert!(arbiter.handle(first, failed(3 - first)).is_empty());
        assert!(arbiter.handle(3 - first, failed(first)).is_empty());
        let cause = Cause::Lost { peer: peer(2), how: Loss::Unreachable { from: 1 } };
        let verdict = Verdict::Group { group: WORLD, cause, through: None };
        assert_eq!(
            arbiter.handle(insists, failed(3 - insists)).last(),
            Some(&(0, verdict)),
            "{first} {insists}"
        );
    }
}

#[test]
fn the_first_report_of_a_group_wins() {
    let mut arbiter = joined(2);
    let cause = |rank| Cause::Aborted { peer: peer(rank), reason: "r".into() };
    let failed = |rank| Notice::Failed { group: WORLD, members: vec![0, 1], cause: cause(rank) };
    assert_eq!(arbiter.handle(1, failed(1)).len(), 2);
    assert!(arbiter.handle(0, failed(0)).is_empty());
}

#[test]
fn waiting_for_different_things_is_a_mismatch() {
    let mut arbiter = joined(3);
    let stalled = |seq, count| Notice::Calls { group: WORLD, calls: vec![(seq, signature(count))] };
    assert!(arbiter.handle(0, stalled(4, 1)).is_empty());
    assert!(arbiter.handle(1, stalled(5, 2)).is_empty(), "another operation is another matter");
    let mail = arbiter.handle(2, stalled(4, 3));
    let cause =
        Cause::Mismatch { seq: 4, tag: None, left: (peer(0), signature(1)), right: (peer(2), signature(3)) };
    assert_eq!(mail.last(), Some(&(0, Verdict::Group { group: WORLD, cause, through: None })));
    assert_eq!(mail.len(), 3);
}

#[test]
fn a_mismatch_is_found_where_one_rank_came_through_it() {
    let mut arbiter = joined(3);
    let calls = |calls: &[(u64, u64)]| Notice::Calls {
        group: WORLD,
        calls: calls.iter().map(|&(seq, count)| (seq, signature(count))).collect(),
    };
    assert!(arbiter.handle(2, calls(&[(3, 0), (4, 1)])).is_empty());
    assert!(arbiter.handle(1, calls(&[(2, 0), (3, 0)])).is_empty(), "all agree, one is behind");
    let mail = arbiter.handle(0, calls(&[(3, 0), (4, 2), (5, 3)]));
    let cause =
        Cause::Mismatch { seq: 4, tag: None, left: (peer(0), signature(2)), right: (peer(2), signature(1)) };
    assert_eq!(mail.last(), Some(&(0, Verdict::Group { group: WORLD, cause, through: None })));
}

fn calls(seq: u64) -> Notice {
    Notice::Calls { group: WORLD, calls: vec![(seq, signature(1))] }
}

const LIMIT: Duration = Duration::from_secs(10);

/// As soon as that is certain, and not when one of the calls is late.
#[test]
fn ranks_in_a_circle_are_asked_twice_and_all_are_told() {
    let mut arbiter = joined(3);
    // Each of two waits for a message of the other.
    let waits = |round: u64, from: usize| {
        let call = Signature { op: OpKind::Recv, ..signature(9) };
        let wait = Pending { group: WORLD, number: 1, call, with: With::Peer(from, 3) };
        let standing = Standing { waits: vec![wait], stands: true, ..Standing::default() };
        Notice::Waits { round, standing }
    };
    for round in 0..2 {
        assert_eq!(arbiter.handle(0, waits(round, 1)), []);
        let asked = [0, 1].map(|rank| (rank, Verdict::WhatDoYouWaitFor { round: round + 1 }));
        assert_eq!(arbiter.handle(1, waits(round, 0)), asked);
    }
    assert_eq!(arbiter.handle(0, waits(2, 1)), []);
    let mail = arbiter.handle(1, waits(2, 0));
    assert!(mail.iter().map(|(rank, _)| *rank).eq([2, 1, 0]), "{mail:?}");
    for (_, verdict) in mail {
        let Verdict::Group { group: WORLD, cause: Cause::Deadlock { waits }, .. } = verdict else {
            panic!("{verdict:?}")
        };
        assert!(waits.iter().map(|wait| (wait.peer.rank, wait.on)).eq([(0, 1), (1, 0)]), "{waits:?}");
    }
}

fn silent(rank: usize) -> Verdict {
    lost(rank, Loss::Silent { after: LIMIT })
}

/// Ranks that beat until they fall silent; returns what is said besides beats, and when.
fn beating(world_size: usize, silent_from: impl Fn(usize) -> f64) -> Vec<(f64, Mail)> {
    let start = Instant::now();
    let mut arbiter = joined_to(Arbiter::new(world_size, Some(Heartbeat::new(LIMIT, start))));
    (0..world_size).for_each(|rank| arbiter.heard(rank, start));
    let mut said = Vec::new();
    for tenth in 0..600 {
        let after = f64::from(tenth) / 10.0;
        let now = start + Duration::from_secs_f64(after);
        for rank in (0..world_size).filter(|&rank| tenth % 20 == 0 && after < silent_from(rank)) {
            assert!(arbiter.handle(rank, Notice::Beat).is_empty());
            arbiter.heard(rank, now);
        }
        let mut mail = arbiter.poll(now);
        mail.retain(|(_, verdict)| *verdict != Verdict::Beat);
        if !mail.is_empty() {
            said.push((after, mail));
        }
    }
    said
}

#[test]
fn who_falls_silent_is_lost_and_hears_of_it() {
    let to_all = |lost| [2, 1, 0].map(|rank| (rank, silent(lost))).to_vec();
    let said = beating(3, |rank| if rank == 1 { 20.5 } else { f64::MAX });
    assert_eq!(said, [(31.0, to_all(1))], "ten seconds after its next word was due");
    assert!(beating(3, |_| f64::MAX).is_empty(), "nobody is silent");
}

/// Ranks on hosts of their own, of which some are heard until the end and others answer when they are asked; what rank 0 is told in the end.
fn cut(hosts: usize, heard: &[usize], answering: &[usize]) -> (usize, Loss) {
    let start = Instant::now();
    let mut arbiter = Arbiter::new(hosts, Some(Heartbeat::new(LIMIT, start)));
    let addr = |rank: usize| SocketAddr::from(([10, 0, 0, rank as u8], 1));
    for rank in 0..hosts {
        arbiter.handle(
            rank,
            Notice::Join { host: format!("h{rank}"), addr: addr(rank), local: None, settings: String::new() },
        );
        arbiter.heard(rank, start);
    }
    for tenth in 0..200 {
        let now = start + Duration::from_millis(100 * tenth);
        [0].iter().chain(heard).for_each(|&rank| arbiter.heard(rank, now));
        let in_doubt = arbiter.in_doubt(now);
        assert_eq!(in_doubt.is_empty(), tenth < 50, "after half of the time it asks");
        if !in_doubt.is_empty() {
            assert!(!in_doubt.contains(&addr(0)), "its own host need not be asked");
            arbiter.answered(answering.iter().map(|&rank| addr(rank).ip()).collect());
        }
        for (rank, verdict) in arbiter.poll(now) {
            if let (0, Verdict::Lost { cause: Cause::Lost { peer, how }, .. }) = (rank, verdict) {
                assert!(tenth >= 110, "a cut of {tenth} tenths of a second is none");
                return (peer.rank, how);
            }
        }
    }
    panic!("nobody is lost")
}

#[test]
fn whoever_is_cut_off_is_named_and_where_nobody_can_know_that_is_said() {
    let silent = Loss::Silent { after: LIMIT };
    assert_eq!(cut(3, &[1], &[]), (2, silent));
    assert_eq!(cut(3, &[], &[2]), (1, silent), "the process on the other is stopped");
    assert_eq!(cut(3, &[], &[]), (0, silent), "this host hears nobody");
    assert_eq!(cut(2, &[], &[]), (1, Loss::Apart { from: 0, after: LIMIT }));
    assert_eq!(cut(2, &[], &[1]), (1, silent), "its process is stopped");
}

#[test]
fn nothing_is_expected_from_who_left_or_has_not_come() {
    let start = Instant::now();
    let mut arbiter = joined_to(Arbiter::new(2, Some(Heartbeat::new(LIMIT, start))));
    arbiter.heard(1, start);
    arbiter.handle(1, Notice::Leave { finished: 0 });
    arbiter.heard(1, start);
    let mut new = Arbiter::new(2, Some(Heartbeat::new(LIMIT, start)));
    new.heard(1, start);
    for second in 0..30 {
        let now = start + Duration::from_secs(second);
        assert!(arbiter.poll(now).iter().all(|(_, verdict)| *verdict == Verdict::Beat));
        assert!(new.poll(now).is_empty());
    }
}

#[test]
fn an_arbiter_that_was_stopped_hears_that_it_was_left_behind() {
    let start = Instant::now();
    let mut arbiter = joined_to(Arbiter::new(3, Some(Heartbeat::new(LIMIT, start))));
    assert_eq!(arbiter.handle(2, Notice::YouWereSilent), [2, 1, 0].map(|rank| (rank, silent(0))));
    assert!(arbiter.handle(1, Notice::YouWereSilent).is_empty(), "once");
    // Of a rank that was cut off and comes back it is no news.
    let mut arbiter = joined_to(Arbiter::new(3, Some(Heartbeat::new(LIMIT, start))));
    arbiter.silent(2);
    assert!(arbiter.handle(2, Notice::YouWereSilent).is_empty());
}

#[test]
fn who_leaves_a_group_has_left_that_one() {
    let group = GroupId(7);
    let leave = || Notice::LeaveGroup { group, members: vec![0, 1, 3], finished: 8 };
    let lost = |how| Cause::Lost { peer: peer(1), how };
    let mut arbiter = joined(4);
    let left = Verdict::LeftGroup { group, rank: 1, after: None, finished: 8 };
    assert_eq!(arbiter.handle(1, leave()), [(0, left.clone()), (3, left)], "to its members");
    // Its closed links are no death there …
    let report = |group| Notice::Failed { group, members: vec![0, 1, 3], cause: lost(Loss::Died) };
    let verdict = Verdict::Group { group, cause: lost(Loss::Left), through: None };
    assert_eq!(arbiter.handle(0, report(group)).last(), Some(&(0, verdict)));
    // … and may be one elsewhere.
    assert!(arbiter.handle(0, report(WORLD)).is_empty());
    arbiter.handle(3, Notice::Leave { finished: 0 });
    assert!(arbiter.handle(3, leave()).is_empty(), "who has left the job has said it all");
    (0..2 * LEFT_MAX).for_each(|_| drop(arbiter.handle(0, leave())));
    assert_eq!(arbiter.left_groups[0].len(), LEFT_MAX);
}

/// Of a square of nine ranks.
const ROW: GroupId = GroupId(11);
const COLUMN: GroupId = GroupId(12);

fn died(rank: usize) -> Cause {
    Cause::Lost { peer: peer(rank), how: Loss::Died }
}

#[test]
fn what_becomes_of_a_rank_after_an_error_has_the_cause_of_that() {
    let mut arbiter = joined(9);
    arbiter.disconnected(4, Loss::Died);
    assert!(arbiter.handle(3, Notice::InError { cause: died(4) }).is_empty());
    assert!(arbiter.handle(1, Notice::InError { cause: died(4) }).is_empty());
    // One just ends …
    let through = Some((peer(3), Loss::Died));
    let lost = Verdict::Lost { rank: 3, is_gone: true, cause: died(4), through };
    assert_eq!(arbiter.disconnected(3, Loss::Died).last(), Some(&(0, lost)));
    // … and one leaves; then others find its links closed.
    let left = Verdict::Left { rank: 1, after: Some(died(4)), finished: 0 };
    assert_eq!(arbiter.handle(1, Notice::Leave { finished: 0 }).last(), Some(&(0, left)));
    let report = Notice::Failed { group: ROW, members: vec![0, 1, 2], cause: died(1) };
    let through = Some((peer(1), Loss::LeftAfterError));
    let verdict = Verdict::Group { group: ROW, cause: died(4), through };
    assert_eq!(arbiter.handle(2, report).last(), Some(&(0, verdict)));
}

#[test]
fn a_farewell_that_comes_before_its_reason_waits_for_that() {
    // Links and lines race: rank 2 reads that rank 1 has left before rank 0 reads why.
    let mut arbiter = joined(3);
    let farewell = Cause::Lost { peer: peer(1), how: Loss::Left };
    let report = Notice::Failed { group: ROW, members: vec![1, 2], cause: farewell };
    assert!(arbiter.handle(2, report).is_empty());
    arbiter.handle(1, Notice::InError { cause: died(0) });
    let mail = arbiter.handle(1, Notice::LeaveGroup { group: ROW, members: vec![1, 2], finished: 0 });
    let through = Some((peer(1), Loss::LeftAfterError));
    assert_eq!(mail.last(), Some(&(0, Verdict::Group { group: ROW, cause: died(0), through })));
    assert_eq!(mail.len(), 4, "one who is told of the farewell, and all of the failure: {mail:?}");
}

#[test]
fn a_rank_that_goes_on_after_an_error_is_a_cause_of_its_own() {
    let mut arbiter = joined(9);
    arbiter.disconnected(4, Loss::Died);
    arbiter.handle(1, Notice::InError { cause: died(4) });
    assert!(arbiter.handle(1, Notice::GoesOn).is_empty());
    assert_eq!(arbiter.disconnected(1, Loss::Died).last(), Some(&(0, lost(1, Loss::Died))));
}

#[test]
fn all_hear_of_an_error_of_rank_0_before_it_can_end() {
    let mut arbiter = joined(3);
    let mail = arbiter.handle(0, Notice::InError { cause: died(2) });
    let told = Verdict::InError { cause: Some(died(2)) };
    assert_eq!(mail, [2, 1, 0].map(|rank| (rank, told.clone())));
    assert_eq!(arbiter.handle(0, Notice::GoesOn)[0].1, Verdict::InError { cause: None });
}

#[test]
fn a_panic_fails_all_groups_of_the_rank_at_once() {
    let panicked = || Cause::Lost { peer: peer(4), how: Loss::Panicked };
    let report = |group, cause| Notice::Failed { group, members: vec![3, 4, 5], cause };
    let mut arbiter = joined(9);
    let lost = |is_gone, through| Verdict::Lost { rank: 4, is_gone, cause: panicked(), through };
    assert_eq!(arbiter.handle(4, report(ROW, panicked()))[0], (8, lost(false, None)));
    assert!(arbiter.handle(4, report(COLUMN, panicked())).is_empty(), "it is known");
    arbiter.handle(4, Notice::InError { cause: died(7) });
    // That its process ends follows from that.
    let through = Some((peer(4), Loss::Died));
    assert_eq!(arbiter.disconnected(4, Loss::Died)[0], (8, lost(true, through)));

    // Whoever unwraps an error panics because of that.
    let mut arbiter = joined(9);
    arbiter.handle(4, Notice::InError { cause: died(7) });
    let through = Some((peer(4), Loss::Panicked));
    let follows = Verdict::Lost { rank: 4, is_gone: false, cause: died(7), through };
    assert_eq!(arbiter.handle(4, report(ROW, panicked()))[0], (8, follows));
    // That others panicked is nobody's to say.
    assert!(
        arbiter.handle(3, report(COLUMN, panicked())).iter().all(|(_, v)| matches!(v, Verdict::Group { .. }))
    );
}

#[test]
fn who_ended_is_told_with_how_in_the_order_in_which_lines_closed() {
    let mut arbiter = joined(4);
    let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
    assert!(arbiter.closed(2, later).is_empty() && arbiter.closed(3, later).is_empty());
    let of_3 = |rank| (rank == 3).then_some(Loss::Killed { signal: 15 });
    assert!(arbiter.settle(now, of_3).is_empty(), "rank 2 was first");
    assert!(arbiter.is_settling());
    let of_both = |rank| of_3(rank).or(Some(Loss::Exited { code: 0 }));
    let mail = arbiter.settle(now, of_both);
    assert_eq!(mail[0], (3, lost(2, Loss::Exited { code: 0 })), "rank 3 is not yet given up");
    assert_eq!(mail.last(), Some(&(0, lost(3, Loss::Killed { signal: 15 }))));
    // Nobody knows.
    assert!(arbiter.closed(1, later).is_empty());
    assert_eq!(arbiter.settle(later, |_| None), [(0, lost(1, Loss::Died))]);
    assert!(!arbiter.is_settling());
}
