//! Memory passed between processes of one host, and callers that pass something else.

#![cfg(target_os = "linux")]

mod unix;

use phalanx_core::{Deadline, Error, GroupId, WORLD};
use phalanx_transport::handshake::{Hello, Purpose, Refusal, Status};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::{Secret, open_session};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use unix::{connect, file, ranks, same_file, shake, within};

fn hello(purpose: Purpose, rank: u32) -> Hello {
    Hello { purpose, rank, called: 0, world_size: 3, group: WORLD }
}

#[test]
fn what_is_given_is_the_same_memory() {
    let (_, ranks) = ranks(3);
    let name = ranks[1].local_name().unwrap();
    let given: Vec<_> = (0..3).map(|seq| (seq, file(&[seq as u8; 16]))).collect();
    // The last first, so that they must be told apart by their numbers; half of them before they are asked for.
    let give = |seq: usize| ranks[0].give(WORLD, seq as u64, 1, name, given[seq].1.clone(), within(20));
    let early = [give(2), give(1)];
    early.into_iter().for_each(|given| given.wait(&within(20), || false).unwrap());
    let taken: Vec<_> = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            (0..3).map(|seq| ranks[1].take(WORLD, seq, 0, &within(20), || false).unwrap()).collect()
        });
        give(0).wait(&within(20), || false).unwrap();
        receiver.join().unwrap()
    });
    for ((seq, ours), theirs) in given.into_iter().zip(taken) {
        assert!(same_file(&ours, &theirs));
        let (ours, theirs) = (File::from(ours.try_clone().unwrap()), File::from(theirs));
        theirs.write_all_at(b"written there", 2).unwrap();
        let mut read = [0; 16];
        ours.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((read[0], &read[2..15]), (seq as u8, &b"written there"[..]));
        let flags = rustix::io::fcntl_getfd(&theirs).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "a child process would inherit it");
    }
}

#[test]
fn groups_and_senders_are_told_apart() {
    let (_, ranks) = ranks(3);
    let name = ranks[2].local_name().unwrap();
    let files: Vec<_> = (0..3).map(|i| file(&[i])).collect();
    let offers = [(0, WORLD), (1, WORLD), (0, GroupId(7))];
    for (&(from, group), file) in offers.iter().zip(&files) {
        ranks[from].give(group, 1, 2, name, file.clone(), within(20)).wait(&within(20), || false).unwrap();
    }
    for (&(from, group), file) in offers.iter().zip(&files).rev() {
        let taken = ranks[2].take(group, 1, from, &within(20), || false).unwrap();
        assert!(same_file(file, &taken), "from {from} for {group}");
    }
}

#[test]
fn a_second_of_the_same_number_is_not_taken() {
    let (_, ranks) = ranks(2);
    let give = || ranks[0].give(WORLD, 1, 1, ranks[1].local_name().unwrap(), file(b"x"), within(20));
    give().wait(&within(20), || false).unwrap();
    let why = give().wait(&within(20), || false).unwrap_err();
    assert!(why.to_string().contains("did not take"), "{why}");
}

#[test]
fn nobody_waits_for_ever() {
    let (_, mut ranks) = ranks(2);
    let soon = Deadline::after(Instant::now(), Duration::from_millis(20));
    let error = ranks[0].take(WORLD, 1, 1, &soon, || false).unwrap_err();
    assert!(matches!(error, Error::Rendezvous { rank: 0, world_size: 2, .. }));
    assert!(error.to_string().contains("rank 1 was to share memory for world"), "{error}");
    let error = ranks[0].take(WORLD, 1, 1, &within(3600), || true).unwrap_err();
    assert!(error.to_string().contains("stopped"), "{error}");
    // What comes too late for those who waited is not taken by mistake.
    let late = ranks[1].give(WORLD, 1, 0, ranks[0].local_name().unwrap(), file(b"x"), within(20));
    assert!(late.wait(&within(20), || false).is_err());

    let dead = ranks.pop().unwrap();
    let name = dead.local_name().unwrap().to_owned();
    drop(dead);
    let given = ranks[0].give(WORLD, 2, 1, &name, file(b"x"), within(3600));
    let why = given.wait(&within(3600), || false).unwrap_err();
    assert!(why.to_string().contains("refused"), "{why}");
}

#[test]
fn strangers_are_not_let_in() {
    let (secret, ranks) = ranks(2);
    let name = ranks[0].local_name().unwrap();
    let strangers: Vec<_> = (0..600)
        .map(|i| {
            let mut stream = connect(name);
            match i % 4 {
                0 => drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
                1 => drop(stream.write_all(&[i as u8; 200])),
                2 => drop(stream.write_all(b"PHLX\x02\x00\x04\x00 and then nothing")),
                _ => {} // silence
            }
            stream
        })
        .collect();
    let wrong = Secret::generate().unwrap();
    assert_eq!(shake(&mut connect(name), &wrong, hello(Purpose::Memory, 1)), None, "closed without a word");
    let memory = file(b"from a friend");
    ranks[1].give(WORLD, 1, 0, name, memory.clone(), within(20)).wait(&within(20), || false).unwrap();
    assert!(same_file(&memory, &ranks[0].take(WORLD, 1, 1, &within(20), || false).unwrap()));
    for (i, mut stream) in strangers.into_iter().enumerate() {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "stranger {i} was answered: {end:?}");
    }
    drop(secret);
}

#[test]
fn each_door_serves_its_purpose() {
    let (secret, ranks) = ranks(3);
    let name = ranks[0].local_name().unwrap();
    let unwanted = Some(Err(Refusal::Status(Status::Unwanted)));
    for hello in [
        hello(Purpose::Store, 1),
        hello(Purpose::Control, 1),
        hello(Purpose::Data, 1),
        hello(Purpose::Memory, 0), // itself
        hello(Purpose::Memory, 3), // nobody
    ] {
        assert_eq!(shake(&mut connect(name), &secret, hello), unwanted, "{hello:?}");
    }
    let of_four = Hello { world_size: 4, ..hello(Purpose::Memory, 1) };
    let of_three = Some(Err(Refusal::Status(Status::OtherSize(3))));
    assert_eq!(shake(&mut connect(name), &secret, of_four), of_three);
    assert_eq!(shake(&mut connect(name), &secret, hello(Purpose::Memory, 1)), Some(Ok(())));
    let misled = Hello { called: 2, ..hello(Purpose::Memory, 1) };
    let refusal = Some(Err(Refusal::Status(Status::Misled)));
    assert_eq!(shake(&mut connect(name), &secret, misled), refusal);
    let addr = ranks[0].addr().to_string();
    let error = open_session(&addr, &secret, &hello(Purpose::Memory, 1), &within(20)).unwrap_err();
    assert!(error.to_string().contains(&Status::Unwanted.to_string()), "{error}");
}

#[test]
fn names_are_not_to_be_foreseen() {
    let (_, ranks) = ranks(2);
    let names: Vec<_> = ranks.iter().map(|r: &Exchange| r.local_name().unwrap()).collect();
    assert_ne!(names[0], names[1]);
    assert!(names[0].len() >= 32, "{names:?}");
}
