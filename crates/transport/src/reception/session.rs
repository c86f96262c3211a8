//! Length-prefixed messages over an authenticated stream: four bytes of length (little endian), then the message.

use crate::connection::{Connection, Reader, Writer};
use phalanx_core::{Deadline, Error, Result};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest message either side accepts: an address book of 100,000 ranks fits.
pub const MESSAGE_LEN_MAX: usize = 16 << 20;

/// Bytes queued for a session that does not read them; beyond this it is closed.
const BACKLOG_MAX: usize = 64 << 20;

/// Reads of one session in a row.
const READS_MAX: usize = 16;

/// Reassembles messages from the bytes of a stream. Memory grows with what arrived, not with what was announced.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: VecDeque<u8>,
    /// Longest message.
    len_max: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::of_at_most(MESSAGE_LEN_MAX)
    }
}

impl Inbox {
    pub(crate) fn of_at_most(len_max: usize) -> Self {
        Self { bytes: VecDeque::new(), len_max }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Bytes held, and those there is memory for.
    #[cfg(feature = "__fuzz")]
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.bytes.len(), self.bytes.capacity())
    }

    /// The next whole message, if it has arrived.
    pub(crate) fn pop(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.bytes.len() < 4 {
            return Ok(None);
        }
        let len = (0..4).fold(0usize, |len, i| len | usize::from(self.bytes[i]) << (8 * i));
        if len > self.len_max {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("a message of {len} bytes is too long"),
            ));
        }
        if self.bytes.len() < 4 + len {
            return Ok(None);
        }
        self.bytes.drain(..4);
        Ok(Some(self.bytes.drain(..len).collect()))
    }
}

pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    assert!(message.len() <= MESSAGE_LEN_MAX, "messages are bounded by their makers");
    let mut bytes = Vec::with_capacity(4 + message.len());
    bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// The server's end of a session; never blocks.
#[derive(Debug)]
pub(crate) struct Served<S = TcpStream> {
    connection: Connection<S>,
    inbox: Inbox,
    output: VecDeque<u8>,
}

impl<S> Served<S>
where
    for<'a> &'a S: Read + Write,
{
    pub(crate) fn new(connection: Connection<S>) -> Self {
        Self { connection, inbox: Inbox::default(), output: VecDeque::new() }
    }

    pub(super) fn stream(&self) -> &S {
        self.connection.stream()
    }

    pub(crate) fn is_writing(&self) -> bool {
        !self.output.is_empty()
    }

    pub(crate) fn queue(&mut self, message: &[u8]) -> io::Result<()> {
        if self.output.len() + message.len() > BACKLOG_MAX {
            return Err(io::Error::other("it does not read what is sent to it"));
        }
        self.output.extend(framed(message));
        Ok(())
    }

    /// Writes what the stream takes now. What a closed stream does not take is forgotten and no error: the peer may have
    /// said something before it closed, so it is for [`receive`](Self::receive) to find the end.
    pub(crate) fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.connection.writer.write(self.output.as_slices().0) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.output.clear(),
            }
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

/// The client's end of a session: blocking, with a time limit on each call.
#[derive(Debug)]
pub struct Session {
    sender: SessionSender,
    receiver: SessionReceiver,
}

/// The half of a [`Session`] that sends.
#[derive(Debug)]
pub struct SessionSender {
    writer: Writer,
    peer: SocketAddr,
}

/// The half of a [`Session`] that receives.
#[derive(Debug)]
pub struct SessionReceiver {
    reader: Reader,
    inbox: Inbox,
    peer: SocketAddr,
}

impl Session {
    /// The stream is blocking.
    pub(crate) fn new(connection: Connection, peer: SocketAddr) -> Self {
        let Connection { writer, reader } = connection;
        let sender = SessionSender { writer, peer };
        Self { sender, receiver: SessionReceiver { reader, inbox: Inbox::default(), peer } }
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
        self.sender.peer
    }

    /// Its halves, for two threads. The connection is closed when both are dropped.
    pub fn split(self) -> (SessionSender, SessionReceiver) {
        (self.sender, self.receiver)
    }

    /// As [`SessionSender::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
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

impl SessionSender {
    /// Sends one message. After an error the session is closed: perhaps half of the message went out.
    ///
    /// # Errors
    /// [`Error::Io`] if the other side is gone or takes nothing for 10 s; [`Error::Config`] if the message is
    /// longer than [`MESSAGE_LEN_MAX`], which closes nothing.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        if message.len() > MESSAGE_LEN_MAX {
            return Err(Error::config(format!("a message of {} bytes is too long", message.len())));
        }
        let stream = self.writer.stream();
        let sent = stream
            .set_write_timeout(Some(Duration::from_secs(10)))
            .and_then(|()| self.writer.write_all(&framed(message)));
        sent.map_err(|error| {
            self.close();
            Error::io(format!("sending to {}", self.peer), error)
        })
    }

    /// Closes the connection for both halves; a blocked [`recv`](SessionReceiver::recv) returns at once.
    pub fn close(&self) {
        let _ = self.writer.stream().shutdown(std::net::Shutdown::Both);
    }
}

impl SessionReceiver {
    /// Receives one message; `None` if none came in time.
    ///
    /// # Errors
    /// [`Error::Io`] if the other side is gone, or what came is not from it.
    pub fn recv(&mut self, deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        let peer = self.peer;
        let failed = |e| Error::io(format!("receiving from {peer}"), e);
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(message) = self.inbox.pop().map_err(failed)? {
                return Ok(Some(message));
            }
            let left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.reader.stream().set_read_timeout(Some(left)).map_err(failed)?;
            match self.reader.read(&mut buffer) {
                Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.inbox.push(&buffer[..n]),
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_reassembled_from_any_split() {
        let stream: Vec<u8> = [&b"one"[..], b"", b"three"].into_iter().flat_map(framed).collect();
        for split in 1..stream.len() {
            let mut inbox = Inbox::default();
            let mut messages = Vec::new();
            for part in stream.chunks(split) {
                inbox.push(part);
                messages.extend(std::iter::from_fn(|| inbox.pop().unwrap()));
            }
            assert_eq!(messages, [&b"one"[..], b"", b"three"]);
        }
    }

    #[test]
    fn an_absurd_length_is_refused_before_it_is_believed() {
        let mut inbox = Inbox::default();
        inbox.push(&u32::MAX.to_le_bytes());
        assert!(inbox.pop().is_err());
    }
}
