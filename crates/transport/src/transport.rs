//! The seam between collectives and whatever moves their bytes.

#[cfg(feature = "sockets")]
use crate::direction::Direction;
use crate::patience::Patience;
#[cfg(feature = "sockets")]
use crate::wait::Wait;
use crate::waker::WakeSource;
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

/// Why a link carries nothing any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkFault {
    /// The other end closed it, or died.
    Closed,
    /// The link could not be established, or the network between its ends is cut; says what was met.
    Unreachable(String),
    /// The link could not be established for want of something on this side: descriptors, memory, ports. Says of what.
    Starved(String),
    /// The bytes that came are not those that the other end sent, or none that it should have sent.
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

    /// Most payload bytes of a frame. While a frame is under way its link carries nothing else, so that a short message behind it waits.
    ///
    /// Default: [`FRAME_LEN`](crate::FRAME_LEN). More than [`FRAME_LEN_MAX`](crate::FRAME_LEN_MAX) is not taken.
    fn frame_len(&self) -> usize {
        crate::FRAME_LEN
    }

    /// Takes as many of `bytes`, in order, as fit now; 0 means none. Bytes that were not taken are offered again, before others; those of a long message, which needs its
    /// receiver, from where they were.
    ///
    /// # Errors
    /// The link is broken for good.
    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault>;

    /// Takes all of `bytes` now, so that none of them still waits for the peer, or none of them; returns whether it took them.
    ///
    /// Default: none, which is right where that is not known before.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn send_at_once(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<bool, LinkFault> {
        let _ = (peer, bytes);
        Ok(false)
    }

    /// Fills the front of `buffer` (not empty) with bytes that have arrived; 0 means none.
    ///
    /// # Errors
    /// The link is broken for good, and everything that arrived before has been read.
    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault>;

    /// As [`recv`](Self::recv), where the bytes stay in `buffer`, which is a part of the place of a message of `whole` bytes. What is longer than the caches need not be brought into them.
    ///
    /// Default: `recv`. A transport that wraps another passes it on.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    fn recv_part(&mut self, peer: usize, buffer: &mut [u8], whole: usize) -> Result<usize, LinkFault> {
        let _ = whole;
        self.recv(peer, buffer)
    }

    /// Whether the link with `peer` was made and is not known to be broken. Makes none.
    fn is_linked(&mut self, peer: usize) -> bool;

    /// Adds to `wait` what ends it when bytes can move; true if they can already (then don't sleep).
    ///
    /// Default: true. Whoever waits then looks again and again, as befits links that are only polled.
    #[cfg(feature = "sockets")]
    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        let _ = (peer, direction, wait);
        true
    }

    /// The operations of this rank have failed, all of them: nobody may read their memory any more, nor take for theirs what it reads there from now on. Bytes that
    /// were offered and not taken are not offered again.
    ///
    /// Default: does nothing, which is right where bytes are copied as they are taken.
    fn withdraw(&mut self) {}

    /// Says how long a call of this transport may wait for a peer that is copying into its buffer.
    ///
    /// Default: does nothing, which is right where no call waits.
    fn wait_with(&mut self, patience: Arc<dyn Patience>) {
        let _ = patience;
    }

    /// The source that peers wake when bytes can move, if they do: then every wait that [`watch`](Self::watch) is given must be
    /// on a waker [at](crate::Waker::at) this source.
    fn wake_source(&self) -> Option<Arc<dyn WakeSource>> {
        None
    }
}
