//! Ranks of one host: who they are, and how one passes memory to another.
//!
//! Shared memory has no name that a stranger could open and nothing that could be left behind: it is an anonymous file, whose
//! descriptor one process hands to another over a unix socket. Those sockets are **abstract** (a name in the network
//! namespace, nothing on disk), and begin with the same handshake as every other.
//!
//! ```text
//! sender                                     receiver
//!   | handshake, purpose Memory, the group        |
//!   |<------------------------------------------->|
//!   | its number (8 bytes), and one descriptor    |
//!   |-------------------------------------------->|   kept until it is asked for
//!   |                                  one byte   |
//!   |<--------------------------------------------|
//! ```

mod host;
pub use host::HostKey;

#[cfg(target_os = "linux")]
mod fd_message;
#[cfg(target_os = "linux")]
mod fd_offer;
#[cfg(target_os = "linux")]
mod fd_passing;
#[cfg(target_os = "linux")]
mod memories;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
pub use memory::OfferedFd;
#[cfg(target_os = "linux")]
pub(crate) use {fd_offer::FdOffer, fd_passing::FdPassing, memories::Memories};
