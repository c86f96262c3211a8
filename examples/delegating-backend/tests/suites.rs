//! What is delegated passes the suite, and is counted.

use delegating_backend::Counters;
use phalanx::ReduceOp;
use phalanx::error::OpKind;
use phalanx_testkit::World;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

mod group {
    phalanx_testkit::group_conformance!(super::world());
}

fn counters() -> &'static Arc<Counters> {
    static COUNTERS: OnceLock<Arc<Counters>> = OnceLock::new();
    COUNTERS.get_or_init(|| delegating_backend::register("auto", Duration::ZERO).expect("the name is free"))
}

/// Ranks of one host, which share memory, counted.
fn world() -> World {
    counters();
    World::named("counting")
}

#[test]
fn calls_and_bytes_are_counted() {
    let before = counters().of(OpKind::Broadcast);
    world().run(2, |group| {
        assert!(group.describe().ends_with(", counted"), "{}", group.describe());
        group.broadcast(&mut [1.0f32; 1000], 1).expect("the group works");
        group.all_reduce(&mut [1.0f32], ReduceOp::Sum).expect("the group works");
        group.split(Some(0), 0).expect("the group works").expect("a new group").barrier().expect("it works");
    });
    let after = counters().of(OpKind::Broadcast);
    // Other tests of this process call it meanwhile.
    assert!(after.calls >= before.calls + 2 && after.bytes >= before.bytes + 8000, "{before:?} {after:?}");
    assert!(after.slow == after.calls, "each is slow where none may take any time");
    assert!(counters().to_string().contains("broadcast: "), "{}", counters());
}
