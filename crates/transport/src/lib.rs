//! How phalanx moves bytes between two ranks.
//!
//! Bottom up: [`Secret`] and [`handshake`] keep strangers out; [`Endpoint`] is the one thread of a process that
//! accepts, dials, and serves control messages; [`tcp::Exchange`] is what it does for the data of a rank, and passes
//! memory between processes of one host; [`Transport`] moves bytes between this rank and each
//! peer of a group, with two implementations, threads of one process ([`thread`]) and TCP ([`tcp`]); [`Wire`]
//! cuts messages into tagged frames on top of any of them, so that two operations in flight can't be mixed up.
//! [`wait_policy`] is when a thread that waits for a peer spins, gives its core away, and sleeps.
//!
//! Deliberately absent: collectives, groups, rendezvous.

mod birthplace;
mod checksum;
mod connection;
mod endpoint;
mod exchange;
mod frame;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod handshake;
mod host_probe;
mod key_exchange;
mod keys;
mod local;
mod path;
mod resources;
#[doc(hidden)]
pub mod sabotage;
mod seal;
mod secret;
mod socket;
mod status;
mod tally;
pub mod tcp;
pub mod thread;
mod transport;
pub mod wait_policy;
mod waker;
mod wire;

pub use birthplace::Birthplace;
pub use connection::Connection;
pub use endpoint::{
    Admission, Dial, Endpoint, MESSAGE_LEN_MAX, NoSession, Outbox, Service, Session, SessionId,
    SessionReceiver, SessionSender, Strangers, open_session, open_session_if_listening, try_to_open_session,
};
pub use frame::{Channel, FRAME_LEN_MAX, Header, Key, encode_signature};
pub use host_probe::probe_hosts;
pub use local::HostKey;
#[cfg(target_os = "linux")]
pub use local::OfferedFd;
pub use secret::{Secret, random_number};
pub use socket::loopback;
pub use tally::Tally;
pub use transport::{Direction, LinkFault, Transport, Wait};
pub use waker::{WakeSource, Waker};
pub use wire::{Arrival, HEAD_LEN_MAX, Outbound, Sent, Wire, WireFault};
