//! Groups that a program makes over links of its own: every operation works, and each rank says of a failure what it has seen itself.

use phalanx_core::{Error, ReduceOp};
use phalanx_testkit::{Links, World};
use std::sync::{Arc, Barrier};
use std::time::Duration;

macro_rules! works_over_links {
    ($($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => { $( $(
        #[test]
        fn $test() {
            for links in [Links::thread(), Links::tcp()] {
                phalanx_testkit::conformance::group::$module::$test(&World::over(links));
            }
        }
    )* )* };
}

works_over_links! {
    reductions::{reductions_of_every_kind, reductions_over_several_frames},
    movements::{movements_of_every_kind, movements_over_several_frames},
    messages::{
        tags_may_be_received_in_any_order, many_small_messages_arrive, both_sides_may_begin_with_the_same_half,
        short_messages_need_no_receiver, large_messages_cross, waiting_in_vain_is_no_failure, threads_share_a_group,
    },
    any_source::{
        work_goes_to_whoever_is_done, no_rank_is_left_out_in_a_flood, every_message_is_received_once,
        receives_keep_their_order_with_those_from_any, nothing_from_any_is_no_failure, who_has_left_is_not_waited_for,
        nobody_sends_to_a_rank_that_is_alone,
    },
    asynchrony::{
        asynchronous_operations_compute_the_same, operations_in_flight_may_be_waited_for_in_any_order,
        blocking_calls_take_their_turn, messages_flow_beside_collectives,
    },
    objects::{objects_arrive_as_they_were},
    misuse::{a_wrong_call_hurts_nobody},
}

/// The error of each of two ranks, of which both live until both have one.
fn errors(
    links: Links,
    call: impl Fn(&phalanx_group::ProcessGroup) -> Error + Send + Sync + 'static,
) -> Vec<Error> {
    let both = Arc::new(Barrier::new(2));
    World::over(links).run(2, move |group| {
        let error = call(&group);
        both.wait();
        assert!(matches!(group.barrier(), Err(Error::Poisoned { .. })), "the group has failed");
        error
    })
}

#[test]
fn a_peer_that_leaves_or_panics_is_named() {
    for (links, panics) in [(Links::thread(), false), (Links::tcp(), true)] {
        let has_left = Arc::new(Barrier::new(2));
        let outcome = World::over(links).run(2, move |group| {
            if group.rank() == 1 {
                let ends = move || {
                    let _group = group;
                    if panics {
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }
                };
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ends));
                has_left.wait();
                return None;
            }
            let error = group.all_reduce(&mut [1.0f32; 1000], ReduceOp::Sum).unwrap_err();
            has_left.wait();
            Some(error)
        });
        let error = outcome[0].as_ref().expect("rank 0 failed");
        let Error::PeerLost { peer, .. } = error else { panic!("{error}") };
        assert_eq!((peer.rank, peer.host.as_str()), (1, "thread 1"), "{error}");
    }
}

#[test]
fn two_calls_that_differ_are_both_named() {
    for links in [Links::thread(), Links::tcp()] {
        let errors = errors(links, |group| {
            group.all_reduce(&mut vec![1.0f32; 100 + group.rank()], ReduceOp::Sum).unwrap_err()
        });
        for error in errors {
            let Error::Mismatch { left, right, .. } = &error else { panic!("{error}") };
            assert_eq!((left.1.count, right.1.count), (100, 101), "{error}");
        }
    }
}

#[test]
fn a_timeout_names_the_peers_for_which_this_rank_waited() {
    let both = Arc::new(Barrier::new(2));
    let outcome = World::over(Links::tcp()).run(2, move |group| {
        let hasty = group.with_timeout(Duration::from_millis(300));
        let outcome = if group.rank() == 0 { hasty.all_reduce(&mut [1.0f32], ReduceOp::Sum) } else { Ok(()) };
        both.wait();
        outcome
    });
    let error = outcome[0].as_ref().unwrap_err();
    let Error::Timeout { missing, .. } = error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
}

#[test]
fn there_is_one_name_for_each_rank_and_no_way_to_divide() {
    let ends = Links::thread().ends(2).unwrap();
    for end in ends {
        let error = phalanx_group::ProcessGroup::over(end, &["one"], Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
    World::over(Links::thread()).run(2, |group| {
        assert!(matches!(group.split(Some(0), 0), Err(Error::Unsupported { .. })));
        group.finalize().unwrap();
    });
}
