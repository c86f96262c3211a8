//! The seam between collectives and whatever moves their bytes.

#[cfg(feature = "sockets")]
use crate::self_pipe::sleep;
use crate::waker::WakeSource;
#[cfg(feature = "sockets")]
use crate::waker::{Kind, Waker};
#[cfg(feature = "sockets")]
use rustix::event::{PollFd, PollFlags};
use std::fmt;
use std::io::IoSlice;
#[cfg(all(feature = "sockets", unix))]
use std::os::fd::AsFd;
#[cfg(all(feature = "sockets", windows))]
use std::os::windows::io::AsSocket as AsFd;
use std::sync::Arc;
#[cfg(feature = "sockets")]
use std::time::Duration;

/// Why a link carries nothing any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkFault {
    /// The other end closed it, or died.
    Closed,
    /// It could not be established, or the network between its ends is cut; says what was met.
    Unreachable(String),
    /// It could not be established for want of something on this side: descriptors, memory, ports. Says of what.
    Starved(String),
    /// What came over it is not what the other end sent, or nothing that it should have sent.
    Nonsense(String),
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection was closed by the other end"),
            Self::Unreachable(why) => write!(f, "no connection: {why}"),
            Self::Starved(why) => write!(f, "this rank cannot make a connection: {why}"),
            Self::Nonsense(what) => f.write_str(what),
        }
    }
}

/// Which way bytes are to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the peer.
    Send,
    /// From the peer.
    Recv,
}

/// Ordered, reliable byte pipes between this rank and every peer of one group.
///
/// Ranks here are ranks *of the group*. Nothing blocks: a call moves what can be moved now. Links are made
/// on first use, in the background. To add a transport, implement this and run `phalanx_testkit::transport_conformance!`.
///
/// A link on which nothing waits takes at least [`HEAD_LEN_MAX`](crate::HEAD_LEN_MAX) bytes at once, whether or not its peer reads: all that
/// stands before the payload of a frame. A farewell is a frame without payload, which is offered once.
pub trait Transport: Send + 'static {
    /// Name for messages: `tcp`, `thread`, `shm`.
    fn name(&self) -> &'static str;

    /// This rank within the group.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn world_size(&self) -> usize;

    /// Takes as many of `bytes`, in order, as fit now; 0 means none. Bytes that were not taken are offered again, before others.
    ///
    /// # Errors
    /// The link is broken for good.
    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault>;

    /// Fills the front of `buffer` (not empty) with bytes that have arrived; 0 means none.
    ///
    /// # Errors
    /// The link is broken for good, and everything that arrived before has been read.
    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault>;

    /// Whether the link with `peer` was made and is not known to be broken. Makes none.
    fn is_linked(&mut self, peer: usize) -> bool;

    /// Adds to `wait` what ends it when bytes can move; true if they can already (then don't sleep).
    #[cfg(feature = "sockets")]
    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool;

    /// What peers wake when bytes can move, if they do: then every wait that [`watch`](Self::watch) is given must be
    /// on a waker [at](Waker::at) this source.
    fn wake_source(&self) -> Option<Arc<dyn WakeSource>> {
        None
    }
}

/// What a thread sleeps on while nothing can move: its waker, and any number of descriptors.
#[cfg(feature = "sockets")]
pub struct Wait {
    waker: Waker,
    descriptors: Vec<(Arc<dyn AsFd + Send + Sync>, PollFlags)>,
    /// How often the source had been woken when this last looked; what came later ends the next sleep.
    heard: u32,
}

#[cfg(feature = "sockets")]
impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let descriptors = self.descriptors.len();
        f.debug_struct("Wait")
            .field("waker", &self.waker)
            .field("descriptors", &descriptors)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "sockets")]
impl Wait {
    /// A wait with a waker of its own.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self::on(Waker::new()?))
    }

    /// A wait that ends when `waker` wakes it.
    pub fn on(waker: Waker) -> Self {
        let heard = match waker.kind() {
            Kind::Source(source) => source.wakes(),
            Kind::SelfPipe(_) => 0,
        };
        Self { waker, descriptors: Vec::new(), heard }
    }

    /// The waker that ends this wait.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Forgets the descriptors; call it before collecting anew.
    pub fn clear(&mut self) {
        self.descriptors.clear();
    }

    /// Ends when `descriptor` can be read or written: a socket, or on Unix whatever `poll` takes (a pipe, an eventfd, the
    /// completion channel of a network card). On Windows `AsFd` is `AsSocket`.
    ///
    /// # Panics
    /// If the waker is at a source: nothing sleeps there and on descriptors at once.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(unix)] {
    /// use phalanx_transport::{Direction, Wait};
    /// use std::{io::Write, os::unix::net::UnixStream, sync::Arc, time::Duration};
    ///
    /// let (here, mut there) = UnixStream::pair()?;
    /// let mut wait = Wait::new()?;
    /// wait.add(&Arc::new(here), Direction::Recv);
    /// there.write_all(b"!")?;
    /// wait.sleep(Duration::from_secs(3600)); // returns at once
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn add<D: AsFd + Send + Sync + 'static>(&mut self, descriptor: &Arc<D>, direction: Direction) {
        assert!(
            matches!(self.waker.kind(), Kind::SelfPipe(_)),
            "a transport with a wake_source has no descriptors"
        );
        let flags = match direction {
            Direction::Send => PollFlags::OUT,
            Direction::Recv => PollFlags::IN,
        };
        let is_known = |known: &Arc<dyn AsFd + Send + Sync>| {
            std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(descriptor))
        };
        match self.descriptors.iter_mut().find(|(known, _)| is_known(known)) {
            Some((_, known)) => *known |= flags,
            None => self.descriptors.push((descriptor.clone(), flags)),
        }
    }

    /// Sleeps until something is ready, it is woken, or `limit` has passed. May wake for no reason. Ends at once if the
    /// waker has woken it since the last sleep.
    pub fn sleep(&mut self, limit: Duration) {
        match self.waker.kind() {
            Kind::Source(source) => {
                source.sleep(self.heard, limit);
                self.heard = source.wakes();
            }
            Kind::SelfPipe(waker) => {
                let mut fds = Vec::with_capacity(1 + self.descriptors.len());
                fds.push(waker.poll_fd());
                fds.extend(self.descriptors.iter().map(|(descriptor, flags)| poll_fd(&**descriptor, *flags)));
                sleep(&mut fds, limit);
                if fds[0].revents().contains(PollFlags::IN) {
                    waker.clear();
                }
            }
        }
    }
}

#[cfg(all(feature = "sockets", unix))]
fn poll_fd(descriptor: &dyn AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(descriptor.as_fd(), flags)
}

#[cfg(all(feature = "sockets", windows))]
fn poll_fd(descriptor: &dyn AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(descriptor.as_socket(), flags)
}
