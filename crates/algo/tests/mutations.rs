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
    let why = refused(Algorithm::BroadcastBinomial, 4, |ranks| drop(ranks[3].pop()));
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
    assert_says(&why, "rank 1 ends with");
    assert_says(&why, "finished: true");
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
        refused(Algorithm::BarrierDissemination, 4, |ranks| ranks.iter_mut().for_each(|s| drop(s.pop())));
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
