//! Calls that make no sense: refused before anything is sent, with what is wrong and where.

use crate::World;
use phalanx_core::{Error, OpKind, ReduceOp, Result};
use phalanx_group::ProcessGroup;

/// One rank makes every wrong call there is, the others none; then all work together as if nothing had been.
pub fn a_wrong_call_hurts_nobody(world: &World) {
    for culprit in 0..3 {
        world.run(3, move |group| {
            if group.rank() == culprit {
                wrong_calls(&group);
            }
            let mut sum = [1u8];
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [3]);
        });
    }
}

#[track_caller]
fn refused<T>(op: OpKind, outcome: Result<T>, why: &str) {
    let caller = std::panic::Location::caller().line();
    match outcome {
        Err(error @ Error::Misuse { .. }) => {
            let text = error.to_string();
            assert!(error.group_is_usable());
            assert!(text.starts_with(op.name()) && text.contains(why), "{text}");
            // The call stands on the line of this one, or below the operation where that is too long.
            let here = |line: u32| text.contains(&format!("misuse.rs:{line}"));
            assert!((caller..=caller + 2).any(here), "called at line {caller}: {text}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{op} took it"),
    }
}

fn wrong_calls(group: &ProcessGroup) {
    use OpKind::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, NewGroup, Recv, Reduce, ReduceScatter, Scan,
        Scatter, Send,
    };
    let me = group.rank();
    let (three, mut one, mut seven) = ([0f32; 3], [0f32; 1], [0f32; 7]);
    let sum = ReduceOp::Sum;

    refused(AllReduce, group.all_reduce(&mut seven, ReduceOp::BitAnd), "not for f32");
    refused(AllReduce, group.all_reduce_async(vec![0f32], ReduceOp::BitXor), "not for f32");
    let half = ReduceOp::PreMulSum(0.5);
    let mut numbers = [8i32, 4, 2];
    refused(AllReduce, group.all_reduce(&mut numbers, half), "pre_mul_sum is for floats, not for i32");
    refused(Scan, group.scan_async(vec![8u64], half), "pre_mul_sum is for floats, not for u64");
    let mut floats = [8f32, 4.0, 2.0];
    refused(Reduce, group.reduce(&mut floats, half, 3), "root 3 is out of range");
    refused(ReduceScatter, group.reduce_scatter_v(&floats, &mut one, &[3, 0, 1], half), "expected 4");
    assert_eq!((numbers, floats), ([8, 4, 2], [8.0, 4.0, 2.0]), "changed by a call that was refused");

    refused(
        Reduce,
        group.reduce(&mut seven, sum, 3),
        "root 3 is out of range: the ranks of this group are 0..3, at",
    );
    refused(Broadcast, group.broadcast(&mut seven, usize::MAX), "the ranks of this group are 0..3");
    refused(Broadcast, group.broadcast_async(vec![0u8], 9), "root 9");

    refused(
        ReduceScatter,
        group.reduce_scatter(&seven, &mut one, sum),
        "input has 7 elements, expected 3 (1 × 3 ranks), at",
    );
    refused(ReduceScatter, group.reduce_scatter_v(&three, &mut one, &[1, 1], sum), "2 counts for 3 ranks");
    refused(ReduceScatter, group.reduce_scatter_async(vec![0u8; 4], sum), "has 4 elements");
    refused(AllGather, group.all_gather(&one, &mut seven), "output has 7 elements, expected 3 (1 × 3");
    refused(AllGather, group.all_gather_v(&one, &mut seven, &[usize::MAX, 1, 1]), "does not fit");

    refused(Gather, group.gather(&one, None, me), "output is missing, expected 3 (1 × 3 ranks)");
    refused(Gather, group.gather(&one, Some(&mut seven), me), "output has 7 elements, expected 3");
    refused(Gather, group.gather(&one, Some(&mut seven), (me + 1) % 3), "expected none (the root is rank");
    refused(Gather, group.gather_v(&one, None, &[2; 3], (me + 1) % 3), "input has 1 element, expected 2");
    refused(Scatter, group.scatter(None, &mut one, me), "input is missing, expected 3");
    refused(Scatter, group.scatter(Some(&seven), &mut one, me), "input has 7 elements");
    refused(
        Scatter,
        group.scatter(Some(&three), &mut one, (me + 1) % 3),
        "input has 3 elements, expected none",
    );
    refused(Scatter, group.scatter_v(None, &mut one, &[1; 4], 0), "4 counts");

    refused(
        AllToAll,
        group.all_to_all(&three, &mut seven),
        "output has 7 elements, expected 3 (as many as input has)",
    );
    refused(AllToAll, group.all_to_all(&[0u8; 4], &mut [0; 4]), "expected a multiple of 3");
    refused(AllToAll, group.all_to_all_in_place(&mut [0; 4]), "4 elements for 3 ranks");
    let (mine, more) = ([1; 3], [2; 3]);
    refused(
        AllToAll,
        group.all_to_all_v(&three, &mine, &mut [0f32; 6], &more),
        "sends 1 elements to itself, and expects 2",
    );

    refused(Send, group.send(&one, me, 0), "self-sends are not supported");
    refused(Recv, group.recv(&mut one, me, 0), "the source is this rank");
    refused(Send, group.send_async(vec![0u8], 3, 0), "rank 3 is out of range");
    refused(Recv, group.recv_async(vec![0u8], 3, 0), "rank 3 is out of range");
    refused(Recv, group.recv_timeout(&mut one, 4, 0, group.timeout()), "rank 4 is out of range");
    refused(NewGroup, group.new_group(&[0, 3]), "rank 3 is out of range: the ranks of this group are 0..3");
    refused(NewGroup, group.new_group(&[1, 0, 1]), "rank 1 is named twice");
    refused(Broadcast, group.broadcast_object(None::<u8>, me), "object is missing");
}
