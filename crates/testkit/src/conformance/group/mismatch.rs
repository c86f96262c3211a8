//! Ranks that call different things at the same place: all are told, with both call sites, and no data is mixed.

use super::failure::{at_once, cause, failed};
use crate::World;
use half::{bf16, f16};
use phalanx_core::{Cause, Error, OpKind, ReduceOp, Result};
use phalanx_group::{ProcessGroup, Work};
use std::sync::Barrier;

/// A call that a rank makes, another if it is the odd one out; returns its outcome and its line.
type Call = fn(&ProcessGroup, odd: bool) -> (Result<()>, u32);

/// In worlds of 2 to 4 ranks the first or the last rank does something else than the others.
fn disagree(world: &World, call: Call) {
    at_once(&[(2, 0), (2, 1), (3, 0), (3, 2), (4, 0), (4, 3)], |&(world_size, odd)| {
        let all_was_well = Barrier::new(world_size);
        let outcomes = world.run(world_size, move |group| {
            group.all_reduce(&mut [1i32; 3], ReduceOp::Sum).unwrap();
            all_was_well.wait();
            let (outcome, line) = call(&group, group.rank() == odd);
            (line, failed(&group, outcome), cause(&group))
        });
        let cause = &outcomes[0].2;
        let Cause::Mismatch { left, right, .. } = cause else {
            panic!("rank {odd} of {world_size} is odd: {cause}");
        };
        assert!(left.0.rank < right.0.rank && (left.0.rank == odd || right.0.rank == odd), "{cause}");
        for (peer, signature) in [left, right] {
            assert!(signature.site.file.ends_with("mismatch.rs"), "{cause}");
            assert_eq!(signature.site.line, outcomes[peer.rank].0, "{cause}");
        }
        for (rank, (_, error, theirs)) in outcomes.iter().enumerate() {
            assert!(matches!(error, Error::Mismatch { .. }), "rank {rank} of {world_size}: {error}");
            assert_eq!(theirs, cause, "rank {rank} of {world_size}");
            let text = error.to_string();
            let told = [left, right].iter().all(|(_, signature)| text.contains(&signature.to_string()));
            assert!(told, "rank {rank} of {world_size}: {text}");
        }
    });
}

/// A reproducible handle, and one that is not.
pub fn another_order_is_a_mismatch(world: &World) {
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [0f32; 4], ReduceOp::Sum), line!()),
        true => (g.reproducible().all_reduce(&mut [0f32; 4], ReduceOp::Sum), line!()),
    });
}

/// Another operation, or the end.
pub fn another_operation_is_a_mismatch(world: &World) {
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [0i32; 4], ReduceOp::Sum), line!()),
        true => (g.broadcast(&mut [0i32; 4], 0), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.barrier(), line!()),
        true => (g.all_gather(&[0u8; 2], &mut vec![0; 2 * g.world_size()]), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [0i32; 4], ReduceOp::Sum), line!()),
        true => (g.clone().finalize(), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.barrier_async().and_then(Work::wait), line!()),
        true => (g.split(Some(0), 0).map(drop), line!()),
    });
}

/// Another element type of the same size.
pub fn another_element_type_is_a_mismatch(world: &World) {
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [0f32; 4], ReduceOp::Sum), line!()),
        true => (g.all_reduce(&mut [0i32; 4], ReduceOp::Sum), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.broadcast(&mut [0u8; 4], 1), line!()),
        true => (g.broadcast(&mut [0i8; 4], 1), line!()),
    });
    // Both travel as f32.
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [f16::ONE; 4], ReduceOp::PreMulSum(0.5)), line!()),
        true => (g.all_reduce(&mut [bf16::ONE; 4], ReduceOp::PreMulSum(0.5)), line!()),
    });
}

/// Another length: also none at all, for which there is nothing to send.
pub fn another_length_is_a_mismatch(world: &World) {
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [0f32; 4], ReduceOp::Sum), line!()),
        true => (g.all_reduce(&mut [0f32; 5], ReduceOp::Sum), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.all_gather(&[0u16; 2], &mut vec![0; 2 * g.world_size()]), line!()),
        true => (g.all_gather(&[0u16; 3], &mut vec![0; 3 * g.world_size()]), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.broadcast(&mut [0u64; 4], 0), line!()),
        true => (g.broadcast(&mut [0u64; 0], 0), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce_async(vec![0u8; 2], ReduceOp::Max).and_then(Work::wait).map(drop), line!()),
        true => (g.all_reduce_async(vec![0u8; 0], ReduceOp::Max).and_then(Work::wait).map(drop), line!()),
    });
}

/// Unlike counts, where the odd one has no part in the operation as it sees it.
pub fn other_counts_are_a_mismatch(world: &World) {
    /// All give two elements; or all but the last and the first.
    fn counts(group: &ProcessGroup, inner_only: bool) -> Vec<usize> {
        let ends = [0, group.world_size() - 1];
        (0..group.world_size()).map(|r| if inner_only && ends.contains(&r) { 0 } else { 2 }).collect()
    }
    disagree(world, |g, odd| {
        let counts = counts(g, odd);
        let mut output = vec![0u8; counts.iter().sum()];
        (g.all_gather_v(&vec![0u8; counts[g.rank()]], &mut output, &counts), line!())
    });
    disagree(world, |g, odd| {
        let counts = counts(g, odd);
        let mut output = (g.rank() == 1).then(|| vec![0u8; counts.iter().sum()]);
        (g.gather_v(&vec![0u8; counts[g.rank()]], output.as_deref_mut(), &counts, 1), line!())
    });
}

/// Other lengths of buffers in one call that are as many elements together, another number of them, and no such call.
pub fn other_buffers_are_a_mismatch(world: &World) {
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce_coalesced(&mut [&mut [0f32; 4], &mut [0f32; 2]], ReduceOp::Sum), line!()),
        true => (g.all_reduce_coalesced(&mut [&mut [0f32; 3], &mut [0f32; 3]], ReduceOp::Sum), line!()),
    });
    disagree(world, |g, odd| {
        let (mut large, mut small) = (vec![0u64; 10_000], vec![[0u64; 3]; if odd { 4 } else { 5 }]);
        let small = small.iter_mut().map(|buffer| &mut buffer[..]);
        let mut buffers: Vec<_> = std::iter::once(&mut large[..]).chain(small).collect();
        (g.all_reduce_coalesced(&mut buffers, ReduceOp::Sum), line!())
    });
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce_coalesced(&mut [&mut [0f32; 4]], ReduceOp::Sum), line!()),
        true => (g.all_reduce(&mut [0f32; 4], ReduceOp::Sum), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce_coalesced::<f32>(&mut [], ReduceOp::Sum), line!()),
        true => (g.all_reduce_coalesced(&mut [&mut [0f32; 4]], ReduceOp::Sum), line!()),
    });
    disagree(world, |g, odd| {
        let buffers = if odd { vec![vec![0f32; 3]; 2] } else { vec![vec![0f32; 4], vec![0.0; 2]] };
        (g.all_reduce_coalesced_async(buffers, ReduceOp::Sum).and_then(Work::wait).map(drop), line!())
    });
    // What differs is said: else both would seem to be the same call.
    let words = world.run(2, |g| {
        let first = if g.rank() == 0 { 4 } else { 3 };
        let (mut one, mut other) = (vec![0f32; first], vec![0f32; 6 - first]);
        let outcome = g.all_reduce_coalesced(&mut [&mut one, &mut other], ReduceOp::Sum);
        failed(&g, outcome).to_string()
    });
    for words in words {
        let told = ["coalesced as 2 blocks of 4, 2", "coalesced as 2 blocks of 3"];
        assert!(told.iter().all(|told| words.contains(told)), "{words}");
    }
}

/// Another root: two that wait for each other, or two that both send.
pub fn another_root_is_a_mismatch(world: &World) {
    disagree(world, |g, odd| (g.broadcast(&mut [0f64; 4], usize::from(odd)), line!()));
    disagree(world, |g, odd| (g.reduce(&mut [0f64; 4], ReduceOp::Sum, usize::from(!odd)), line!()));
    disagree(world, |g, odd| {
        let root = usize::from(odd);
        let input = (g.rank() == root).then(|| vec![0u8; g.world_size()]);
        (g.scatter(input.as_deref(), &mut [0u8], root), line!())
    });
}

/// Another reduce operator.
pub fn another_operator_is_a_mismatch(world: &World) {
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [0f32; 4], ReduceOp::Sum), line!()),
        true => (g.all_reduce(&mut [0f32; 4], ReduceOp::Avg), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.all_reduce(&mut [0f32; 4], ReduceOp::Sum), line!()),
        true => (g.all_reduce(&mut [0f32; 4], ReduceOp::PreMulSum(1.0)), line!()),
    });
    disagree(world, |g, odd| match odd {
        false => (g.reduce_scatter(&vec![0u8; g.world_size()], &mut [0], ReduceOp::Min), line!()),
        true => (g.reduce_scatter(&vec![0u8; g.world_size()], &mut [0], ReduceOp::Max), line!()),
    });
}

/// A message of another length or type than the receiver expects.
pub fn another_message_is_a_mismatch(world: &World) {
    let receives: [fn(&ProcessGroup) -> Result<()>; 3] = [
        |group| group.recv(&mut [0u32; 5], 0, 1),
        |group| group.recv(&mut [0f32; 4], 0, 1),
        |group| group.recv_async(vec![0u32; 0], 0, 1).and_then(Work::wait).map(drop),
    ];
    at_once(&receives, |&receive| {
        let causes = world.run(2, move |group| {
            let outcome = if group.rank() == 0 { group.send(&[7u32; 4], 1, 1) } else { receive(&group) };
            let error = failed(&group, outcome);
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            cause(&group)
        });
        let Cause::Mismatch { left, right, .. } = &causes[0] else { panic!("{}", causes[0]) };
        let words = causes[0].to_string();
        assert!(words.starts_with("ranks disagree on the message with tag 1: rank 0 "), "{words}");
        assert_eq!((left.1.op, right.1.op), (OpKind::Send, OpKind::Recv));
        assert!([left, right].iter().all(|(_, signature)| signature.site.file.ends_with("mismatch.rs")));
        assert_eq!(causes[0], causes[1]);
    });
}

/// Counts of an all_to_all_v that don't meet: each rank has its own, so the culprit cannot be told, but nobody hangs.
pub fn counts_that_do_not_meet_are_noticed(world: &World) {
    let causes = world.run(3, |group| {
        let send = vec![2usize; 3];
        let mut recv = vec![2usize; 3];
        if group.rank() == 2 {
            recv[0] = 1;
        }
        let mut output = vec![0u8; recv.iter().sum()];
        let outcome = group.all_to_all_v(&[0u8; 6], &send, &mut output, &recv);
        let error = failed(&group, outcome);
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
        cause(&group)
    });
    assert!(causes.iter().all(|c| *c == causes[0]), "{causes:?}");
}
