//! Whether the ranks of a new group add up right.
//!
//! Wrong sums don't show themselves: a model only learns worse. They come from memory that flips bits, libraries that don't fit
//! each other, links that change what they carry. So `init` adds up numbers whose sum is known, once.
//!
//! Groups made by `split` are not tested: their ranks, machines and kernels are those of the group of all ranks.

use crate::ProcessGroup;
use crate::group::call::HostCall;
use crate::group::request::{Buffers, Request};
use phalanx_core::{CallSite, DType, Deadline, Error, OpKind, ReduceOp, Result};
use std::time::{Duration, Instant};

/// Elements: enough for every part of a two-level operation, and a prime, so that vectors and shares have rests.
const LEN: usize = 4099;

/// Adds up, and compares. Collective.
///
/// # Errors
/// [`WrongSum`](Error::WrongSum) where the sum is wrong; the group is aborted then. Those of the operation.
#[track_caller]
pub(crate) fn run(group: &ProcessGroup, deadline: &Deadline) -> Result<()> {
    let begun = Instant::now();
    let (rank, world_size) = (group.rank(), group.world_size());
    let mut buffer: Vec<f32> = (0..LEN).map(|i| number(world_size, rank, i)).collect();
    let left = deadline.remaining(begun).max(Duration::from_millis(1));
    let buffers = Buffers::InPlace(bytemuck::cast_slice_mut::<_, u8>(&mut buffer));
    let request = Request::AllReduce { buffers, reduce: ReduceOp::Sum };
    let dtype = Some(DType::F32);
    let signature = group.signature_of(OpKind::AllReduce, dtype, &request, 0, CallSite::caller())?;
    group.backend.perform(HostCall::new(&signature, request, rank, world_size)?, left)?;
    let sums = sums(world_size);
    let wrong = |&i: &usize| buffer[i] != sums[i];
    let Some(at) = (0..LEN).find(wrong) else {
        tracing::debug!(rank, took = ?begun.elapsed(), "the ranks add up right");
        return Ok(());
    };
    let count = (at..LEN).filter(wrong).count();
    let algorithm = group.backend.algorithm(&signature).map(|name| format!(" ({name})")).unwrap_or_default();
    let what = format!(
        "over {}{algorithm} expected {} at element {at} of {LEN} and got {}; {count} elements are wrong",
        group.describe(),
        sums[at],
        buffer[at],
    );
    let error = Error::WrongSum { rank, world_size, what };
    tracing::error!(%error, "self-test");
    group.abort(&error.to_string());
    Err(error)
}

/// What rank `rank` adds at element `i`: another number for each of both, as if by chance, so that nothing that is left out, counted twice,
/// or put elsewhere can cancel out. Whole, and so small that every sum of them is exact, in whatever order; and no smaller than that,
/// so that few of their bits get lost in a sum.
fn number(world_size: usize, rank: usize, i: usize) -> f32 {
    let half = ((1 << 23) / world_size as u32).max(1);
    let mixed = (rank as u32).wrapping_mul(0x9e37_79b1) ^ (i as u32).wrapping_mul(0x85eb_ca77);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2c1b_3c6d);
    let mixed = (mixed ^ mixed >> 12).wrapping_mul(0x297a_2d39);
    (half + (mixed ^ mixed >> 15) % half) as f32
}

fn sums(world_size: usize) -> Vec<f32> {
    (0..LEN).map(|i| (0..world_size).map(|rank| number(world_size, rank, i)).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::corrupting::groups;
    use phalanx_core::Cause;

    /// What each rank says where rank 0 changes the byte `at` of what it sends.
    fn outcomes(at: Option<usize>, checked: bool) -> Vec<(Result<()>, Result<()>)> {
        let minute = Deadline::after(Instant::now(), Duration::from_secs(60));
        std::thread::scope(|scope| {
            let rank = |group: ProcessGroup| {
                scope.spawn(move || {
                    let tested = run(&group, &minute);
                    (tested, group.barrier())
                })
            };
            let ranks: Vec<_> = groups(2, at, checked).into_iter().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn whatever_is_lost_doubled_or_misplaced_changes_the_sums() {
        for world_size in 2..=64 {
            let sums = sums(world_size);
            let chunk = |i: usize| i * LEN / world_size..(i + 1) * LEN / world_size;
            let len = LEN / world_size;
            let differ = |left: &mut dyn Iterator<Item = f32>, right: &mut dyn Iterator<Item = f32>| {
                left.zip(right).any(|(left, right)| left != right)
            };
            for (one, other) in (0..world_size).flat_map(|a| (0..a).map(move |b| (a, b))) {
                let (first, second) = (&sums[chunk(one)][..len], &sums[chunk(other)][..len]);
                let misplaced = differ(&mut first.iter().copied(), &mut second.iter().copied());
                assert!(misplaced, "{world_size} ranks: chunk {one} may stand at {other}");
                // One rank's numbers instead of another's: in any chunk, and moved from chunk to chunk.
                let numbers =
                    |rank, part: usize| chunk(part).take(len).map(move |i| number(world_size, rank, i));
                for part in 0..world_size {
                    let doubled = differ(&mut numbers(one, part), &mut numbers(other, part));
                    assert!(doubled, "{world_size} ranks: {one} may count for {other} in chunk {part}");
                    let moved = differ(&mut numbers(part, one), &mut numbers(part, other));
                    assert!(moved, "{world_size} ranks: chunk {one} of rank {part} may stand at {other}");
                }
            }
        }
    }

    #[test]
    fn sums_of_thousands_are_exact() {
        for world_size in [2, 3, 64, 1000, 10_000] {
            for i in [0, 1, LEN - 1] {
                let numbers = (0..world_size).map(|rank| number(world_size, rank, i));
                let exact: u64 = numbers.clone().map(|number| number as u64).sum();
                assert!(exact <= 1 << 24, "{world_size} ranks: {exact}");
                assert_eq!(numbers.sum::<f32>() as u64, exact);
            }
        }
    }

    #[test]
    fn right_sums_are_no_news() {
        for (tested, later) in outcomes(None, false) {
            tested.unwrap();
            later.unwrap();
        }
    }

    #[test]
    fn a_wrong_sum_is_told_by_who_has_it_and_ends_the_group_everywhere() {
        let [first, second] = outcomes(Some(4000), false).try_into().unwrap();
        let Err(Error::WrongSum { rank: 1, world_size: 2, what }) = &second.0 else { panic!("{second:?}") };
        assert!(what.starts_with("over thread: 2 ranks (recursive_doubling) expected "), "{what}");
        assert!(what.contains(" at element ") && what.ends_with("; 1 elements are wrong"), "{what}");
        for later in [first.0.and(first.1), second.1] {
            let text = later.unwrap_err().to_string();
            assert!(text.contains("rank 1") && text.contains("computes wrong sums"), "{text}");
        }
    }

    #[test]
    fn with_checksums_the_same_corruption_never_becomes_a_sum() {
        for outcome in outcomes(Some(4000), true) {
            let error = outcome.0.and(outcome.1).unwrap_err();
            let cause = match &error {
                Error::Protocol { peer, what, .. } => (peer, what),
                Error::Poisoned { cause, .. } => match &**cause {
                    Cause::Protocol { peer, what } => (peer, what),
                    other => panic!("{other}"),
                },
                other => panic!("{other}"),
            };
            assert_eq!(cause.0.rank, 0, "{error}");
            assert!(cause.1.starts_with("a frame of operation #1 changed on its way"), "{error}");
        }
    }
}
