//! Where callers prove themselves: a listener, and the handshakes of those who came to it.

use super::half_open::{HalfOpen, Progress};
use super::service::{Admission, Service};
use super::{HALF_OPEN_MAX, HANDSHAKE_TIME};
use crate::connection::Connection;
use crate::handshake::{Acceptor, Hello, Purpose, Status};
use crate::secret::random;
use crate::{Secret, socket};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A nonblocking listener.
pub(crate) trait Listener: AsFd {
    type Stream: Read + Write + AsFd;

    fn accept(&self) -> io::Result<Self::Stream>;

    /// Makes a fresh stream nonblocking and prompt.
    fn prepare(stream: &Self::Stream) -> io::Result<()>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        Self::accept(self).map(|(stream, _)| stream)
    }

    fn prepare(stream: &TcpStream) -> io::Result<()> {
        socket::prepare(stream)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Lobby<L: Listener> {
    listener: L,
    /// What one can come here for.
    purposes: &'static [Purpose],
    /// Oldest first; with who it is once that is known.
    callers: Vec<(HalfOpen<L::Stream>, Option<Hello>)>,
    /// Accepting pauses until then after the system refused (out of descriptors).
    accept_after: Instant,
}

impl<L: Listener> Lobby<L> {
    pub(crate) fn new(listener: L, purposes: &'static [Purpose]) -> Self {
        Self { listener, purposes, callers: Vec::new(), accept_after: Instant::now() }
    }

    /// Adds what to poll for; returns when to look again anyway, at the latest `until`.
    pub(crate) fn waits_for<'l>(
        &'l self,
        fds: &mut Vec<PollFd<'l>>,
        now: Instant,
        mut until: Instant,
    ) -> Instant {
        if self.accept_after <= now {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        } else {
            until = until.min(self.accept_after);
        }
        fds.extend(self.callers.iter().map(|(half, _)| half.poll_fd()));
        self.callers.iter().map(|(half, _)| half.until).fold(until, Instant::min)
    }

    /// Lets new callers begin their handshakes.
    pub(crate) fn accept(&mut self, secret: &Secret) {
        let now = Instant::now();
        if now < self.accept_after {
            return;
        }
        // Bounded, so that a flood of callers can't keep the thread from those it has already.
        for _ in 0..64 {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections; trying again");
                    self.accept_after = now + Duration::from_millis(50);
                    return;
                }
            };
            let Ok(nonce) = random() else { return };
            if L::prepare(&stream).is_err() {
                continue;
            }
            if self.callers.len() >= HALF_OPEN_MAX {
                tracing::debug!("too many handshakes at once; ending the oldest");
                self.callers.remove(0);
            }
            let acceptor = Acceptor::new(secret.clone(), nonce);
            self.callers.push((HalfOpen::accepted(stream, acceptor, now + HANDSHAKE_TIME), None));
        }
    }

    /// Advances the handshakes. The service decides who may come in; those go to `welcome` at once, so that the next
    /// decision knows of them.
    pub(crate) fn greet<S: Service>(
        &mut self,
        service: &mut S,
        mut welcome: impl FnMut(&mut S, Hello, Connection<L::Stream>),
    ) {
        let now = Instant::now();
        for (mut half, mut admitted) in std::mem::take(&mut self.callers) {
            loop {
                match half.advance() {
                    Progress::Pending if half.until > now => self.callers.push((half, admitted)),
                    Progress::Pending => tracing::debug!("a caller did not finish its handshake in time"),
                    Progress::Failed(why) => tracing::debug!(%why, "a stray connection was dropped"),
                    Progress::Proved(hello) => {
                        let admission = if self.purposes.contains(&hello.purpose) {
                            service.admit(&hello)
                        } else {
                            Admission::Refuse(Status::Unwanted)
                        };
                        match admission {
                            Admission::Refuse(status) => {
                                if status != Status::Crossed {
                                    tracing::warn!(rank = hello.rank, %status, "a caller with the job's secret was refused");
                                }
                                half.answer(status);
                            }
                            Admission::Serve | Admission::Link => {
                                admitted = Some(hello);
                                half.answer(Status::Welcome);
                            }
                        }
                        continue;
                    }
                    Progress::Done => {
                        if let Some(hello) = admitted {
                            welcome(service, hello, half.into_connection());
                        }
                    }
                }
                break;
            }
        }
    }
}
