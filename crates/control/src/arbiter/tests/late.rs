//! What the arbiter says of calls that were late.

use super::*;
use phalanx_core::Envelope;

fn timed_out(missing: Vec<Peer>) -> Cause {
    timed_out_at(0, missing)
}

fn timed_out_at(reporter: usize, missing: Vec<Peer>) -> Cause {
    let (op, waited, awaited) = (OpKind::Barrier, Duration::from_secs(1), vec![peer(1)]);
    let (site, envelope) = (None, None);
    let (reporter, meanwhile) = (peer(reporter), Vec::new());
    Cause::TimedOut { reporter, op, seq: 7, site, envelope, waited, awaited, missing, meanwhile }
}

fn late(world_size: usize) -> Notice {
    Notice::Failed { group: WORLD, members: (0..world_size).collect(), cause: timed_out(vec![peer(1)]) }
}

/// What a rank answers that waits in these collectives of groups of these members, and has come to these others.
fn waits_in(group: GroupId, number: u64, members: &[usize], come: &[(GroupId, u64)]) -> Standing {
    let call = Signature { op: OpKind::AllReduce, ..signature(9) };
    let wait = Pending { group, number, call, with: With::Members(members.to_vec(), true) };
    Standing { waits: vec![wait], places: [come, &[(group, number)]].concat(), ..Standing::default() }
}

fn works(come: &[(GroupId, u64)]) -> Standing {
    Standing { places: come.to_vec(), ..Standing::default() }
}

/// What the arbiter says when this rank has answered what it waits for.
fn answered(arbiter: &mut Arbiter, rank: usize, standing: Standing) -> Mail {
    arbiter.handle(rank, Notice::Waits { round: 1, standing })
}

/// All these ranks work in their programs, they answer.
fn all_work(arbiter: &mut Arbiter, ranks: impl IntoIterator<Item = usize>) -> Mail {
    ranks.into_iter().flat_map(|rank| answered(arbiter, rank, works(&[]))).collect()
}

fn question(rank: usize) -> (usize, Verdict) {
    (rank, Verdict::WhatDoYouWaitFor { round: 1 })
}

#[test]
fn ranks_are_asked_who_came_to_a_late_call() {
    let mut arbiter = joined(5);
    arbiter.handle(1, calls(7));
    arbiter.handle(2, calls(6));
    let ask = |rank| (rank, Verdict::WhereAreYou { group: WORLD });
    let asked: Mail = [2, 3, 4].map(ask).into_iter().chain((0..5).map(question)).collect();
    assert_eq!(arbiter.handle(0, late(5)), asked);
    assert!(arbiter.handle(2, calls(6)).is_empty());
    assert!(arbiter.handle(3, calls(8)).is_empty(), "it has come through that call");
    assert!(all_work(&mut arbiter, 0..5).is_empty());
    let mail = arbiter.handle(4, calls(3));
    let cause = timed_out(vec![peer(4), peer(2)]);
    assert_eq!(
        mail[0].1,
        Verdict::Group { group: WORLD, cause, through: None },
        "who is furthest behind comes first"
    );
    assert_eq!(mail.len(), 5);
    assert!(arbiter.handle(0, late(5)).is_empty());
}

/// Rank 0 has waited in vain for a message of any of these ranks.
fn nothing_from_any(awaited: &[usize]) -> Cause {
    let cause = timed_out_at(0, Vec::new());
    let Cause::TimedOut { reporter, site, waited, missing, meanwhile, .. } = cause else { unreachable!() };
    let (op, seq, envelope) = (OpKind::RecvAny, 0, Some(Envelope { peer: None, tag: 3 }));
    let awaited = awaited.iter().map(|&rank| peer(rank)).collect();
    Cause::TimedOut { reporter, op, seq, site, envelope, waited, awaited, missing, meanwhile }
}

#[test]
fn nobody_is_blamed_for_a_message_that_any_rank_might_have_sent() {
    let verdict = |cause| Some((0, Verdict::Group { group: WORLD, cause, through: None }));
    let late =
        |awaited| Notice::Failed { group: WORLD, members: vec![0, 1, 2], cause: nothing_from_any(awaited) };
    let mut arbiter = joined(3);
    arbiter.handle(0, late(&[1, 2]));
    let mail = all_work(&mut arbiter, 0..3);
    assert_eq!(mail.last().cloned(), verdict(nothing_from_any(&[1, 2])), "ranks 1 and 2 work");
    // Nor one that has left meanwhile, as long as another may send.
    let mut arbiter = joined(3);
    arbiter.handle(1, Notice::LeaveGroup { group: WORLD, members: vec![0, 1, 2], finished: 0 });
    arbiter.handle(0, late(&[1, 2]));
    let mail = all_work(&mut arbiter, 0..3);
    assert_eq!(mail.last().cloned(), verdict(nothing_from_any(&[1, 2])));
    // Of all that might have sent, none is there any more.
    let mut arbiter = joined(3);
    for rank in [1, 2] {
        arbiter.handle(rank, Notice::LeaveGroup { group: WORLD, members: vec![0, 1, 2], finished: 0 });
    }
    arbiter.handle(0, late(&[1, 2]));
    let mail = all_work(&mut arbiter, 0..3);
    assert_eq!(mail.last().cloned(), verdict(Cause::Lost { peer: peer(1), how: Loss::LeftLast }));
}

#[test]
fn who_was_doubted_before_a_late_call_insists_when_it_reports_again() {
    let mut arbiter = joined(3);
    let cause = Cause::Lost { peer: peer(1), how: Loss::Unreachable { from: 2 } };
    let cut = Notice::Failed { group: WORLD, members: vec![0, 1, 2], cause };
    assert!(arbiter.handle(2, cut.clone()).is_empty());
    arbiter.handle(0, late(3));
    assert!(arbiter.poll(Instant::now()).is_empty(), "rank 1 may still answer");
    assert!(arbiter.handle(2, cut).is_empty());
    let verdict = Verdict::Group { group: WORLD, cause: timed_out(vec![peer(1), peer(2)]), through: None };
    assert!(arbiter.poll(Instant::now()).contains(&(0, verdict)));
}

#[test]
fn a_late_call_that_waited_for_who_left_names_that() {
    let mut arbiter = joined(3);
    arbiter.handle(1, Notice::LeaveGroup { group: WORLD, members: vec![0, 1, 2], finished: 0 });
    let asked = [(2, Verdict::WhereAreYou { group: WORLD }), question(0), question(1), question(2)];
    assert_eq!(arbiter.handle(0, late(3)), asked);
    assert!(arbiter.handle(2, calls(7)).is_empty());
    let cause = Cause::Lost { peer: peer(1), how: Loss::Left };
    assert_eq!(
        all_work(&mut arbiter, 0..3).last(),
        Some(&(0, Verdict::Group { group: WORLD, cause, through: None }))
    );
}

#[test]
fn who_had_come_through_before_it_left_is_not_named_for_a_late_call() {
    let mut arbiter = joined(4);
    let error = Cause::Aborted { peer: peer(2), reason: "in another group".into() };
    arbiter.handle(2, Notice::InError { cause: error });
    let leave = |finished| Notice::LeaveGroup { group: WORLD, members: vec![0, 1, 2, 3], finished };
    arbiter.handle(2, leave(7));
    arbiter.handle(3, leave(6));
    arbiter.handle(0, late(4));
    arbiter.handle(1, calls(7));
    let cause = Cause::Lost { peer: peer(3), how: Loss::Left };
    let verdict = Verdict::Group { group: WORLD, cause, through: None };
    assert_eq!(
        all_work(&mut arbiter, 0..4).last(),
        Some(&(0, verdict)),
        "rank 0 waits for 1, and that for 3"
    );
}

#[test]
fn who_does_not_answer_is_missing_when_the_reporter_insists() {
    let mut arbiter = joined(4);
    arbiter.handle(3, Notice::Leave { finished: 0 });
    assert_eq!(arbiter.handle(0, late(4)).len(), 2 + 3);
    assert!(arbiter.handle(2, calls(7)).is_empty());
    assert!(all_work(&mut arbiter, [0, 2]).is_empty());
    let cause = Cause::Lost { peer: peer(1), how: Loss::Died };
    let follows = Notice::Failed { group: WORLD, members: vec![0, 1, 2, 3], cause };
    assert!(arbiter.handle(2, follows).is_empty(), "the late call was first");
    assert!(arbiter.handle(0, late(4)).is_empty(), "the others may have spoken, too");
    let mail = arbiter.poll(Instant::now());
    assert_eq!(mail[0].1, Verdict::Group { group: WORLD, cause: timed_out(vec![peer(1)]), through: None });
}

#[test]
fn a_timeout_of_ranks_that_have_all_come_names_nobody() {
    let mut arbiter = joined(2);
    arbiter.handle(1, calls(7));
    arbiter.handle(0, late(2));
    let mail = all_work(&mut arbiter, 0..2);
    assert_eq!(mail[0].1, Verdict::Group { group: WORLD, cause: timed_out(vec![]), through: None });
}

/// In a square of four, rank 3 hangs; rank 0 waits in its row for rank 1, which waits in its column for rank 3.
fn square() -> (Arbiter, Mail) {
    let mut arbiter = joined(4);
    let row = Notice::Failed { group: ROW, members: vec![0, 1], cause: timed_out(vec![peer(1)]) };
    assert_eq!(arbiter.handle(0, row).len(), 1 + 4);
    let calls = vec![(6, signature(1))];
    assert!(arbiter.handle(1, Notice::Calls { group: ROW, calls }).is_empty());
    let mut mail = answered(&mut arbiter, 0, waits_in(ROW, 7, &[0, 1], &[]));
    mail.extend(answered(&mut arbiter, 1, waits_in(COLUMN, 7, &[1, 3], &[(ROW, 6)])));
    mail.extend(answered(&mut arbiter, 2, waits_in(GroupId(13), 7, &[2, 3], &[])));
    assert!(mail.is_empty());
    mail = answered(&mut arbiter, 3, works(&[(COLUMN, 6), (GroupId(13), 6)]));
    (arbiter, mail)
}

#[test]
fn a_late_call_names_who_hangs_in_no_group_with_those_that_wait() {
    let (mut arbiter, mail) = square();
    let (0, Verdict::Group { group: ROW, cause, through: None }) = &mail[3] else { panic!("{mail:?}") };
    assert_eq!(
        cause.to_string(),
        "rank 0 (h0) waited 1.0 s in barrier #7; not arrived: rank 3 (h3); \
         meanwhile rank 1 (h1) was in all_reduce #7 for rank 3 (a.rs:9)"
    );
    assert_eq!(cause.culprit(), Some(&peer(3)));

    // The next that is late waits for one that is about to hear of that.
    let late = timed_out_at(2, vec![peer(0)]);
    arbiter.handle(2, Notice::Failed { group: GroupId(14), members: vec![0, 2], cause: late });
    let hears = Standing { failing: Some(cause.clone()), ..works(&[]) };
    let mut mail = arbiter.handle(0, Notice::Calls { group: GroupId(14), calls: Vec::new() });
    for (rank, standing) in [hears, works(&[]), works(&[]), works(&[])].into_iter().enumerate() {
        mail.extend(arbiter.handle(rank, Notice::Waits { round: 2, standing }));
    }
    let through = Some((peer(0), Loss::LeftAfterError));
    assert_eq!(mail[0].1, Verdict::Group { group: GroupId(14), cause: cause.clone(), through });
}

#[test]
fn nobody_waits_for_the_answer_of_a_rank_that_is_lost() {
    let mut arbiter = joined(4);
    let cause = timed_out_at(0, vec![peer(1)]);
    arbiter.handle(0, Notice::Failed { group: ROW, members: vec![0, 1], cause });
    arbiter.handle(1, Notice::Calls { group: ROW, calls: Vec::new() });
    assert!(all_work(&mut arbiter, 0..3).is_empty(), "rank 3, which has no part in it, has not answered");
    let mail = arbiter.disconnected(3, Loss::Died);
    assert_eq!(mail[..3], [2, 1, 0].map(|rank| (rank, lost(3, Loss::Died))));
    let cause = timed_out_at(0, vec![peer(1)]);
    assert_eq!(mail.last(), Some(&(0, Verdict::Group { group: ROW, cause, through: None })));
}

#[test]
fn a_late_call_whose_ranks_wait_for_each_other_names_who_has_not_come() {
    let mut arbiter = joined(2);
    arbiter.handle(0, Notice::Failed { group: ROW, members: vec![0, 1], cause: timed_out(vec![peer(1)]) });
    arbiter.handle(1, Notice::Calls { group: ROW, calls: vec![(6, signature(1))] });
    answered(&mut arbiter, 0, waits_in(ROW, 7, &[0, 1], &[(COLUMN, 2)]));
    let mail = answered(&mut arbiter, 1, waits_in(COLUMN, 3, &[0, 1], &[(ROW, 6)]));
    let Verdict::Group { group: ROW, cause, through: None } = &mail[0].1 else { panic!("{mail:?}") };
    assert_eq!(cause.culprit(), Some(&peer(1)));
    assert!(cause.to_string().ends_with("; meanwhile rank 1 (h1) was in all_reduce #3 for rank 0 (a.rs:9)"));
}

#[test]
fn calls_that_are_late_together_are_judged_together() {
    let mut arbiter = joined(3);
    let late = |group, members: [usize; 2]| {
        let cause = timed_out_at(members[0], vec![peer(members[1])]);
        Notice::Failed { group, members: members.to_vec(), cause }
    };
    arbiter.handle(0, late(ROW, [0, 1]));
    assert!(answered(&mut arbiter, 1, works(&[])).is_empty());
    let asked = arbiter.handle(1, late(COLUMN, [1, 2]));
    assert_eq!(asked, [(2, Verdict::WhereAreYou { group: COLUMN }), question(1)], "it waits by now");
    arbiter.handle(1, Notice::Calls { group: ROW, calls: vec![(6, signature(1))] });
    arbiter.handle(2, Notice::Calls { group: COLUMN, calls: vec![(6, signature(1))] });
    answered(&mut arbiter, 0, waits_in(ROW, 7, &[0, 1], &[]));
    answered(&mut arbiter, 2, works(&[(COLUMN, 6)]));
    let mail = answered(&mut arbiter, 1, waits_in(COLUMN, 7, &[1, 2], &[(ROW, 6)]));
    let named: Vec<_> = mail.iter().filter(|(rank, _)| *rank == 0).map(|(_, verdict)| verdict).collect();
    let culprit = |verdict: &&Verdict| matches!(verdict, Verdict::Group { cause, .. } if cause.culprit() == Some(&peer(2)));
    assert!(named.len() == 2 && named.iter().all(culprit), "{named:?}");
}

#[test]
fn a_late_call_that_waited_for_ranks_with_errors_of_their_own_has_their_cause() {
    let mut arbiter = joined(3);
    arbiter.handle(1, Notice::InError { cause: died(2) });
    arbiter.handle(0, late(3));
    arbiter.handle(2, calls(7));
    let mail = all_work(&mut arbiter, 0..3);
    assert!(mail.is_empty(), "rank 1 has not said where it is: {mail:?}");
    let mail = arbiter.handle(1, calls(3));
    let through = Some((peer(1), Loss::LeftAfterError));
    assert_eq!(mail[0].1, Verdict::Group { group: WORLD, cause: died(2), through });
    // Rank 0 waits for rank 1, which has come and waits for rank 2.
    let mut arbiter = joined(3);
    arbiter.handle(2, Notice::InError { cause: died(2) });
    arbiter.handle(2, Notice::LeaveGroup { group: WORLD, members: vec![0, 1, 2], finished: 0 });
    arbiter.handle(0, late(3));
    all_work(&mut arbiter, 0..3);
    let mail = arbiter.handle(1, calls(7));
    let through = Some((peer(2), Loss::LeftAfterError));
    assert_eq!(mail[0].1, Verdict::Group { group: WORLD, cause: died(2), through });
    // One of two that are missing has no excuse.
    let mut arbiter = joined(3);
    arbiter.handle(1, Notice::InError { cause: died(2) });
    arbiter.handle(0, late(3));
    arbiter.handle(2, calls(6));
    all_work(&mut arbiter, 0..3);
    let mail = arbiter.handle(1, calls(3));
    let cause = timed_out(vec![peer(2)]);
    assert_eq!(mail[0].1, Verdict::Group { group: WORLD, cause, through: None });
}
