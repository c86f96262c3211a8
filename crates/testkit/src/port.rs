//! Ports for tests that must name one before anybody listens there.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpStream};

/// Below what systems take for outgoing connections (from 32768 on Linux, from 49152 elsewhere), and above what services have.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port at which nobody listens on this host, and which the system gives to no connection either: one that it chooses itself may be taken
/// by any other test's connection between this call and the use of the port.
///
/// Nothing is bound to find out. A process that another thread starts at that moment has all sockets of this one until it has become its
/// own program, and would keep the port for as long.
///
/// # Panics
/// If a thousand ports are taken.
///
/// # Examples
/// ```
/// let port = phalanx_testkit::free_port();
/// assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_ok());
/// ```
pub fn free_port() -> u16 {
    let is_free = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err();
    let mut tried = (0..1000u16).map(|number| {
        let random = RandomState::new().hash_one(number);
        PORTS.start + (random % PORTS.len() as u64) as u16
    });
    tried.find(is_free).expect("one of a thousand ports is free")
}
