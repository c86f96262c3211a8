//! No descriptor is left over, whatever callers pass. Alone in its process, because it counts all of them.

#![cfg(target_os = "linux")]

mod unix;

use phalanx_core::WORLD;
use phalanx_transport::handshake::{Hello, Purpose};
use std::time::{Duration, Instant};
use unix::{connect, file, is_taken, pass, ranks, same_file, shake, within};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn only_what_is_taken_stays_open() {
    let before = descriptors();
    let (secret, ranks) = ranks(2);
    let name = ranks[0].local_name().unwrap();
    let memory = file(b"x");
    let hello = Hello { purpose: Purpose::Memory, rank: 1, called: 0, world_size: 2, group: WORLD };
    let welcome = || {
        let mut stream = connect(name);
        assert_eq!(shake(&mut stream, &secret, hello), Some(Ok(())));
        stream
    };
    let idle = descriptors();
    for round in 0..20u64 {
        // What a correct rank never passes.
        let number = (1000 + round).to_le_bytes();
        for (bytes, count) in [(&number[..], 0), (&number[..], 2), (&number[..], 3), (&number[..4], 1)] {
            let mut stream = welcome();
            pass(&stream, bytes, &memory, count);
            assert!(!is_taken(&mut stream), "{} bytes with {count} descriptors were taken", bytes.len());
        }
        drop(welcome());
        // More than was agreed: the first counts, the second is not looked at.
        let mut stream = welcome();
        pass(&stream, &(2000 + round).to_le_bytes(), &memory, 1);
        pass(&stream, &(3000 + round).to_le_bytes(), &memory, 1);
        assert!(is_taken(&mut stream));
        drop(ranks[0].take(WORLD, 2000 + round, 1, &within(20), || false).unwrap());
        // And what it does.
        ranks[1].give(WORLD, round, 0, name, memory.clone(), within(20)).wait(&within(20), || false).unwrap();
        let taken = ranks[0].take(WORLD, round, 1, &within(20), || false).unwrap();
        assert!(same_file(&memory, &taken));
    }
    assert_settles_at(idle);
    // Those that nobody took go with the exchange.
    for seq in 0..5 {
        ranks[1]
            .give(WORLD, 50 + seq, 0, name, memory.clone(), within(20))
            .wait(&within(20), || false)
            .unwrap();
    }
    assert_settles_at(idle + 5);
    drop((ranks, memory));
    assert_settles_at(before);
}

/// The endpoint's thread closes its ends a moment later.
fn assert_settles_at(count: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    while descriptors() != count {
        assert!(Instant::now() < until, "{} descriptors, {count} expected", descriptors());
        std::thread::sleep(Duration::from_millis(1));
    }
}
