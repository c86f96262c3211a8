//! Whether the ranks of a new group add up right.
//!
//! Wrong sums don't show themselves: a model only learns worse. They come from memory that flips bits, libraries that don't fit
//! each other, links that change what they carry. So `init` adds up numbers whose sum is known, once.
//!
//! Groups made by `split` are not tested: their ranks, machines and kernels are those of the group of all ranks.

use crate::ProcessGroup;
use crate::backend::Buffers;
use phalanx_core::{CallSite, Deadline, Error, ReduceOp, Result};
use std::time::{Duration, Instant};

/// Elements: enough for every part of a two-level operation, and a prime, so that vectors and shares have rests.
const LEN: usize = 4099;
/// Numbers repeat after so many elements.
const PERIOD: usize = 8;

/// Adds up, and compares. Collective.
///
/// # Errors
/// [`WrongSum`](Error::WrongSum) where the sum is wrong; the group is aborted then. Those of the operation.
#[track_caller]
pub(crate) fn run(group: &ProcessGroup, deadline: &Deadline) -> Result<()> {
    let begun = Instant::now();
    let call = group.all_reduce_call::<f32>(LEN, ReduceOp::Sum, CallSite::caller())?;
    let mut buffer: Vec<f32> = (0..LEN).map(|i| number(group.rank(), i)).collect();
    let left = deadline.remaining(begun).max(Duration::from_millis(1));
    group.backend.perform(&call, Buffers::InPlace(bytemuck::cast_slice_mut(&mut buffer)), left)?;
    let sums: [f32; PERIOD] =
        std::array::from_fn(|i| (0..group.world_size()).map(|rank| number(rank, i)).sum());
    let wrong = |&i: &usize| buffer[i] != sums[i % PERIOD];
    let Some(at) = (0..LEN).find(wrong) else {
        tracing::debug!(rank = group.rank(), took = ?begun.elapsed(), "the ranks add up right");
        return Ok(());
    };
    let count = (at..LEN).filter(wrong).count();
    let algorithm = group.backend.algorithm(&call).map(|name| format!(" ({name})")).unwrap_or_default();
    let what = format!(
        "over {}{algorithm} expected {} at element {at} of {LEN} and got {}; {count} elements are wrong",
        group.describe(),
        sums[at % PERIOD],
        buffer[at],
    );
    let error = Error::WrongSum { rank: group.rank(), world_size: group.world_size(), what };
    tracing::error!(%error, "self-test");
    group.abort(&error.to_string());
    Err(error)
}

/// Small and whole, so that every sum of them is exact, in whatever order.
fn number(rank: usize, i: usize) -> f32 {
    ((rank + i) % PERIOD) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corrupting::groups;
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
