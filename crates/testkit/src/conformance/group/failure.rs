//! Groups that failed, as their ranks see them.

use phalanx_core::{Cause, Error, Result};
use phalanx_group::ProcessGroup;

/// The error of a call, or of the next: a rank whose part was only to send may learn of the trouble there.
#[track_caller]
pub(super) fn failed(group: &ProcessGroup, outcome: Result<()>) -> Error {
    let error = outcome.and_then(|()| group.barrier()).expect_err("the group must fail");
    assert!(!error.group_is_usable(), "{error}");
    error
}

/// The cause that every later call gives.
#[track_caller]
pub(super) fn cause(group: &ProcessGroup) -> Cause {
    match group.barrier() {
        Err(Error::Poisoned { cause, .. }) => *cause,
        other => panic!("not poisoned: {other:?}"),
    }
}

/// Tries all cases at the same time: most of a failure is waiting.
pub(super) fn at_once<C: Sync>(cases: &[C], try_one: impl Fn(&C) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| try_one(case));
        }
    });
}
