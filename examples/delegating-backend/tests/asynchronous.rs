//! Calls that nobody waits for are counted when they are over. A program of its own: in another, other tests would be counted too.

use phalanx::ReduceOp;
use phalanx::error::OpKind;
use phalanx_testkit::World;
use std::sync::Barrier;
use std::time::Duration;

const LATE: Duration = Duration::from_millis(100);

#[test]
fn asynchronous_calls_are_counted_when_they_are_over() {
    let counters = delegating_backend::register("auto", LATE).expect("the name is free");
    let (theirs, rank_1_comes) = (counters.clone(), Barrier::new(2));
    let before = World::named("counting").run(2, move |group| {
        // The ranks have tried a sum when they came together.
        group.barrier().expect("the group works");
        if group.rank() == 1 {
            rank_1_comes.wait();
        }
        let before = theirs.of(OpKind::AllReduce);
        let sum = group.all_reduce_async(vec![1.0f32; 3], ReduceOp::Sum).expect("the group works");
        if group.rank() == 0 {
            std::thread::sleep(LATE);
            assert_eq!(theirs.of(OpKind::AllReduce), before, "it was counted before it was over");
            rank_1_comes.wait();
        }
        assert_eq!(sum.wait().expect("the group works"), [2.0; 3]);
        let message = match group.rank() {
            0 => group.recv_async(vec![0u8; 5], 1, 0).expect("the group works"),
            _ => group.send_async(vec![7; 5], 0, 0).expect("the group works"),
        };
        assert_eq!(message.wait().expect("the group works"), [7; 5]);
        before
    });
    let (before, after) = (before[0], counters.of(OpKind::AllReduce));
    assert_eq!((after.calls - before.calls, after.bytes - before.bytes), (2, 24));
    // Of rank 0, which waited for rank 1.
    assert!(after.time - before.time >= LATE && after.slow > before.slow, "{before:?} {after:?}");
    let received = counters.of(OpKind::Recv);
    assert_eq!((received.calls, received.bytes), (1, 5), "{received:?}");
}
