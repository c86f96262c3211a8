//! What somebody on the way between two ranks sees, and what comes of it when they meddle.
//!
//! The ranks reach each other through relays that keep every byte and may change those from rank 1 to rank 0.

use crate::ProcessGroup;
use crate::bootstrap::assembly::meet_all;
use crate::bootstrap::regroup::Assignment;
use crate::control::address_book::AddressBook;
use crate::group::backend::BackendFactory;
use crate::host::BackendChoice;
use crate::host::choose_backend::HostBackends;
use phalanx_algo::Selector;
use phalanx_core::{CallSite, Deadline, Error, Loss, OpKind, Result, Signature, WORLD};
use phalanx_rendezvous::{Config, TcpStoreServer};
use phalanx_transport::Secret;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

/// The value of every gradient: four bytes that nothing else has.
const GRADIENT: f32 = 1.234_567_9;
/// Several records of the wire.
const LEN: usize = 50_000;
/// Bytes of a sealed connection's handshake: what the dialer says, and what the acceptor does.
const HANDSHAKE: (usize, usize) = (140, 128);

/// What a relay does to the records from rank 1, and no other bytes.
type Meddle = fn(Vec<Vec<u8>>) -> Vec<u8>;

#[derive(Clone)]
struct Tap {
    /// Of each connection in each direction: what goes the other way must not part what belongs together.
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    meddle: Option<Meddle>,
}

impl Tap {
    /// A relay to `target`. Rank 1's bytes flow to it if it `dials`, else from it. Its threads end with their connections.
    fn relay(&self, target: SocketAddr, dials: bool) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let tap = self.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(target).unwrap());
                let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (there, back) = (tap.clone(), tap.clone());
                std::thread::spawn(move || there.pump(near, far, HANDSHAKE.0, dials));
                std::thread::spawn(move || back.pump(far2, near2, HANDSHAKE.1, !dials));
            }
        });
        addr
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, handshake: usize, of_rank_1: bool) {
        let mut buffer = [0; 1 << 16];
        let (mut passed, mut held) = (0, Vec::new());
        let stream = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(Vec::new());
            seen.len() - 1
        };
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            self.seen.lock().unwrap()[stream].extend_from_slice(&buffer[..n]);
            match self.meddle {
                Some(meddle) if of_rank_1 => {
                    let free = n.min(handshake - passed);
                    passed += free;
                    held.extend_from_slice(&buffer[free..n]);
                    // Three whole records: enough to do anything with.
                    let records = whole_records(&held);
                    let more = if records.len() < 3 { Vec::new() } else { meddle(records) };
                    let _ = to.write_all(&buffer[..free]).and_then(|()| to.write_all(&more));
                    if !more.is_empty() {
                        break;
                    }
                }
                _ => drop(to.write_all(&buffer[..n])),
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        // What is cut is cut in one direction: rank 1 goes on sending, and notices nothing.
        while self.meddle.is_some() && of_rank_1 && matches!(from.read(&mut buffer), Ok(1..)) {}
        let _ = from.shutdown(Shutdown::Read);
    }
}

fn whole_records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some(head) = bytes.first_chunk::<2>()
        && let Some((record, rest)) = bytes.split_at_checked(2 + usize::from(u16::from_le_bytes(*head)))
    {
        records.push(record.to_vec());
        bytes = rest;
    }
    records
}

/// Rank 1 sends gradients to rank 0 over a relay; returns what rank 0 says of it, and all that the relays saw.
fn tapped(encrypt: bool, meddle: Option<Meddle>) -> (Result<()>, Vec<Vec<u8>>) {
    let secret = Secret::generate().unwrap();
    let secret = if encrypt { secret.encrypting() } else { secret };
    let server = TcpStoreServer::start((Ipv4Addr::LOCALHOST, 0).into(), &secret).unwrap();
    let tap = Tap { seen: Arc::default(), meddle };
    let done = Barrier::new(2);
    let rank = |rank: usize| {
        let config = Config::from_lookup(|name| match name {
            "PHALANX_RANK" => Some(rank.to_string()),
            "PHALANX_WORLD_SIZE" => Some("2".into()),
            "PHALANX_STORE" => Some(format!("tcp://{}", server.addr())),
            "PHALANX_SECRET" => Some(secret.to_hex()),
            "PHALANX_ENCRYPT" => Some(u8::from(encrypt).to_string()),
            "PHALANX_BACKEND" => Some("tcp".into()),
            _ => None,
        });
        let config = config.unwrap();
        let deadline = Deadline::after(Instant::now(), config.init_timeout);
        let open = config.open_store(&deadline).unwrap();
        let assignment = Assignment::new(0, rank, vec![0, 1]);
        let mut job = meet_all(&config, &secret, &assignment, &open, &deadline).unwrap();
        let mut members = job.members.members().to_vec();
        let peer = &mut members[1 - rank].addr;
        *peer = tap.relay(*peer, rank == 1);
        job.members = AddressBook::new(members).into();
        let selector = Arc::new(Selector::forced_from("").unwrap());
        let choice = BackendChoice::Links;
        let backends = HostBackends::new(Arc::new(job), choice, selector);
        let backend =
            backends.create(WORLD, vec![0, 1], &Signature::bare(OpKind::Init, CallSite::caller()), &deadline);
        let group = ProcessGroup::new(backend.unwrap());
        let mut buffer = vec![0.0; LEN];
        let outcome = match rank {
            0 => group.recv(&mut buffer, 1, 0),
            _ => group.send(&[GRADIENT; LEN], 0, 0),
        };
        done.wait();
        assert!(rank == 1 || outcome.is_err() || buffer == [GRADIENT; LEN], "wrong data, and no error");
        outcome
    };
    let outcome = std::thread::scope(|scope| {
        let (zero, one) = (scope.spawn(|| rank(0)), scope.spawn(|| rank(1)));
        // It may all be in the relay before anybody notices anything.
        let _ = one.join().unwrap();
        zero.join().unwrap()
    });
    let seen = tap.seen.lock().unwrap().clone();
    (outcome, seen)
}

#[test]
fn encryption_hides_the_gradients() {
    let shown = |encrypt| {
        let (outcome, seen) = tapped(encrypt, None);
        outcome.unwrap();
        let bytes = seen.iter().map(Vec::len).sum::<usize>();
        assert!(bytes > LEN * size_of::<f32>(), "all went over the relays: {bytes}");
        let windows = seen.iter().flat_map(|stream| stream.windows(4));
        windows.filter(|bytes| **bytes == GRADIENT.to_ne_bytes()).count()
    };
    assert!(shown(false) >= LEN);
    assert!(shown(true) < 3, "four bytes may be alike by chance");
}

#[test]
fn who_meddles_is_noticed() {
    let meddles: [(&str, Meddle); 4] = [
        ("flips a bit", |mut records| {
            records[1][100] ^= 4;
            records.concat()
        }),
        ("repeats", |records| [&records[0][..], &records[0], &records[1]].concat()),
        ("reorders", |records| [&records[1][..], &records[0]].concat()),
        ("leaves out", |records| [&records[0][..], &records[2]].concat()),
    ];
    for (does, meddle) in meddles {
        let error = tapped(true, Some(meddle)).0.unwrap_err();
        let Error::Protocol { peer, what, .. } = &error else { panic!("{does}: {error}") };
        assert!(peer.rank == 1 && what.contains("did not authenticate"), "{does}: {error}");
    }
}

#[test]
fn who_cuts_a_record_short_has_cut_the_connection() {
    let cut: Meddle = |records| [&records[0], &records[1][..100]].concat();
    let error = tapped(true, Some(cut)).0.unwrap_err();
    assert!(matches!(&error, Error::PeerLost { peer, how: Loss::Died, .. } if peer.rank == 1), "{error}");
}
