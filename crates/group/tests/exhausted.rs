//! What could not be begun for want of descriptors leaves no trace. In a process of its own: the limit is the process's.
#![cfg(unix)]

use phalanx_group::{Error, ReduceOp, threads};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn an_operation_that_could_not_be_begun_takes_no_number() {
    let groups: [_; 2] = threads(2).try_into().unwrap();
    let before = getrlimit(Resource::Nofile);
    // Descriptors below 3 are taken, so no other can be made.
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    let refused = groups[0].all_reduce_async(vec![1u32], ReduceOp::Sum).map(drop);
    let message = groups[0].send_async(vec![1u32], 1, 7).map(drop);
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    assert!(matches!(message, Err(Error::Io { .. })), "{message:?}");
    std::thread::scope(|scope| {
        for (rank, group) in groups.iter().enumerate() {
            scope.spawn(move || {
                let sum = group.all_reduce_async(vec![1u32], ReduceOp::Sum).unwrap().wait().unwrap();
                assert_eq!(sum, [2]);
                let mut received = [0u32];
                match rank {
                    0 => group.send(&[5u32], 1, 7).unwrap(),
                    _ => {
                        group.recv(&mut received, 0, 7).unwrap();
                        assert_eq!(received, [5]);
                    }
                }
            });
        }
    });
}
