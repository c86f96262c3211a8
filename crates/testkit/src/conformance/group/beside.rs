//! The interface for engines beside the group's backend: agreement without data, and causes from outside.

use super::failure::{cause, failed};
use crate::World;
use phalanx_core::{CallSite, Cause, DType, Error, Method, OpKind, Signature};
use phalanx_group::{ProcessGroup, Work};
use std::sync::Barrier;
use std::time::Duration;

const OPS: [OpKind; 8] = [
    OpKind::AllReduce,
    OpKind::ReduceScatter,
    OpKind::AllGather,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllToAll,
];

#[track_caller]
fn call(op: OpKind, count: u64) -> Signature {
    let reduces = matches!(op, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Reduce);
    let rooted = matches!(op, OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter);
    let reduce = reduces.then_some(phalanx_core::ReduceOp::Sum);
    let (dtype, root, site) = (Some(DType::F32), rooted.then_some(1), CallSite::caller());
    Signature { op, dtype, count, reduce, root, detail: 0, method: Method::UNSAID, site }
}

/// Nobody has agreed before all have called, whatever the operation.
pub fn an_agreement_waits_for_all(world: &World) {
    for op in OPS {
        let others_have_seen = Barrier::new(3);
        world.run(3, move |group: ProcessGroup| {
            group.barrier().unwrap();
            if group.rank() == 0 {
                others_have_seen.wait();
                return group.agree_async(call(op, 1000)).and_then(Work::wait).unwrap();
            }
            let agreement = group.agree_async(call(op, 1000)).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert!(!agreement.is_done(), "{op} before rank 0 has called");
            others_have_seen.wait();
            agreement.wait().unwrap();
        });
    }
}

/// Ranks that mean different things hear so, with both call sites.
pub fn a_disagreement_is_a_mismatch(world: &World) {
    let causes = world.run(3, |group| {
        let count = if group.rank() == 2 { 1000 } else { 1001 };
        let error = failed(&group, group.agree_async(call(OpKind::AllReduce, count)).and_then(Work::wait));
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        let words = error.to_string();
        let (_, sides) =
            words.split_once("ranks disagree at operation #").unwrap_or_else(|| panic!("{words}"));
        assert_eq!(sides.matches("beside.rs:").count(), 2, "{words}");
        cause(&group)
    });
    assert!(causes.iter().all(|c| *c == causes[0]));
}

/// A cause that an engine beside the group has found is that of all ranks, and is known without a call.
pub fn a_cause_from_outside_fails_the_group_everywhere(world: &World) {
    let all_is_well = Barrier::new(3);
    let causes = world.run(3, move |group| {
        group.barrier().unwrap();
        assert_eq!(group.failure(), None);
        all_is_well.wait();
        if group.rank() == 1 {
            let reason = "x".repeat(1 << 20);
            let first = group.fail(Cause::Aborted { peer: group.peer(1), reason });
            assert_eq!(group.fail(Cause::Aborted { peer: group.peer(1), reason: "again".into() }), first);
        }
        while group.failure().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let error = failed(&group, group.barrier());
        assert!(matches!(error, Error::Aborted { .. }));
        let Some(Cause::Aborted { peer, reason }) = group.failure() else { panic!("another cause") };
        assert!(peer.rank == 1 && reason.starts_with('x'));
        (peer, reason)
    });
    assert!(causes.iter().all(|c| *c == causes[0]));
}
