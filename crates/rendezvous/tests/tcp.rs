//! The store over TCP where it differs from the others: clients, strangers, beginning and end.

use phalanx_core::{Deadline, Error};
use phalanx_rendezvous::{Store, TcpStore, TcpStoreServer};
use phalanx_testkit::free_port;
use phalanx_transport::Secret;
use phalanx_transport::handshake::Hello;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

fn within(limit: Duration) -> Deadline {
    Deadline::after(Instant::now(), limit)
}

fn soon() -> Deadline {
    within(Duration::from_secs(60))
}

fn start() -> (TcpStoreServer, Secret) {
    let secret = Secret::generate().unwrap();
    (TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret).unwrap(), secret)
}

fn connect(addr: SocketAddr, secret: &Secret) -> TcpStore {
    TcpStore::connect(&addr.to_string(), secret, &soon()).unwrap()
}

/// Where nobody listens.
fn free_addr() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// As many descriptors as this process may have.
fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[test]
fn a_thousand_clients_meet() {
    // A client takes two descriptors and the server one for it; some systems grant only a few hundred.
    let (server, secret) = start();
    let clients = 1000.min((descriptor_limit().min(1 << 20) as usize).saturating_sub(300) / 3);
    let addr = server.addr();
    thread::scope(|scope| {
        for rank in 0..clients {
            let secret = &secret;
            let client = move || {
                let store = connect(addr, secret);
                store.set(&format!("rank {rank}"), &rank.to_le_bytes()).unwrap();
                store.add("here", 1).unwrap();
                assert_eq!(store.get("go", &soon()).unwrap(), b"!");
                let next = (rank + 1) % clients;
                assert_eq!(store.try_get(&format!("rank {next}")).unwrap().unwrap(), next.to_le_bytes());
            };
            thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, client).unwrap();
        }
        let store = connect(addr, &secret);
        let keys: Vec<String> = (0..clients).map(|rank| format!("rank {rank}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(store.get_all(&keys, &soon()).unwrap().len(), clients);
        while store.add("here", 0).unwrap() < clients as i64 {
            thread::sleep(Duration::from_millis(1));
        }
        store.set("go", b"!").unwrap();
    });
}

#[test]
fn the_server_may_start_last() {
    let (addr, secret) = (free_addr(), Secret::generate().unwrap());
    thread::scope(|scope| {
        let early = scope.spawn(|| connect(addr, &secret));
        thread::sleep(Duration::from_millis(100));
        assert!(!early.is_finished());
        let _server = TcpStoreServer::start(addr, &secret).unwrap();
        assert_eq!(early.join().unwrap().add("n", 1).unwrap(), 1);
    });
}

#[test]
fn nobody_there_is_an_error_at_the_deadline() {
    let (addr, secret) = (free_addr(), Secret::generate().unwrap());
    let limit = Duration::from_millis(100);
    match TcpStore::connect(&addr.to_string(), &secret, &within(limit)) {
        Err(Error::Rendezvous { what, waited, .. }) => {
            assert!(what.contains(&addr.to_string()), "{what}");
            assert!(waited >= limit);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_local_address_is_the_one_that_routes_to_the_server() {
    let (server, secret) = start();
    let local = connect(server.addr(), &secret).local_addr();
    assert!(local.ip().is_loopback() && local.port() != server.addr().port());
}

#[test]
fn strangers_get_nothing_and_hold_nobody_up() {
    let (server, secret) = start();
    let addr = server.addr();
    let mut strangers = Vec::new();
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for i in 0..60 {
        let mut stream = TcpStream::connect(addr).unwrap();
        let said: &[u8] = match i % 3 {
            0 => b"GET / HTTP/1.1\r\nHost: store\r\n\r\n",
            1 => &noise,
            _ => b"", // silence
        };
        let _ = stream.write_all(said);
        strangers.push(stream);
    }
    let store = connect(addr, &secret);
    store.set("key", b"value").unwrap();

    let other = Secret::generate().unwrap();
    let refused = TcpStore::connect(&addr.to_string(), &other, &within(Duration::from_millis(50)));
    assert!(matches!(refused, Err(Error::Rendezvous { .. })), "{refused:?}");

    // Those that spoke were dropped; what they were told first, if anything, is the same for everybody.
    for (i, mut stream) in strangers.into_iter().enumerate().filter(|(i, _)| i % 3 < 2) {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut told = Vec::new();
        let end = stream.read_to_end(&mut told).map_err(|e| e.kind());
        assert!(matches!(end, Ok(_) | Err(std::io::ErrorKind::ConnectionReset)), "stranger {i}: {end:?}");
        assert!(told.len() <= 64, "stranger {i} was told {} bytes", told.len());
    }
    assert_eq!(store.get("key", &soon()).unwrap(), b"value");
}

#[test]
fn a_client_that_sends_garbage_harms_only_itself() {
    let (server, secret) = start();
    let store = connect(server.addr(), &secret);
    let addr = server.addr().to_string();
    let rude = phalanx_transport::open_session(&addr, &secret, &Hello::store(), &soon()).unwrap();
    for message in [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", &[1; 100], &[0; 100_000]] {
        rude.send(message).unwrap();
    }
    store.set("key", b"value").unwrap();
    assert_eq!(store.get("key", &soon()).unwrap(), b"value");
}

#[test]
fn when_the_server_ends_every_wait_ends() {
    let (server, secret) = start();
    let addr = server.addr();
    let store = connect(addr, &secret);
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| store.get("never", &soon()))).collect();
        thread::sleep(Duration::from_millis(50));
        drop(server);
        for wait in waits {
            let error = wait.join().unwrap().unwrap_err();
            assert!(matches!(&error, Error::Io { .. }), "{error}");
        }
    });
    assert!(matches!(store.set("key", b""), Err(Error::Io { .. })));
    // Its port is free again.
    TcpStoreServer::start(addr, &secret).unwrap();
}

#[test]
fn a_taken_port_is_an_error_that_names_it() {
    let (server, secret) = start();
    let error = TcpStoreServer::start(server.addr(), &secret).unwrap_err();
    assert!(
        matches!(&error, Error::Io { doing, .. } if doing.contains(&server.addr().to_string())),
        "{error}"
    );
}
