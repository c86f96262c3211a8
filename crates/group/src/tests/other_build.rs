//! Ranks of different builds: they do not come together, and all hear what differs.

use crate::bootstrap::assembly::meet_all;
use crate::bootstrap::build::{Build, PRETENDED};
use crate::bootstrap::regroup::Assignment;
use crate::join;
use phalanx_core::{Deadline, Error};
use phalanx_rendezvous::{Config, StoreLocation, TcpStoreServer};
use phalanx_transport::Secret;
use phalanx_transport::handshake::VERSION;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// Bytes of the first message of either side of a handshake, and where the version stands in it.
const GREETING_LEN: usize = 40;
const VERSION_AT: usize = 4;

fn config(rank: usize, store: SocketAddr, secret: &Secret, more: (&str, &str)) -> Config {
    let config = Config::from_lookup(|name| match name {
        _ if name == more.0 => Some(more.1.to_owned()),
        "PHALANX_RANK" => Some(rank.to_string()),
        "PHALANX_WORLD_SIZE" => Some("2".into()),
        "PHALANX_STORE" => Some(format!("tcp://{store}")),
        "PHALANX_SECRET" => Some(secret.to_hex()),
        _ => None,
    });
    config.unwrap()
}

/// What comes of two ranks of which rank 1 says that it is of another build.
fn met(other: &Build) -> [Error; 2] {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start((Ipv4Addr::LOCALHOST, 0).into(), &secret).unwrap();
    let rank = |rank: usize| {
        if rank == 1 {
            PRETENDED.set(Some(other.clone()));
        }
        let config = config(rank, server.addr(), &secret, ("", ""));
        let deadline = Deadline::after(Instant::now(), config.init_timeout);
        let open = config.open_store(&deadline).unwrap();
        let assignment = Assignment::new(0, rank, vec![0, 1]);
        meet_all(&config, &secret, &assignment, &open, &deadline)
            .map(drop)
            .expect_err("they are of different builds")
    };
    std::thread::scope(|scope| {
        let ranks = [0, 1].map(|r| scope.spawn(move || rank(r)));
        ranks.map(|rank| rank.join().unwrap())
    })
}

#[test]
fn what_differs_is_named_to_both() {
    let here = Build::here();
    let others = [
        ("build", Build { name: "phalanx 9.9.9 (schedules 12345678)".into(), ..here.clone() }),
        ("wire version", Build { protocol: VERSION + 1, ..here.clone() }),
        ("byte order", Build { is_little_endian: !here.is_little_endian, ..here.clone() }),
    ];
    for (what, other) in others {
        let value = |build: &Build| {
            let settings = build.clone().settings();
            settings.into_iter().find(|(name, _)| *name == what).expect("it is a setting").1
        };
        let (ours, theirs) = (format!("{} at rank 0", value(&here)), format!("{} at rank 1", value(&other)));
        for error in met(&other) {
            assert!(matches!(error, Error::Rendezvous { .. }), "{error:?}");
            let words = error.to_string();
            let named = words.contains(&format!("{what} differs: "));
            assert!(named && words.contains(&ours) && words.contains(&theirs), "{words}");
            assert_eq!(words.matches("differs").count(), 1, "{words}");
        }
    }
}

fn version_in(greeting: &[u8; GREETING_LEN]) -> u16 {
    u16::from_le_bytes([greeting[VERSION_AT], greeting[VERSION_AT + 1]])
}

/// A process that speaks the next version: both sides name both, before any of them has proved anything.
#[test]
fn another_wire_version_is_named_to_both() {
    let secret = Secret::generate().unwrap();
    // Rank 0 is the other one.
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = other.local_addr().unwrap();
    let answer = std::thread::spawn(move || {
        let (mut stream, mut greeting) = (other.accept().unwrap().0, [0; GREETING_LEN]);
        stream.read_exact(&mut greeting).unwrap();
        greeting[VERSION_AT] += 1;
        stream.write_all(&greeting).unwrap();
        // Until it has read that and gone.
        let _ = stream.read(&mut [0]);
    });
    let error = join(&config(1, addr, &secret, ("", ""))).map(drop).unwrap_err().to_string();
    let both = format!("it speaks wire version {}, this build speaks {VERSION}", VERSION + 1);
    assert!(error.contains(&both), "{error}");
    answer.join().unwrap();
    // Rank 1 is.
    let free = free_addr();
    let mut zero = config(0, free, &secret, ("PHALANX_INIT_TIMEOUT_S", "3"));
    zero.store = StoreLocation::Tcp { host: free.ip().to_string(), port: free.port(), host_it: true };
    let zero = std::thread::spawn(move || join(&zero).map(drop).unwrap_err().to_string());
    let (mut stream, mut greeting) = (connected(free, || !zero.is_finished()), [0; GREETING_LEN]);
    greeting[..VERSION_AT].copy_from_slice(b"PHLX");
    greeting[VERSION_AT..VERSION_AT + 3].copy_from_slice(&[VERSION as u8 + 1, 0, 1]);
    stream.write_all(&greeting).unwrap();
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(version_in(&greeting), VERSION);
    drop(stream);
    let error = zero.join().unwrap();
    assert!(error.contains(&both) && error.contains("called from 127.0.0.1"), "{error}");
}

/// Where nobody listens, and from where the system lets nobody call.
fn free_addr() -> SocketAddr {
    let mut ports = (0..1000u16).map(|number| 20_000 + (RandomState::new().hash_one(number) % 12_000) as u16);
    let listener = ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    listener.expect("one of a thousand ports is free").local_addr().unwrap()
}

fn connected(addr: SocketAddr, awaits: impl Fn() -> bool) -> TcpStream {
    loop {
        match TcpStream::connect(addr) {
            Ok(stream) => return stream,
            Err(error) => assert!(awaits(), "nobody listens at {addr}: {error}"),
        }
        std::thread::yield_now();
    }
}
