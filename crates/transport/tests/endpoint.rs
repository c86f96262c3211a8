//! The endpoint among friends and strangers, over real sockets.

use phalanx_core::{Deadline, Error, WORLD};
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::{
    Admission, Direction, Endpoint, Outbox, Secret, Service, Session, SessionId, Transport, Wait,
    open_session,
};
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Echoes messages; admits the ranks 0–9.
struct Echo;

impl Service for Echo {
    fn admit(&mut self, hello: &Hello) -> Admission {
        if hello.rank < 10 { Admission::Serve } else { Admission::Refuse(Status::Taken) }
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        outbox.send(session, message.to_vec());
    }

    fn closed(&mut self, _session: SessionId, _outbox: &mut Outbox) {}
}

fn local() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn hello(rank: u32) -> Hello {
    Hello { purpose: Purpose::Control, rank, called: 0, world_size: 10, group: WORLD }
}

fn within(seconds: u64) -> Deadline {
    Deadline::after(Instant::now(), Duration::from_secs(seconds))
}

fn echoed(session: &mut Session, message: &[u8]) -> bool {
    session.send(message).expect("the session is up");
    session.recv(&within(20)).expect("the session is up").as_deref() == Some(message)
}

#[test]
fn friends_are_served() {
    let secret = Secret::generate().unwrap();
    serve_friends(secret.clone());
    serve_friends(secret.encrypting());
}

fn serve_friends(secret: Secret) {
    let event_loop = Endpoint::start(local(), secret.clone(), Echo).unwrap();
    let mut sessions: Vec<_> = (0..10)
        .map(|r| open_session(&event_loop.addr().to_string(), &secret, &hello(r), &within(20)).unwrap())
        .collect();
    let long: Vec<u8> = (0..3_000_000).map(|i| i as u8).collect();
    for session in &mut sessions {
        assert!(echoed(session, b"") && echoed(session, b"hello"));
    }
    assert!(echoed(&mut sessions[3], &long));
    drop(event_loop);
    assert!(matches!(sessions[0].recv(&within(20)), Err(Error::Io { .. })));
}

#[test]
fn refusals_say_why() {
    let secret = Secret::generate().unwrap();
    let event_loop = Endpoint::start(local(), secret.clone(), Echo).unwrap();
    let addr = event_loop.addr().to_string();
    let refused = |secret: &Secret, rank, limit| {
        let deadline = Deadline::after(Instant::now(), limit);
        open_session(&addr, secret, &hello(rank), &deadline).unwrap_err().to_string()
    };
    let text = refused(&secret, 11, Duration::from_secs(20));
    assert!(text.contains("connected already"), "{text}");
    let text = refused(&secret.clone().encrypting(), 1, Duration::from_secs(20));
    assert!(text.contains("PHALANX_ENCRYPT must be the same"), "{text}");
    let text = refused(&Secret::generate().unwrap(), 1, Duration::from_secs(1));
    assert!(text.contains("another secret?"), "{text}");
    drop(event_loop);
    let text = refused(&secret, 1, Duration::from_millis(50));
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn a_server_that_never_answers_is_waited_for_until_the_deadline_and_no_longer() {
    let secret = Secret::generate().unwrap();
    // Connections stand in its queue.
    let mute = std::net::TcpListener::bind(local()).unwrap();
    let (limit, begun) = (Duration::from_millis(200), Instant::now());
    let deadline = Deadline::after(begun, limit);
    let error =
        open_session(&mute.local_addr().unwrap().to_string(), &secret, &hello(1), &deadline).unwrap_err();
    // A handshake alone may take five seconds.
    assert!(
        (limit..Duration::from_secs(4)).contains(&begun.elapsed()),
        "{error} after {:?}",
        begun.elapsed()
    );
}

#[test]
fn strangers_wait_outside_and_delay_nobody() {
    let secret = Secret::generate().unwrap();
    let event_loop = Endpoint::start(local(), secret.clone(), Echo).unwrap();
    let addr = event_loop.addr();
    let strangers: Vec<TcpStream> = (0..600)
        .map(|i| {
            let mut stream = TcpStream::connect(addr).unwrap();
            match i % 4 {
                0 => drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
                1 => drop(stream.write_all(&[i as u8; 200])),
                2 => drop(stream.write_all(b"PHLX\x02\x00\x02\x00 and then nothing")),
                _ => {} // silence
            }
            stream
        })
        .collect();
    let mut friend = open_session(&addr.to_string(), &secret, &hello(1), &within(20)).unwrap();
    assert!(echoed(&mut friend, b"still here"));
    for (i, mut stream) in strangers.into_iter().enumerate() {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "stranger {i} was answered: {end:?}");
    }
    assert!(echoed(&mut friend, b"and still"));
}

/// While it handles `wait`, another session has time to say its last word and close.
struct Slow {
    heard: std::sync::mpsc::Sender<String>,
    go_on: std::sync::mpsc::Receiver<()>,
}

impl Service for Slow {
    fn admit(&mut self, _hello: &Hello) -> Admission {
        Admission::Serve
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        self.heard.send(format!("{session}: {}", String::from_utf8_lossy(message))).unwrap();
        if message == b"wait" {
            self.go_on.recv().unwrap();
            // Of two writes to a closed connection the second fails.
            outbox.send(1, b"a".to_vec());
            outbox.send(1, b"b".to_vec());
        }
    }

    fn closed(&mut self, session: SessionId, _outbox: &mut Outbox) {
        self.heard.send(format!("{session} closed")).unwrap();
    }
}

#[test]
fn last_words_are_heard_although_the_speaker_listens_no_more() {
    let secret = Secret::generate().unwrap();
    let (heard, hears) = std::sync::mpsc::channel();
    let (go_on, waits) = std::sync::mpsc::channel();
    let event_loop = Endpoint::start(local(), secret.clone(), Slow { heard, go_on: waits }).unwrap();
    let open =
        |rank| open_session(&event_loop.addr().to_string(), &secret, &hello(rank), &within(20)).unwrap();
    let ((first, _), second) = (open(1).split(), open(2));
    second.send(b"wait").unwrap();
    let next = || hears.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(next(), "2: wait");
    first.send(b"farewell").unwrap();
    first.close();
    go_on.send(()).unwrap();
    assert_eq!([next(), next()], ["1: farewell", "1 closed"]);
}

/// Passes on what a client and the server at `to` say, but changes one bit of what the client says after its handshake.
fn meddler(to: SocketAddr) -> SocketAddr {
    let listener = std::net::TcpListener::bind(local()).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut client, mut server) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut back);
            back.shutdown(std::net::Shutdown::Both)
        });
        // Its opening and its proof.
        for len in [40, 100] {
            let mut message = vec![0; len];
            client.read_exact(&mut message).unwrap();
            server.write_all(&message).unwrap();
        }
        let mut record = [0; 100];
        let n = client.read(&mut record).unwrap();
        record[n / 2] ^= 1;
        server.write_all(&record[..n]).unwrap();
        let _ = std::io::copy(&mut client, &mut server);
    });
    addr
}

#[test]
fn a_session_ends_when_somebody_meddles_with_it() {
    let secret = Secret::generate().unwrap().encrypting();
    let event_loop = Endpoint::start(local(), secret.clone(), Echo).unwrap();
    let addr = meddler(event_loop.addr()).to_string();
    let mut session = open_session(&addr, &secret, &hello(1), &within(20)).unwrap();
    session.send(b"echo this").unwrap();
    let end = session.recv(&within(20));
    assert!(matches!(end, Err(Error::Io { .. })), "{end:?}");
}

/// A socket of the address `from` that is connected to `to`. Linux has all of 127/8.
#[cfg(target_os = "linux")]
fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketAddrV4, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(from.into(), 0)).unwrap();
    connect(&socket, &to).unwrap();
    socket.into()
}

#[cfg(target_os = "linux")]
#[test]
fn a_flood_of_one_address_pushes_itself_out() {
    use phalanx_transport::handshake::{Dialer, DialerStep};
    let secret = Secret::generate().unwrap();
    let event_loop = Endpoint::start(local(), secret.clone(), Echo).unwrap();
    // Far away: it says its first word now, and hears the answer when a thousand others have come.
    let mut honest = connect_from([127, 0, 0, 2], event_loop.addr());
    honest.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (mut dialer, mut message) = Dialer::new(secret.clone(), hello(1), [7; 32]);
    honest.write_all(&message).unwrap();
    let mut flood = std::collections::VecDeque::new();
    for _ in 0..1000 {
        let mut stranger = connect_from([127, 0, 0, 3], event_loop.addr());
        stranger.write_all(b"PHLX").unwrap();
        flood.push_back(stranger);
        if flood.len() > 300 {
            flood.pop_front();
        }
    }
    // And those who come in the middle of it come in too.
    let mut session = open_session(&event_loop.addr().to_string(), &secret, &hello(2), &within(20)).unwrap();
    assert!(echoed(&mut session, b"welcome"));
    loop {
        let mut answer = vec![0; dialer.wants()];
        honest.read_exact(&mut answer).expect("it was not pushed out");
        match dialer.handle(&answer).unwrap() {
            DialerStep::Send(proof) => message = proof,
            DialerStep::Done => break,
        }
        honest.write_all(&message).unwrap();
    }
}

/// Moves bytes until `want` have arrived, driving both ends.
fn exchange_bytes(from: &mut impl Transport, to: &mut impl Transport, peers: (usize, usize), bytes: &[u8]) {
    let deadline = within(20);
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < bytes.len() {
        assert!(!deadline.has_passed(Instant::now()), "{sent} sent, {} received", got.len());
        if sent < bytes.len() {
            sent += from.send(peers.1, &[IoSlice::new(&bytes[sent..])]).unwrap();
        }
        let mut part = [0; 4096];
        let n = to.recv(peers.0, &mut part).unwrap();
        got.extend_from_slice(&part[..n]);
        if n == 0 {
            let mut wait = Wait::new().unwrap();
            if !to.watch(peers.0, Direction::Recv, &mut wait) {
                wait.sleep(Duration::from_millis(1));
            }
        }
    }
    assert!(got == bytes);
}

#[test]
fn links_are_made_on_first_use_and_crossing_dials_become_one() {
    let plain = Secret::generate().unwrap();
    for round in 0..20 {
        let secret = if round % 2 == 0 { plain.clone() } else { plain.clone().encrypting() };
        let ends: Vec<Exchange> =
            (0..2).map(|r| Exchange::start(local(), secret.clone(), r, 2, None).unwrap()).collect();
        let addrs: Vec<SocketAddr> = ends.iter().map(Exchange::addr).collect();
        let mut transports: Vec<_> =
            ends.iter().map(|e| e.open(WORLD, vec![0, 1], addrs.clone(), Duration::from_secs(20))).collect();
        // Both dial at once: neither link stands yet.
        for (rank, transport) in transports.iter_mut().enumerate() {
            let _ = transport.send(1 - rank, &[IoSlice::new(&[])]).unwrap();
        }
        let (left, right) = transports.split_at_mut(1);
        exchange_bytes(&mut left[0], &mut right[0], (0, 1), &vec![round; 100_000]);
        exchange_bytes(&mut right[0], &mut left[0], (1, 0), b"and back");
    }
}

/// Calls to one rank come to another: what a rewritten packet does, or an address that has a new owner.
#[test]
fn another_rank_than_the_one_that_was_called_gives_no_link() {
    let plain = Secret::generate().unwrap();
    for secret in [plain.clone(), plain.encrypting()] {
        let ends: Vec<Exchange> =
            (0..3).map(|r| Exchange::start(local(), secret.clone(), r, 3, None).unwrap()).collect();
        let swapped = [1, 0, 2].map(|r: usize| ends[r].addr()).to_vec();
        let members = || vec![0, 1, 2];
        let mut caller = ends[2].open(WORLD, members(), swapped, Duration::from_secs(20));
        for called in 0..2 {
            let deadline = within(20);
            let fault = loop {
                match caller.send(called, &[IoSlice::new(b"for you alone")]) {
                    Ok(n) => assert_eq!(n, 0, "rank {} was taken for rank {called}", 1 - called),
                    Err(fault) => break fault.to_string(),
                }
                assert!(!deadline.has_passed(Instant::now()));
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(fault.contains("another rank of the job answers there"), "{fault}");
        }
        // And the two that were called by mistake have no link with the caller.
        for end in &ends[..2] {
            let mut end = end.open(WORLD, members(), vec![local(); 3], Duration::from_secs(20));
            assert!(!end.is_linked(2));
        }
    }
}

#[test]
fn a_second_process_with_the_same_rank_gets_no_link() {
    let secret = Secret::generate().unwrap();
    let ends: Vec<Exchange> =
        (0..2).map(|r| Exchange::start(local(), secret.clone(), r, 2, None).unwrap()).collect();
    let addrs: Vec<SocketAddr> = ends.iter().map(Exchange::addr).collect();
    let open = |e: &Exchange| e.open(WORLD, vec![0, 1], addrs.clone(), Duration::from_secs(20));
    let (mut zero, mut one) = (open(&ends[0]), open(&ends[1]));
    exchange_bytes(&mut one, &mut zero, (1, 0), b"genuine");
    let imposter = Exchange::start(local(), secret, 1, 2, None).unwrap();
    let mut false_one = open(&imposter);
    let deadline = within(20);
    loop {
        match false_one.send(0, &[IoSlice::new(b"false")]) {
            Ok(n) => assert_eq!(n, 0, "the imposter has a link"),
            Err(fault) => break assert!(fault.to_string().contains("connected already"), "{fault}"),
        }
        assert!(!deadline.has_passed(Instant::now()));
        std::thread::sleep(Duration::from_millis(1));
    }
    exchange_bytes(&mut one, &mut zero, (1, 0), b"undisturbed");
}
