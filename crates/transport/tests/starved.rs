//! A process that has no descriptor for callers hears of it. Alone in its process, because it lowers the limit of open files.

#![cfg(unix)]

use phalanx_core::{Deadline, WORLD};
use phalanx_transport::handshake::{Hello, Purpose};
use phalanx_transport::{Admission, Endpoint, Outbox, Secret, Service, SessionId, open_session};
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Serves everybody, and says when it can't.
struct EventLoop(Sender<String>);

impl Service for EventLoop {
    fn admit(&mut self, _hello: &Hello) -> Admission {
        Admission::Serve
    }

    fn message(&mut self, _session: SessionId, _message: &[u8], _outbox: &mut Outbox) {}

    fn closed(&mut self, _session: SessionId, _outbox: &mut Outbox) {}

    fn starved(&mut self, why: &str) {
        let _ = self.0.send(why.to_owned());
    }
}

#[test]
fn whoever_serves_hears_that_no_caller_can_be_taken() {
    let (secret, (sender, heard)) = (Secret::generate().unwrap(), channel());
    let event_loop = Endpoint::start(([127, 0, 0, 1], 0).into(), secret.clone(), EventLoop(sender)).unwrap();
    // The caller's own descriptor is made while there are any.
    let caller = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let before = getrlimit(Resource::Nofile);
    // Those below 3 are taken, so no other can be made.
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    connect(&caller, &event_loop.addr()).unwrap();
    let why = heard.recv_timeout(Duration::from_secs(60));
    setrlimit(Resource::Nofile, before).unwrap();
    let why = why.expect("nobody was told");
    assert!(why.contains("open files"), "{why}");
    // Who calls now comes in.
    let hello = Hello { purpose: Purpose::Control, rank: 1, called: 0, world_size: 2, group: WORLD };
    let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
    open_session(&event_loop.addr().to_string(), &secret, &hello, &deadline).unwrap();
}
