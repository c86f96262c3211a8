//! A connection in the middle of its handshake, in either role, without blocking.

use crate::connection::Connection;
use crate::handshake::{Acceptor, AcceptorStep, Dialer, DialerStep, Hello, Refusal, Status};
use crate::keys::Keys;
use crate::{LinkFault, resources};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use std::io::{self, Read, Write};
use std::time::Instant;

/// The longest message of a handshake fits.
const INPUT: usize = 128;

#[derive(Debug)]
enum Role {
    Acceptor(Box<Acceptor>),
    Dialer(Dialer),
    /// The last bytes are on their way out.
    Finished,
}

/// The progress of a handshake.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Needs more bytes, or room to write.
    Pending,
    /// The caller proved itself: answer with [`Handshaking::answer`].
    Proved(Hello),
    /// Over and well; the stream is ready for use.
    Done,
    /// Over and not well.
    Failed(Failure),
}

/// Why it failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused(Refusal),
    Io(io::Error),
}

impl Failure {
    /// The words for it, of a connection that was to be made with the listener at `addr`.
    pub(crate) fn of_link(&self, addr: &dyn std::fmt::Display) -> LinkFault {
        let why = format!("{addr}: {self}");
        match self {
            Self::Io(error) if resources::are_exhausted(error) => LinkFault::Starved(why),
            _ => LinkFault::Unreachable(why),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("it closed the connection during the handshake (another job, or another secret?)")
            }
            Self::Io(error) => error.fmt(f),
        }
    }
}

/// A nonblocking stream and its handshake.
#[derive(Debug)]
pub(crate) struct Handshaking<S> {
    pub(crate) stream: S,
    /// When to give up on it.
    pub(crate) until: Instant,
    role: Role,
    /// Bytes of the message being read.
    input: [u8; INPUT],
    have: usize,
    output: Vec<u8>,
    keys: Option<Keys>,
}

impl<S: AsFd> Handshaking<S> {
    /// The descriptor to poll before advancing it again.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT })
    }
}

impl<S: Read + Write> Handshaking<S> {
    pub(crate) fn accepted(stream: S, acceptor: Acceptor, until: Instant) -> Self {
        let role = Role::Acceptor(Box::new(acceptor));
        Self { stream, until, role, input: [0; INPUT], have: 0, output: Vec::new(), keys: None }
    }

    pub(crate) fn dialled(stream: S, dialer: Dialer, first: Vec<u8>, until: Instant) -> Self {
        Self {
            stream,
            until,
            role: Role::Dialer(dialer),
            input: [0; INPUT],
            have: 0,
            output: first,
            keys: None,
        }
    }

    /// Whether all that the other side needs to count on this connection is on its way: then it must not be given up lightly.
    pub(crate) fn has_proved(&self) -> bool {
        matches!(&self.role, Role::Dialer(dialer) if dialer.has_proved()) && self.output.is_empty()
    }

    /// The wire version of a caller, if it is another than ours.
    pub(crate) fn other_version(&self) -> Option<u16> {
        if let Role::Acceptor(acceptor) = &self.role { acceptor.other_version() } else { None }
    }

    /// The connection, after [`Progress::Done`].
    pub(crate) fn into_connection(self) -> Connection<S> {
        Connection::new(self.stream, self.keys)
    }

    /// Queues the answer to [`Progress::Proved`].
    pub(crate) fn answer(&mut self, status: Status) {
        if let Role::Acceptor(mut acceptor) = std::mem::replace(&mut self.role, Role::Finished) {
            self.output.extend(acceptor.verdict(status));
            self.keys = acceptor.take_keys();
        }
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self) -> Progress {
        loop {
            match self.flush() {
                Ok(true) => {}
                Ok(false) => return Progress::Pending,
                Err(error) => return Progress::Failed(Failure::Io(error)),
            }
            let wants = match &self.role {
                Role::Acceptor(acceptor) => acceptor.wants(),
                Role::Dialer(dialer) => dialer.wants(),
                Role::Finished => return Progress::Done,
            };
            match self.fill(wants) {
                Ok(true) => {}
                Ok(false) => return Progress::Pending,
                Err(error) => return Progress::Failed(Failure::Io(error)),
            }
            self.have = 0;
            let message = &self.input[..wants];
            match &mut self.role {
                Role::Acceptor(acceptor) => match acceptor.handle(message) {
                    Ok(AcceptorStep::Send(bytes)) => self.output = bytes,
                    Ok(AcceptorStep::Proved(hello)) => return Progress::Proved(hello),
                    Err(refusal) => return Progress::Failed(Failure::Refused(refusal)),
                },
                Role::Dialer(dialer) => match dialer.handle(message) {
                    Ok(DialerStep::Send(bytes)) => self.output = bytes,
                    Ok(DialerStep::Done) => {
                        self.keys = dialer.take_keys();
                        self.role = Role::Finished;
                    }
                    Err(refusal) => return Progress::Failed(Failure::Refused(refusal)),
                },
                Role::Finished => return Progress::Done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Reads until `wants` bytes are there, and never a byte more: what follows belongs to the next reader.
    fn fill(&mut self, wants: usize) -> io::Result<bool> {
        while self.have < wants {
            match self.stream.read(&mut self.input[self.have..wants]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.have += n;
                    if let Role::Acceptor(acceptor) = &self.role
                        && acceptor.is_hopeless(&self.input[..self.have])
                    {
                        return Err(io::Error::other(Refusal::NotPhalanx.to_string()));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}
