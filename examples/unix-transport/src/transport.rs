//! One group's links.

use crate::listener::{Call, Listener};
use phalanx::backend::GroupId;
use phalanx::transport::{Direction, LinkFault, OwnerProcess, Transport, Wait, Waker, moved};
use std::io::{IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) enum Link {
    /// The peer makes this call when it has made the group too.
    Awaited(Call),
    Up(Arc<UnixStream>),
    Down(LinkFault),
}

/// One rank's ends. Dropping it closes them.
#[derive(Debug)]
pub(crate) struct UnixTransport {
    pub(crate) owner_process: OwnerProcess,
    pub(crate) group: GroupId,
    pub(crate) rank: usize,
    pub(crate) links: Vec<Link>,
    pub(crate) listener: Arc<Listener>,
}

impl UnixTransport {
    /// The link with `peer`, if it stands; `waker` is woken when it may.
    fn link(&mut self, peer: usize, waker: Option<&Waker>) -> Result<Option<&Arc<UnixStream>>, LinkFault> {
        let link = &mut self.links[peer];
        if let Link::Awaited(call) = link
            && let Some(stream) = self.listener.take(call, waker)
        {
            *link = Link::Up(Arc::new(stream));
        }
        match link {
            Link::Up(stream) => Ok(Some(stream)),
            Link::Down(fault) => Err(fault.clone()),
            Link::Awaited(_) => Ok(None),
        }
    }
}

impl Transport for UnixTransport {
    fn name(&self) -> &'static str {
        "unix"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.links.len()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        let Some(stream) = self.link(peer, None)? else { return Ok(0) };
        // What the peer sent before it closed can still be read: the link is down only for sending.
        Ok(moved((&**stream).write_vectored(bytes))?.unwrap_or(0))
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let Some(stream) = self.link(peer, None)? else { return Ok(0) };
        let fault = match moved((&**stream).read(buffer)) {
            Ok(Some(0)) => LinkFault::Closed,
            Ok(n) => return Ok(n.unwrap_or(0)),
            Err(fault) => fault,
        };
        self.links[peer] = Link::Down(fault.clone());
        Err(fault)
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        matches!(self.link(peer, None), Ok(Some(_)))
    }

    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        let link = self.link(peer, Some(&wait.waker().clone()));
        if let Ok(Some(stream)) = &link {
            wait.add(stream, direction);
        }
        link.is_err()
    }
}

impl Drop for UnixTransport {
    fn drop(&mut self) {
        // A child that was forked has copies of the sockets, and must end nothing of its parent's.
        if !self.owner_process.is_here() {
            return;
        }
        for link in &self.links {
            if let Link::Up(stream) = link {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        self.listener.forget(self.group);
    }
}
