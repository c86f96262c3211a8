//! A transport over unix-domain sockets, for ranks of one host. It needs nothing of phalanx but what every crate can use.
//!
//! Each rank listens under an abstract name, which the job's store tells the others. In a group, the higher rank of each pair calls the lower one.
//! Both ends ask the kernel whose process the other is (`SO_PEERCRED`): other users are refused before a byte of theirs is read. The caller
//! then shows a key of the job's secret, so that jobs of one user are kept apart.
#![cfg(target_os = "linux")]

mod listener;
mod transport;

use listener::{Call, KEY_LEN, Listener, is_ours};
use phalanx::backend::GroupId;
use phalanx::transport::{
    JobLinks, LinkFault, LinkPeer, LinksStart, OwnerProcess, Transport, TransportFactory,
};
use phalanx::{Error, Result};
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use transport::{Link, UnixTransport};

/// The factory: `register_transport("unix", Arc::new(Unix))` makes `PHALANX_BACKEND=unix` work in a program.
#[derive(Debug)]
pub struct Unix;

impl TransportFactory for Unix {
    fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
        let links = UnixLinks::listen(at.rank(), &at.secret().key_for("unix-transport"));
        Ok(Box::new(links.map_err(|error| Error::io("listening on a unix-domain socket", error))?))
    }

    /// The bytes stay in this host's kernel.
    fn is_private(&self) -> bool {
        true
    }
}

/// One rank's side of all its links.
#[derive(Debug)]
pub struct UnixLinks {
    rank: usize,
    key: [u8; KEY_LEN],
    name: String,
    listener: Arc<Listener>,
}

impl UnixLinks {
    /// Listens under a name that nobody else has. Callers must show `key` (its first 64 bytes), which all ranks of the job have.
    ///
    /// # Errors
    /// The system refuses a socket or a thread.
    pub fn listen(rank: usize, key: &str) -> io::Result<Self> {
        let mut shown = [0; KEY_LEN];
        shown.iter_mut().zip(key.bytes()).for_each(|(to, from)| *to = from);
        let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let name = format!("phalanx-unix-{}", random.trim());
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok(Self { rank, key: shown, name, listener: Listener::start(socket, shown)? })
    }

    /// Calls a rank that listens under this name.
    fn call(&self, group: GroupId, name: &[u8]) -> io::Result<UnixStream> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        if !is_ours(&stream) {
            return Err(io::Error::other("another user's process listens there"));
        }
        (&stream).write_all(&Call::new(&self.key, group, self.rank).0)?;
        stream.set_nonblocking(true).map(|()| stream)
    }
}

impl JobLinks for UnixLinks {
    fn address(&self) -> Option<Vec<u8>> {
        Some(self.name.clone().into_bytes())
    }

    fn open(&self, group: GroupId, peers: &[LinkPeer<'_>]) -> Box<dyn Transport> {
        let link = |peer: &LinkPeer<'_>| match peer.rank < self.rank {
            // It listens since before the ranks met, so a call ends at once.
            true => match self.call(group, peer.address) {
                Ok(stream) => Link::Up(Arc::new(stream)),
                Err(error) => Link::Down(LinkFault::Unreachable(error.to_string())),
            },
            false => Link::Awaited(Call::new(&self.key, group, peer.rank)),
        };
        let rank = peers.iter().position(|peer| peer.rank == self.rank).expect("this rank is a member");
        let (owner_process, listener) = (OwnerProcess::here(), self.listener.clone());
        let links = peers.iter().map(link).collect();
        Box::new(UnixTransport { owner_process, group, rank, links, listener })
    }
}
