//! A rank that has waited, and works again while something it began is in flight, is no part of a circle of ranks that wait for each other.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::Outcome;
use std::time::Duration;
use support::{job, role};

#[test]
#[ignore = "this is what the processes of the jobs run"]
fn rank() {
    if role().as_deref() != Some("works") {
        return;
    }
    let group = phalanx::init().unwrap();
    let mut one = [0u8];
    if group.rank() == 0 {
        let later = group.recv_async(vec![0u8], 1, 9).unwrap();
        let sooner = group.recv_async(vec![0u8], 1, 1).unwrap();
        sooner.wait().unwrap();
        // Work of the program's own. Rank 1 waits for what comes after it, and `later` for rank 1.
        std::thread::sleep(Duration::from_secs(3));
        group.send(&[2u8], 1, 2).unwrap();
        assert_eq!(later.wait().unwrap(), [9]);
    } else {
        // So long that rank 0 is known to wait.
        std::thread::sleep(Duration::from_secs(1));
        group.send(&[1u8], 0, 1).unwrap();
        group.recv(&mut one, 0, 2).unwrap();
        group.send(&[9u8], 0, 9).unwrap();
    }
    group.finalize().unwrap();
}

#[test]
fn a_rank_that_works_while_an_operation_is_in_flight_does_not_stand_still() {
    for backend in ["shm", "tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let (launch, output) = job("works", 2, folder.path());
        let outcome = launch.env("PHALANX_BACKEND", backend).run().unwrap();
        assert!(matches!(outcome, Outcome::Success), "{backend}: {outcome}\n{}", output.text());
    }
}
