//! A member of a job: which rank it is, and where.

use phalanx_core::Peer;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Longest text: a host's name, what ranks must agree on, the words of an abort.
pub(crate) const TEXT_LEN_MAX: usize = 4 << 10;

/// A rank, where its data links are accepted, and where memory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The rank, as errors name it.
    pub peer: Peer,
    /// Where its data links are accepted.
    pub addr: SocketAddr,
    /// `None`: it shares no memory with anybody.
    pub local: Option<Local>,
}

/// Which ranks can share memory with a rank, and the name under which it takes that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    /// The key of its host: equal on ranks that can pass memory to each other.
    pub host: String,
    /// The name under which it takes memory.
    pub name: String,
    /// Bytes of the longest memory that it can make for others; 0 where the system lets it make none.
    pub longest: u64,
}
