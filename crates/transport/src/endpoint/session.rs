//! Sessions: messages over an authenticated stream.

use super::inbox::Inbox;
use super::message::{Message, Unsent};
use super::sender::{Sending, SessionSender};
use crate::connection::{Connection, Reader};
use crate::self_pipe;
use phalanx_core::{Deadline, Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

/// Reads of one session in a row.
const READS_MAX: usize = 16;

/// The server's end of a session; never blocks.
#[derive(Debug)]
pub(crate) struct ServerSession<S = TcpStream> {
    connection: Connection<S>,
    inbox: Inbox,
    unsent: Unsent,
    /// Whether the network was told that something is unsent.
    pub(super) waits_for_room: bool,
}

impl<S> ServerSession<S>
where
    for<'a> &'a S: Read + Write,
{
    pub(crate) fn new(connection: Connection<S>) -> Self {
        Self { connection, inbox: Inbox::default(), unsent: Unsent::default(), waits_for_room: false }
    }

    pub(super) fn stream(&self) -> &S {
        self.connection.stream()
    }

    pub(crate) fn is_writing(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn queue(&mut self, message: Message) -> io::Result<()> {
        self.unsent.push(message)
    }

    /// Writes what the stream takes now. What a closed stream does not take is forgotten and no error: the peer may have
    /// said something before it closed, so it is for [`receive`](Self::receive) to find the end.
    pub(crate) fn flush(&mut self) {
        if self.unsent.write_to(&mut self.connection.writer).is_err() {
            self.unsent = Unsent::default();
        }
    }

    /// Reads what is there, within reason, and returns the whole messages. An error ends the session, after
    /// the messages that came before it.
    pub(crate) fn receive(&mut self) -> (Vec<Vec<u8>>, io::Result<()>) {
        let mut messages = Vec::new();
        let mut buffer = [0; 16 << 10];
        let mut reads = 0;
        // A bounded number of reads, so that one busy session can't starve the others. What is here already must be read: the
        // stream would not say again that it has come.
        while reads < READS_MAX || self.connection.reader.is_ready() {
            reads += 1;
            match self.connection.reader.read(&mut buffer) {
                Ok(0) => return (messages, Err(ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.inbox.push(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return (messages, Err(e)),
            }
            loop {
                match self.inbox.pop() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Err(error)),
                }
            }
        }
        (messages, Ok(()))
    }
}

/// The client's end of a session: sending never waits, and receiving has a time limit.
#[derive(Debug)]
pub struct Session {
    sender: SessionSender,
    receiver: SessionReceiver,
}

/// The half of a [`Session`] that receives.
#[derive(Debug)]
pub struct SessionReceiver {
    reader: Reader,
    inbox: Inbox,
    /// The other half: it knows why it closed the connection.
    sending: Arc<Sending>,
}

impl Session {
    /// The stream is nonblocking.
    pub(crate) fn new(connection: Connection, peer: SocketAddr) -> Self {
        let stream = connection.stream().clone();
        let Connection { writer, reader } = connection;
        Self::of(Sending::new(stream, writer, peer), reader)
    }

    pub(super) fn of(sending: Sending, reader: Reader) -> Self {
        let sending = Arc::new(sending);
        let receiver = SessionReceiver { reader, inbox: Inbox::default(), sending: sending.clone() };
        Self { sender: SessionSender::new(sending), receiver }
    }

    #[cfg(test)]
    pub(super) fn sender(&self) -> &SessionSender {
        &self.sender
    }

    /// The address of this end: the one that routes to the other.
    ///
    /// # Errors
    /// [`Error::Io`] if the system cannot say.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let addr = self.receiver.reader.stream().local_addr();
        addr.map_err(|e| Error::io("asking for the local address of a session", e))
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.sender.peer()
    }

    /// Splits the session into halves, for two threads. The connection is closed when both are dropped.
    pub fn split(self) -> (SessionSender, SessionReceiver) {
        (self.sender, self.receiver)
    }

    /// As [`SessionSender::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&self, message: &[u8]) -> Result<()> {
        self.sender.send(message)
    }

    /// As [`SessionReceiver::recv`].
    ///
    /// # Errors
    /// As there.
    pub fn recv(&mut self, deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        self.receiver.recv(deadline)
    }
}

/// For who waits for many sessions at once. What [`recv`](SessionReceiver::recv) has read beyond a message shows on it no more.
#[cfg(unix)]
impl std::os::fd::AsFd for SessionReceiver {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reader.stream().as_fd()
    }
}

impl SessionReceiver {
    /// Receives one message; `None` if none came in time. What is here already is received after the deadline too.
    ///
    /// # Errors
    /// [`Error::Io`] if the other side is gone, or what came is not from it, or it was given up because it takes nothing.
    pub fn recv(&mut self, deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(message) = self.inbox.pop().map_err(|e| self.failed(e))? {
                return Ok(Some(message));
            }
            match self.reader.read(&mut buffer) {
                Ok(0) => return Err(self.failed(ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.inbox.push(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let left = deadline.remaining(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self_pipe::sleep(&mut [PollFd::new(self.reader.stream(), PollFlags::IN)], left);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    /// The error of this half, or the other half's if that has closed the connection before.
    fn failed(&self, error: io::Error) -> Error {
        let peer = self.sending.peer();
        self.sending.why_broken().unwrap_or_else(|| Error::io(format!("receiving from {peer}"), error))
    }
}
