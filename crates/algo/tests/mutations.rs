//! A checker that accepts everything proves nothing: each way to break a schedule is refused, and for its own reason.

use phalanx_algo::{Action, Algorithm, Job, Recv, Send, Span, Step, check_schedules};
use phalanx_core::{Layout, OpKind};

/// Breaks the schedules of `algorithm` on `world_size` ranks, two elements each, and returns what the checker says.
fn refused(algorithm: Algorithm, world_size: usize, break_it: impl FnOnce(&mut Vec<Vec<Step>>)) -> String {
    let job = Job::new(algorithm.op(), Layout::even(world_size, 2 * world_size), 0);
    let mut schedules = job.schedules(algorithm);
    check_schedules(&job, &schedules).expect("right before it is broken");
    break_it(&mut schedules);
    check_schedules(&job, &schedules).expect_err("a broken schedule is refused")
}

#[track_caller]
fn assert_says(why: &str, expected: &str) {
    assert!(why.contains(expected), "expected {expected:?} in: {why}");
}

#[test]
fn swapped_peer() {
    let why = refused(Algorithm::AllReduceRing, 4, |ranks| ranks[2][1].send.as_mut().unwrap().peer = 1);
    assert_says(&why, "circular wait");
    assert_says(&why, "rank 2");
}

#[test]
fn missing_step() {
    let why = refused(Algorithm::BroadcastBinomial, 4, |ranks| ranks[3].clear());
    assert_says(&why, "sends to rank 3, which has ended");
}

#[test]
fn missing_step_on_both_sides() {
    let why = refused(Algorithm::BroadcastBinomial, 4, |ranks| {
        ranks[2].pop();
        ranks[3].pop();
    });
    assert_says(&why, "rank 3 ends with");
}

#[test]
fn additional_message() {
    let why = refused(Algorithm::GatherFlat, 4, |ranks| {
        let again = ranks[1][0].clone();
        ranks[1].push(again);
    });
    assert_says(&why, "step 1 of rank 1 sends to rank 0, which has ended");
}

#[test]
fn contribution_counted_twice() {
    let why = refused(Algorithm::AllReduceRecursiveDoubling, 4, |ranks| {
        for steps in ranks {
            steps[0].recv.as_mut().unwrap().action = Action::Combine;
            steps[1] = steps[0].clone();
        }
    });
    assert_says(&why, "combines a contribution twice");
}

#[test]
fn contribution_left_out() {
    let why = refused(Algorithm::ReduceBinomial, 4, |ranks| {
        ranks[0].remove(0);
        ranks[1].clear();
    });
    assert_says(&why, "finishes before all contributions are in");
}

#[test]
fn operator_never_finished() {
    let why = refused(Algorithm::ReduceScatterRing, 3, |ranks| {
        ranks[1][1].recv.as_mut().unwrap().action = Action::Combine;
    });
    assert_says(
        &why,
        "rank 1 ends with element 2 of ranks [0, 1, 2] at 2, not with element 2 of ranks [0, 1, 2], finished",
    );
}

#[test]
fn partial_sum_copied() {
    let why = refused(Algorithm::AllReduceRing, 3, |ranks| {
        ranks[1][1].recv.as_mut().unwrap().action = Action::Copy;
    });
    assert_says(&why, "step 1 of rank 1 copies a partial sum");
}

#[test]
fn finished_element_combined_again() {
    let why = refused(Algorithm::AllReduceRing, 3, |ranks| {
        ranks[0][2].recv.as_mut().unwrap().action = Action::Combine;
    });
    assert_says(&why, "step 2 of rank 0 combines what was finished");
}

#[test]
fn wrong_range_received() {
    let why = refused(Algorithm::AllReduceRing, 4, |ranks| {
        ranks[0][0].recv.as_mut().unwrap().span = (0..2).into();
    });
    assert_says(&why, "step 0 of rank 0 combines elements of different places");
}

#[test]
fn wrong_range_copied() {
    let why = refused(Algorithm::AllGatherRing, 4, |ranks| {
        ranks[0][2].recv.as_mut().unwrap().span = (6..8).into();
    });
    assert_says(&why, "rank 0 ends with");
}

#[test]
fn data_sent_before_it_is_there() {
    let why = refused(Algorithm::AllGatherRing, 4, |ranks| {
        ranks[3][0].send.as_mut().unwrap().span = (0..2).into();
    });
    assert_says(&why, "copies an element that the sender never had");
}

#[test]
fn lengths_that_differ() {
    let why = refused(Algorithm::ScatterFlat, 4, |ranks| {
        ranks[2][0].recv.as_mut().unwrap().span = (4..5).into();
    });
    assert_eq!(why, "step 1 of rank 0 sends 2 elements, but step 0 of rank 2 expects 1");
}

#[test]
fn span_beyond_the_buffer() {
    let why = refused(Algorithm::ScatterFlat, 4, |ranks| {
        ranks[2][0].recv.as_mut().unwrap().span = (7..9).into();
    });
    assert_says(&why, "beyond the 8 elements");
}

#[test]
fn span_that_covers_an_element_twice() {
    let why = refused(Algorithm::ScatterFlat, 4, |ranks| {
        ranks[2][0].recv.as_mut().unwrap().span = Span { first: 4..5, second: 4..5 };
    });
    assert_says(&why, "covers elements twice");
}

#[test]
fn peer_that_does_not_exist() {
    for peer in [0, 4] {
        let why = refused(Algorithm::ScatterFlat, 4, |ranks| ranks[0][0].send.as_mut().unwrap().peer = peer);
        assert_eq!(why, format!("step 0 of rank 0: rank {peer} is not a peer"));
    }
}

#[test]
fn send_and_receive_torn_apart() {
    let why = refused(Algorithm::AllToAllPairwise, 3, |ranks| {
        for steps in ranks {
            let torn = |s: &Step| {
                [Step { send: s.send.clone(), recv: None }, Step { send: None, recv: s.recv.clone() }]
            };
            *steps = steps.iter().flat_map(torn).collect();
        }
    });
    assert_says(&why, "circular wait: step 0 of rank 0 sends to rank 1, which in step 0 sends to rank 2");
}

#[test]
fn barrier_left_too_early() {
    let why =
        refused(Algorithm::BarrierDissemination, 4, |ranks| ranks.iter_mut().for_each(|s| s.truncate(1)));
    assert_says(&why, "leaves the barrier before it heard of all");
}

/// Even ranks compute (3 + 0) + (1 + 2), odd ranks (0 + 1) + (2 + 3): complete sums, but not the same bits.
#[test]
fn another_order_on_another_rank() {
    let exchange = |to, from, action| Step {
        send: Some(Send { peer: to, span: (0..1).into() }),
        recv: Some(Recv { peer: from, span: (0..1).into(), action }),
    };
    let schedules: Vec<_> = (0..4)
        .map(|r| {
            vec![exchange((r + 1) % 4, (r + 3) % 4, Action::Combine), exchange(r ^ 2, r ^ 2, Action::Finish)]
        })
        .collect();
    let why = check_schedules(&Job::new(OpKind::AllReduce, Layout::even(4, 1), 0), &schedules).unwrap_err();
    assert_says(&why, "rank 1 combined element 0 in another order");
}

/// Schedules have nothing to spare: whatever single thing is changed in them, something breaks.
#[test]
fn every_single_change() {
    for &algorithm in Algorithm::ALL {
        for world_size in (2..=8).filter(|&w| algorithm.supports(w)) {
            let job = Job::new(algorithm.op(), Layout::even(world_size, 2 * world_size), world_size / 2);
            let mut schedules = job.schedules(algorithm);
            let proved = job.of_spans(algorithm);
            let len = proved.volume().len as usize;
            for rank in 0..world_size {
                for step in 0..schedules[rank].len() {
                    let right = schedules[rank][step].clone();
                    for wrong in changes(&right, rank, world_size, len) {
                        schedules[rank][step] = wrong;
                        let outcome = check_schedules(&proved, &schedules);
                        let wrong = &schedules[rank][step];
                        assert!(
                            outcome.is_err(),
                            "{algorithm}: {wrong:?} for {right:?}, {rank} of {world_size}"
                        );
                    }
                    schedules[rank][step] = right;
                }
            }
        }
    }
}

/// The step with one half left out, sent to or received from another rank, moved by an element, or with another action.
fn changes(step: &Step, rank: usize, world_size: usize, len: usize) -> Vec<Step> {
    let mut changed = Vec::new();
    let other_peers = |peer: usize| (0..world_size).filter(move |&p| p != peer && p != rank);
    if let Some(send) = &step.send {
        changed.push(Step { send: None, ..step.clone() });
        let with = |send| Step { send: Some(send), ..step.clone() };
        changed.extend(other_peers(send.peer).map(|peer| with(Send { peer, ..send.clone() })));
        changed.extend(moved(&send.span, len).map(|span| with(Send { span, ..send.clone() })));
    }
    if let Some(recv) = &step.recv {
        changed.push(Step { recv: None, ..step.clone() });
        let with = |recv| Step { recv: Some(recv), ..step.clone() };
        changed.extend(other_peers(recv.peer).map(|peer| with(Recv { peer, ..recv.clone() })));
        changed.extend(moved(&recv.span, len).map(|span| with(Recv { span, ..recv.clone() })));
        if !recv.span.is_empty() {
            let actions =
                [Action::Copy, Action::Combine, Action::Finish].into_iter().filter(|a| *a != recv.action);
            changed.extend(actions.map(|action| with(Recv { action, ..recv.clone() })));
        }
    }
    changed
}

/// As many elements one place further on in a buffer of `len`, going round at its end.
fn moved(span: &Span, len: usize) -> Option<Span> {
    let start = span.first.start + 1;
    let end = start + span.len();
    (!span.is_empty()).then(|| Span { first: start..end.min(len), second: 0..end.saturating_sub(len) })
}
