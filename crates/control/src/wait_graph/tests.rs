//! Ranks that are found to wait in a circle, and ranks that are not.

use super::ends::WaitEnds;
use super::*;
use phalanx_core::{CallSite, WORLD};
use proptest::prelude::*;

fn call(op: OpKind) -> Signature {
    let site = CallSite { file: "a.rs".into(), line: 1 };
    Signature::bare(op, site)
}

fn message(op: OpKind, peer: usize, tag: u64) -> Pending {
    Pending { group: WORLD, number: 1, call: call(op), with: With::Peer(peer, tag) }
}

fn send(to: usize) -> Pending {
    message(OpKind::Send, to, 3)
}

fn recv(from: usize) -> Pending {
    message(OpKind::Recv, from, 3)
}

/// A message from any of three ranks.
fn recv_any() -> Pending {
    Pending { with: With::Any(vec![0, 1, 2], 3), ..message(OpKind::RecvAny, 0, 3) }
}

/// The third collective of the group, of three ranks.
fn barrier() -> Pending {
    Pending { group: WORLD, number: 3, call: call(OpKind::Barrier), with: With::Members(vec![0, 1, 2], true) }
}

fn standing(waits: &[Pending]) -> Standing {
    let place = if waits.contains(&barrier()) { 3 } else { 2 };
    Standing { waits: waits.to_vec(), stands: true, places: vec![(WORLD, place)], ..Standing::default() }
}

/// Asks until something is decided; each rank answers what it told.
fn verdict(waits: &mut Waits, ranks: &[Standing]) -> Option<Vec<(usize, usize)>> {
    let mut steps: Vec<Step> = Vec::new();
    for (rank, standing) in ranks.iter().enumerate() {
        steps.push(waits.told(rank, 0, standing.clone()));
    }
    while let Some(step) = steps.pop() {
        match step {
            Step::Nothing => {}
            Step::Ask { round, ranks: asked } => {
                steps.extend(asked.into_iter().map(|rank| waits.told(rank, round, ranks[rank].clone())));
            }
            Step::Deadlock(links) => return Some(links.into_iter().map(|(who, _, on)| (who, on)).collect()),
            Step::Surveyed => panic!("nobody is late"),
        }
    }
    None
}

fn found(ranks: &[Standing]) -> Option<Vec<(usize, usize)>> {
    verdict(&mut Waits::default(), ranks)
}

#[test]
fn circles_of_any_length_and_of_all_operations_are_found() {
    let one = |wait: Pending| standing(&[wait]);
    assert_eq!(found(&[one(send(1)), one(send(0))]), Some(vec![(0, 1), (1, 0)]));
    assert_eq!(found(&[one(recv(1)), one(recv(0))]), Some(vec![(0, 1), (1, 0)]));
    let ring = [one(send(1)), one(send(2)), one(send(0))];
    assert_eq!(found(&ring), Some(vec![(0, 1), (1, 2), (2, 0)]));
    // Rank 2 waits for those in the circle, and is in none.
    let tail = [one(send(1)), one(send(0)), one(recv(0))];
    assert_eq!(found(&tail), Some(vec![(0, 1), (1, 0)]));
    let mixed = [one(barrier()), one(recv(2)), one(send(0))];
    assert_eq!(found(&mixed), None, "the collective may take the message from rank 2");
    let mixed = [one(barrier()), one(recv(0)), one(barrier())];
    assert_eq!(found(&mixed), Some(vec![(0, 1), (1, 0)]));
}

#[test]
fn what_any_rank_may_send_is_waited_for_as_long_as_one_may() {
    let one = |wait: Pending| standing(&[wait]);
    let all = [one(recv_any()), one(recv(0)), one(recv(0))];
    assert_eq!(found(&all), Some(vec![(0, 1), (1, 0)]));
    assert_eq!(found(&[one(recv_any()), one(barrier()), one(barrier())]), Some(vec![(0, 1), (1, 0)]));
    assert_eq!(found(&[one(recv_any()), one(recv_any()), one(recv_any())]), Some(vec![(0, 1), (1, 0)]));
    assert_eq!(found(&[one(recv_any()), one(recv(0)), one(send(0))]), None, "rank 2 sends");
    assert_eq!(found(&[one(recv_any()), one(recv(0)), standing(&[])]), None, "rank 2 works");
    // Ranks 0 and 1 both take what comes, also what is too long to go without a receiver.
    assert_eq!(found(&[one(recv_any()), one(send(0)), one(recv(1))]), None);
    // A message is on its way.
    let mut on_its_way = all.clone();
    on_its_way[2].messages = vec![(WORLD, 0, 1, 0)];
    assert_eq!(found(&on_its_way), None);
    // Whoever has left is no member that is still there.
    let left = Pending { with: With::Any(vec![0, 1], 3), ..recv_any() };
    assert_eq!(found(&[one(left), one(recv(0))]), Some(vec![(0, 1), (1, 0)]));
}

#[test]
fn a_rank_that_waits_for_any_is_where_the_waits_end() {
    // Rank 0 waits for rank 1, which would take a message of anybody; rank 2 works.
    let answers: Standings =
        [(0, standing(&[recv(1)])), (1, standing(&[recv_any()])), (2, standing(&[]))].into();
    let ends = ends::wait_ends(&[1], &answers, |_| false, |_, _| false);
    let expected = WaitEnds { roots: vec![1], meanwhile: vec![(1, recv_any(), 0)], ..WaitEnds::default() };
    assert_eq!(ends, expected);
    // If rank 2 waits for rank 0, all three wait for each other.
    let answers: Standings =
        [(0, standing(&[recv(1)])), (1, standing(&[recv_any()])), (2, standing(&[recv(0)]))].into();
    let ends = ends::wait_ends(&[1], &answers, |_| false, |_, _| false);
    assert!(
        ends.roots.is_empty() && ends.circle.iter().map(|(who, _, on)| (*who, *on)).eq([(0, 1), (1, 0)]),
        "{ends:?}"
    );
}

#[test]
fn a_collective_that_takes_no_messages_is_in_a_circle_with_a_send() {
    let apart = Pending { with: With::Members(vec![0, 1], false), ..barrier() };
    let mut inside = standing(&[apart]);
    inside.places = vec![(WORLD, 3)];
    assert_eq!(found(&[inside, standing(&[send(0)])]), Some(vec![(0, 1), (1, 0)]));
}

#[test]
fn who_can_go_on_is_in_no_circle() {
    let one = |wait: Pending| standing(&[wait]);
    assert_eq!(found(&[one(send(1)), one(recv(0))]), None, "they meet");
    // Each sends on one thread and receives on another.
    let both = |peer: usize| standing(&[send(peer), recv(peer)]);
    assert_eq!(found(&[both(1), both(0)]), None);
    // A thread of the program works.
    assert_eq!(found(&[one(send(1)), Standing { stands: false, ..one(send(0)) }]), None);
    // The message is on its way.
    let mut sent = one(recv(1));
    sent.messages = vec![(WORLD, 1, 7, 4)];
    let mut receives = one(recv(0));
    receives.messages = vec![(WORLD, 0, 4, 6)];
    assert_eq!(found(&[sent.clone(), receives.clone()]), None);
    receives.messages = vec![(WORLD, 0, 4, 7)];
    assert_eq!(found(&[sent, receives]), Some(vec![(0, 1), (1, 0)]), "it had another tag");
    // All have come to the collective.
    assert_eq!(found(&[one(barrier()), one(barrier()), one(barrier())]), None);
    // A rank of which nothing is known.
    assert_eq!(found(&[one(send(2)), one(send(0))]), None);
}

#[test]
fn what_was_told_and_is_no_longer_true_is_not_believed() {
    let (mut waits, old) = (Waits::default(), standing(&[send(0)]));
    assert_eq!(waits.told(1, 0, old.clone()), Step::Nothing);
    let Step::Ask { round, ranks } = waits.told(0, 0, standing(&[send(1)])) else { panic!() };
    assert_eq!(ranks, [0, 1]);
    // Rank 1 has moved on, and computes.
    assert_eq!(waits.told(1, round, Standing::default()), Step::Nothing);
    assert_eq!(waits.told(0, round, standing(&[send(1)])), Step::Nothing);

    // The same waits, but something has moved between the answers.
    let Step::Ask { round, .. } = waits.told(1, 0, old.clone()) else { panic!() };
    assert_eq!(waits.told(0, round, standing(&[send(1)])), Step::Nothing);
    let Step::Ask { round: second, .. } = waits.told(1, round, old.clone()) else { panic!() };
    assert!(second > round);
    assert_eq!(waits.told(0, second, standing(&[send(1)])), Step::Nothing);
    assert_eq!(waits.told(1, second, Standing { bytes: 1, ..old.clone() }), Step::Nothing);

    // An answer that comes late counts for nothing.
    let Step::Ask { .. } = waits.told(1, 0, old.clone()) else { panic!() };
    assert_eq!(waits.told(0, second, standing(&[send(1)])), Step::Nothing);
    assert_eq!(waits.told(1, second, old), Step::Nothing);
}

#[test]
fn who_does_not_answer_holds_nobody_up() {
    let mut waits = Waits::default();
    let _ = waits.told(1, 0, standing(&[send(0)]));
    let Step::Ask { round, .. } = waits.told(0, 0, standing(&[send(1)])) else { panic!() };
    assert_eq!(waits.beat(), Step::Nothing, "it may be under way");
    let Step::Ask { round: again, .. } = waits.beat() else { panic!() };
    assert!(again > round);
}

#[test]
fn while_a_survey_goes_on_only_those_are_asked_again_that_waited_for_nothing() {
    let mut waits = Waits::default();
    assert!(waits.is_surveyed());
    let Step::Ask { round, ranks } = waits.survey([0, 1, 2].into()) else { panic!() };
    assert_eq!(ranks, [0, 1, 2]);
    assert_eq!(waits.told(0, round, standing(&[recv(1)])), Step::Nothing);
    assert_eq!(waits.told(1, round, standing(&[])), Step::Nothing);
    assert_eq!(waits.survey([0, 1, 2].into()), Step::Ask { round, ranks: vec![1] });
    assert_eq!(waits.told(2, round, standing(&[])), Step::Nothing);
    assert!(!waits.is_surveyed());
    assert_eq!(waits.told(1, round, standing(&[send(2)])), Step::Surveyed);
    assert!(waits.is_surveyed() && waits.answers().unwrap()[&1].waits == [send(2)]);
    waits.end_survey();
    assert!(waits.answers().is_none());
    let Step::Ask { round: again, .. } = waits.survey([0, 1].into()) else { panic!() };
    assert!(again > round);
    waits.close_survey();
    assert!(waits.is_surveyed() && waits.answers().unwrap().is_empty(), "nobody has answered");
}

/// The ranks to blame for a call to which these have not come; nobody has an error or has left.
fn blamed(absent: &[usize], ranks: &[Standing]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let answers = ranks.iter().cloned().enumerate().collect();
    let WaitEnds { roots, fallen, meanwhile, circle } = wait_ends(absent, &answers, |_| false, |_, _| false);
    assert!(fallen.is_empty() && roots.is_empty() != circle.is_empty());
    let links = if circle.is_empty() { meanwhile } else { circle };
    (roots, links.into_iter().map(|(who, _, on)| (who, on)).collect())
}

#[test]
fn blame_is_followed_to_who_waits_for_nobody() {
    let one = |wait: Pending| standing(&[wait]);
    let idle = || standing(&[]);
    assert_eq!(blamed(&[1], &[one(recv(1)), idle()]), (vec![1], vec![]));
    let line = [one(recv(1)), one(recv(2)), one(recv(3)), idle()];
    assert_eq!(blamed(&[1], &line), (vec![3], vec![(1, 2), (2, 3)]));
    assert_eq!(blamed(&[1, 3], &line).0, [3], "one of those that have not come is why the other hasn't");
    // Rank 1 has come to the collective for which rank 2 waits, rank 0 has not.
    let collective = [idle(), one(barrier()), one(barrier())];
    assert_eq!(blamed(&[2], &collective), (vec![0], vec![(2, 0)]));
    // Of rank 4 nothing is known.
    assert_eq!(blamed(&[1], &[idle(), one(recv(4))]), (vec![4], vec![(1, 4)]));
    // All have come: the last is on its way.
    assert_eq!(blamed(&[1], &[one(barrier()), one(barrier()), one(barrier())]).0, [1]);
    assert_eq!(blamed(&[1], &[one(recv(1)), one(recv(0))]), (vec![], vec![(0, 1), (1, 0)]));
}

#[test]
fn blame_ends_at_who_has_an_error_or_left() {
    let answers: Standings =
        [standing(&[]), standing(&[recv(2)]), standing(&[recv(3)])].into_iter().enumerate().collect();
    let WaitEnds { roots, fallen, meanwhile, .. } = wait_ends(&[1], &answers, |rank| rank == 2, |_, _| false);
    assert_eq!((roots, fallen), (vec![], vec![2]));
    assert_eq!(meanwhile.len(), 1);
    let answers: Standings = [(0, standing(&[])), (1, standing(&[barrier()]))].into();
    let WaitEnds { roots, .. } =
        wait_ends(&[1], &answers, |_| false, |group, rank| group == WORLD && rank == 2);
    assert_eq!(roots, [0], "and not rank 2");
}

/// What a rank of the model does next.
#[derive(Debug, Clone, Copy)]
enum Act {
    Send(usize),
    Recv(usize),
}

/// Programs of ranks with one thread each, whose sends wait for their receivers: performed to the end.
fn perform(programs: &[Vec<Act>]) -> Vec<Standing> {
    let mut at = vec![0; programs.len()];
    let mut counts = BTreeMap::<(usize, usize), u64>::new();
    loop {
        let act = |rank: usize, at: &[usize]| programs[rank].get(at[rank]).copied();
        let meets = (0..programs.len()).find_map(|from| match act(from, &at) {
            Some(Act::Send(to)) if matches!(act(to, &at), Some(Act::Recv(of)) if of == from) => {
                Some((from, to))
            }
            _ => None,
        });
        let Some((from, to)) = meets else { break };
        *counts.entry((from, to)).or_default() += 1;
        at[from] += 1;
        at[to] += 1;
    }
    let pending = |rank: usize| match programs[rank].get(at[rank]) {
        Some(Act::Send(to)) => vec![send(*to)],
        Some(Act::Recv(from)) => vec![recv(*from)],
        None => Vec::new(),
    };
    let count = |from, to| counts.get(&(from, to)).copied().unwrap_or(0);
    (0..programs.len())
        .map(|rank| {
            let others = (0..programs.len()).filter(|&other| other != rank);
            let messages =
                others.map(|other| (WORLD, other, count(rank, other), count(other, rank))).collect();
            Standing { messages, ..standing(&pending(rank)) }
        })
        .collect()
}

proptest! {
    /// Where ranks have stopped for good, a circle is found exactly if no rank waits for one that has ended.
    #[test]
    fn a_circle_is_found_if_and_only_if_there_is_one(
        acts in proptest::collection::vec(proptest::collection::vec((any::<bool>(), 0usize..4), 0..6), 2..5),
    ) {
        let world_size = acts.len();
        let act = |rank: usize, (sends, peer): (bool, usize)| {
            let peer = (rank + 1 + peer % (world_size - 1)) % world_size;
            if sends { Act::Send(peer) } else { Act::Recv(peer) }
        };
        let programs: Vec<Vec<Act>> = acts.iter().enumerate()
            .map(|(rank, acts)| acts.iter().map(|&a| act(rank, a)).collect()).collect();
        let standings = perform(&programs);
        // Who waits for an ended rank, or for one that does, is not in a circle; all others must be led into one.
        let next = |rank: usize| match standings[rank].waits.first().map(|wait| &wait.with) {
            Some(With::Peer(peer, _)) => Some(*peer),
            _ => None,
        };
        let leads = |rank: usize| std::iter::successors(Some(rank), |&rank| next(rank)).take(world_size + 1).count() > world_size;
        let circle = (0..world_size).any(leads);
        let found = found(&standings);
        prop_assert_eq!(found.is_some(), circle, "{:?}", standings);
        for (who, on) in found.unwrap_or_default() {
            prop_assert_eq!(next(who), Some(on));
        }
    }
}
