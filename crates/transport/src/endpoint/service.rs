//! The trait `Service`, which an endpoint serves, and what it may ask for.

use super::message::Message;
use crate::handshake::{Hello, Status};
#[cfg(target_os = "linux")]
use crate::local::FdOffer;
use crate::{Connection, LinkFault};
use phalanx_core::Deadline;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// Names a session within its endpoint; never reused.
pub type SessionId = u64;

/// The decision about a caller that knows the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Serve it here, message by message.
    Serve,
    /// Give the connection to [`Service::linked`].
    Link,
    /// Send it away.
    Refuse(Status),
}

/// A connection to make: tried again and again until it stands or its time is over.
#[derive(Debug, Clone)]
pub struct Dial {
    /// The peer's rank in the job, for [`Service::linked`].
    pub peer: usize,
    /// The address at which it listens.
    pub addr: SocketAddr,
    /// This side's hello.
    pub hello: Hello,
    /// When to give up.
    pub deadline: Deadline,
}

/// The requests of a [`Service`] to its endpoint.
#[derive(Debug, Default)]
pub struct Outbox {
    pub(super) messages: Vec<(SessionId, Message)>,
    pub(super) closes: Vec<SessionId>,
    pub(super) dials: Vec<Dial>,
    #[cfg(target_os = "linux")]
    pub(super) fd_offers: Vec<FdOffer>,
}

impl Outbox {
    /// Sends `message` (at most [`MESSAGE_LEN_MAX`](crate::MESSAGE_LEN_MAX) bytes) to a session; nothing happens if it is gone. What goes to many
    /// sessions is made a [`Message`] once, and cloned.
    pub fn send(&mut self, session: SessionId, message: impl Into<Message>) {
        self.messages.push((session, message.into()));
    }

    /// Ends a session after what was sent to it before, as far as the stream takes that at once; nothing happens if it is gone.
    /// The service hears of it by [`Service::closed`].
    pub fn close(&mut self, session: SessionId) {
        self.closes.push(session);
    }

    /// Takes the messages that were sent, to deliver them without an endpoint.
    pub fn take_messages(&mut self) -> Vec<(SessionId, Message)> {
        std::mem::take(&mut self.messages)
    }

    /// Begins to connect; the outcome goes to [`Service::linked`] or [`Service::unreachable`].
    pub fn dial(&mut self, dial: Dial) {
        self.dials.push(dial);
    }

    /// Begins to pass memory to a process of this host; the offer hears how that ends.
    #[cfg(target_os = "linux")]
    pub(crate) fn offer_fd(&mut self, offer: FdOffer) {
        self.fd_offers.push(offer);
    }
}

/// The service of an endpoint for those it lets in, over streams of type `S`. All calls come from its one thread.
pub trait Service<S = TcpStream>: Send + 'static {
    /// Decides about a caller that proved it knows the secret.
    fn admit(&mut self, hello: &Hello) -> Admission;

    /// Whether other processes of this host may pass memory to it. Asked once.
    fn takes_memory(&self) -> bool {
        false
    }

    /// Memory came, number `seq` of the group in `hello`. Returns whether it is wanted.
    #[cfg(target_os = "linux")]
    fn memory(&mut self, _hello: &Hello, _seq: u64, _memory: std::os::fd::OwnedFd) -> bool {
        false
    }

    /// A session has begun.
    fn opened(&mut self, _session: SessionId, _hello: &Hello, _outbox: &mut Outbox) {}

    /// A message came.
    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox);

    /// A session has ended, for whatever reason.
    fn closed(&mut self, session: SessionId, outbox: &mut Outbox);

    /// Called whenever all that arrived was handled, and when the time comes that it returned last: does what is due.
    fn poll(&mut self, _now: Instant, _outbox: &mut Outbox) -> Option<Instant> {
        None
    }

    /// A link with `peer` stands, whoever dialled. It is nonblocking.
    fn linked(&mut self, _peer: usize, _hello: &Hello, _link: Connection<S>) {}

    /// This process has no descriptors or memory left for callers, and has had none for a while: whoever waits for one waits in vain.
    fn starved(&mut self, _why: &str) {}

    /// A dial was given up, or the peer refused it for good.
    fn unreachable(&mut self, _dial: &Dial, _why: LinkFault) {}
}
