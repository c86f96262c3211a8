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
//!
//! Without the feature `sockets`, which is on by default, there are only [`Transport`], [`Wire`], frames and [`Waker`]: no socket, clock or thread,
//! and nothing that a system must have. `phalanx-control` and `phalanx-engine` use that much.

mod checksum;
#[cfg(feature = "sockets")]
mod connection;
mod direction;
#[cfg(feature = "sockets")]
mod endpoint;
#[cfg(feature = "sockets")]
mod exchange;
mod frame;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "sockets")]
pub mod handshake;
#[cfg(feature = "sockets")]
mod host_probe;
#[cfg(feature = "sockets")]
mod io_outcome;
#[cfg(feature = "sockets")]
mod key_exchange;
#[cfg(feature = "sockets")]
mod keys;
mod known_signatures;
#[cfg(feature = "sockets")]
mod local;
#[cfg(feature = "sockets")]
mod owner_process;
mod patience;
#[cfg(feature = "sockets")]
mod reachability;
#[cfg(feature = "sockets")]
mod resources;
#[doc(hidden)]
pub mod sabotage;
#[cfg(feature = "sockets")]
mod seal;
#[cfg(feature = "sockets")]
mod secret;
#[cfg(feature = "sockets")]
mod self_pipe;
#[cfg(feature = "__simulation")]
#[doc(hidden)]
pub mod simulated;
#[cfg(feature = "sockets")]
mod socket;
#[cfg(feature = "sockets")]
mod status;
mod tally;
#[cfg(feature = "sockets")]
pub mod tcp;
#[cfg(feature = "sockets")]
pub mod thread;
mod transport;
#[cfg(feature = "sockets")]
mod wait;
#[cfg(feature = "sockets")]
pub mod wait_policy;
mod waker;
mod wire;

#[cfg(feature = "sockets")]
pub use connection::Connection;
pub use direction::Direction;
#[cfg(feature = "sockets")]
pub use endpoint::{
    Admission, Dial, Endpoint, MESSAGE_LEN_MAX, Message, NoSession, Outbox, Service, Session, SessionId,
    SessionReceiver, SessionSender, Strangers, open_session, open_session_if_listening, try_to_open_session,
};
pub use frame::{Channel, FRAME_LEN, FRAME_LEN_MAX, Header, Key, encode_signature};
#[cfg(feature = "sockets")]
pub use host_probe::probe_hosts;
#[cfg(feature = "sockets")]
pub use io_outcome::moved;
#[cfg(feature = "sockets")]
pub use local::HostKey;
#[cfg(all(feature = "sockets", target_os = "linux"))]
pub use local::OfferedFd;
#[cfg(feature = "sockets")]
pub use owner_process::OwnerProcess;
pub use patience::Patience;
#[cfg(feature = "sockets")]
pub use secret::{Secret, random_number};
#[cfg(feature = "sockets")]
pub use socket::loopback;
pub use tally::Tally;
pub use transport::{LinkFault, Transport};
#[cfg(feature = "sockets")]
pub use wait::Wait;
pub use waker::{WakeSource, Waker};
pub use wire::{Arrival, AtOnce, HEAD_LEN_MAX, Outbound, Sent, Wire, WireFault};
