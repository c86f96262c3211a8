//! Passing memory between processes of this host: the local part of the endpoint.

use super::fd_message;
use super::fd_offer::FdOffer;
use crate::connection::Connection;
use crate::endpoint::{AcceptQueue, Address, Dialling, Listener, Origin, Service};
use crate::handshake::{Hello, Purpose};
use crate::secret::{Secret, random};
use crate::{LinkFault, resources};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Instant;

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn accept(&self) -> io::Result<(UnixStream, Origin)> {
        Self::accept(self).map(|(stream, _)| (stream, Origin::HERE))
    }

    fn prepare(stream: &UnixStream) -> io::Result<()> {
        stream.set_nonblocking(true)
    }
}

/// The abstract name of another process's socket.
#[derive(Debug)]
struct Name(String);

impl Address for Name {
    type Stream = UnixStream;

    fn connect(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // With its queue full this is `WouldBlock`, and there is another try.
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(self.0.as_bytes())?)?;
        Ok(socket.into())
    }

    fn connected(_stream: &UnixStream) -> io::Result<bool> {
        Ok(true)
    }

    /// The socket listens before its name is told to anybody, and never again under that name. Who has no descriptor left says so at once: it
    /// can't make memory either.
    fn is_final(error: &io::Error) -> bool {
        matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::InvalidInput)
            || resources::are_exhausted(error)
    }
}

/// An offered descriptor, and how far it is.
struct OutgoingFd {
    offer: FdOffer,
    state: OfferState,
}

enum OfferState {
    Dialling(Box<Dialling<Name>>),
    /// An answer must come before the deadline of the offer: the receiver may be stopped.
    Handed(Connection<UnixStream>),
}

impl OutgoingFd {
    fn new(offer: FdOffer, secret: &Secret, now: Instant) -> Self {
        let name = Name(whole_name(secret, &offer.name));
        let dialling = Dialling::new(name, offer.hello, offer.deadline, now);
        Self { offer, state: OfferState::Dialling(Box::new(dialling)) }
    }

    fn waits_for(&self, now: Instant) -> (Option<PollFd<'_>>, Instant) {
        match &self.state {
            OfferState::Dialling(dialling) => (dialling.poll_fd(), dialling.until()),
            OfferState::Handed(connection) => {
                (Some(PollFd::new(connection.stream(), PollFlags::IN)), self.offer.deadline.until(now))
            }
        }
    }

    /// Makes one step. `Some` when it is over.
    fn advance(&mut self, secret: &Secret, now: Instant) -> Option<Result<(), LinkFault>> {
        let failed = |why: String| Some(Err(LinkFault::Unreachable(why)));
        loop {
            match &mut self.state {
                OfferState::Dialling(dialling) => match dialling.advance(secret, &mut random, now) {
                    Ok(None) => return None,
                    Ok(Some(connection)) => {
                        match fd_message::send(connection.stream(), self.offer.seq, &self.offer.memory) {
                            Ok(()) => self.state = OfferState::Handed(connection),
                            Err(error) => return failed(format!("passing a descriptor: {error}")),
                        }
                    }
                    Err(why) => return Some(Err(why.of_link(&self.offer.name))),
                },
                OfferState::Handed(connection) => match connection.reader.read(&mut [0]) {
                    Ok(1) => return Some(Ok(())),
                    Ok(_) => return failed("it did not take the memory".into()),
                    Err(e) if e.kind() == ErrorKind::WouldBlock && !self.offer.deadline.has_passed(now) => {
                        return None;
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        return failed(format!("it did not say that it has the memory: {error}"));
                    }
                },
            }
        }
    }
}

/// A caller that is about to pass memory. It has proved itself, and may be stopped: as a session, it lasts until it closes.
#[derive(Debug)]
struct IncomingFd {
    hello: Hello,
    connection: Connection<UnixStream>,
}

/// Callers who may be about to pass memory at once. A job's own are one for each group that is being made.
const INCOMING_MAX: usize = 256;

/// The socket of a process for descriptors, what it sends, and what arrives.
pub(crate) struct FdPassing {
    name: String,
    accept_queue: AcceptQueue<UnixListener>,
    incoming: Vec<IncomingFd>,
    outgoing: Vec<OutgoingFd>,
}

/// Bytes of a name that all ranks are told. It is short, since it is told for each of them.
const TOLD_LEN: usize = "phalanx-".len() + 6;

/// The whole name of which the beginning was told. The rest follows from the job's secret, so that nobody else can foresee it and listen there first.
fn whole_name(secret: &Secret, name: &str) -> String {
    let told = FdPassing::told(name);
    format!("{told}-{}", &secret.key_for(told)[..32])
}

/// Listens under a name that no other process of this host has.
fn bind(secret: &Secret) -> io::Result<(String, UnixListener)> {
    loop {
        let mut told = String::from("phalanx-");
        for byte in random::<3>().map_err(io::Error::other)? {
            write!(told, "{byte:02x}").expect("strings take everything");
        }
        let name = whole_name(secret, &told);
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
            Ok(listener) => return Ok((name, listener)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

impl FdPassing {
    /// Listens under a name that nobody could have foreseen.
    pub(crate) fn open(secret: &Secret) -> io::Result<Self> {
        let (name, listener) = bind(secret)?;
        listener.set_nonblocking(true)?;
        let accept_queue = AcceptQueue::new(listener, &[Purpose::Memory]);
        Ok(Self { name, accept_queue, incoming: Vec::new(), outgoing: Vec::new() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As much of a name as others must be told.
    pub(crate) fn told(name: &str) -> &str {
        name.get(..TOLD_LEN).unwrap_or(name)
    }

    /// Adds what to poll for; returns when to look again anyway, at the latest `until`.
    pub(crate) fn waits_for<'d>(
        &'d self,
        fds: &mut Vec<PollFd<'d>>,
        now: Instant,
        until: Instant,
    ) -> Instant {
        self.accept_queue.poll_fds(fds, now);
        let mut until = self.accept_queue.until(now).map_or(until, |at| at.min(until));
        for incoming in &self.incoming {
            fds.push(PollFd::new(incoming.connection.stream(), PollFlags::IN));
        }
        for outgoing in &self.outgoing {
            let (waits_for, at) = outgoing.waits_for(now);
            fds.extend(waits_for);
            until = until.min(at);
        }
        until
    }

    /// Does what can be done now: takes memory for `service`, and passes `offers` to others.
    pub(crate) fn advance<S: Service>(
        &mut self,
        secret: &Secret,
        service: &mut S,
        offers: Vec<FdOffer>,
        now: Instant,
    ) {
        self.accept_queue.accept(secret, &mut random, now);
        let incoming = &mut self.incoming;
        self.accept_queue.greet(service, now, |_, hello, connection| {
            if incoming.len() == INCOMING_MAX {
                tracing::warn!("a caller that passed no memory for long was dropped");
                incoming.remove(0);
            }
            incoming.push(IncomingFd { hello, connection });
        });
        self.incoming.retain_mut(|incoming| take(incoming, service));
        self.outgoing.extend(offers.into_iter().map(|offer| OutgoingFd::new(offer, secret, now)));
        self.outgoing.retain_mut(|outgoing| match outgoing.advance(secret, now) {
            None => true,
            Some(outcome) => {
                // Whoever offered it may wait no longer.
                let _ = outgoing.offer.outcome.send(outcome);
                false
            }
        });
    }
}

/// Takes what a caller passes; whether it is still awaited.
fn take<S: Service>(incoming: &mut IncomingFd, service: &mut S) -> bool {
    let rank = incoming.hello.rank;
    match fd_message::recv(incoming.connection.stream()) {
        Ok((seq, memory)) => {
            if service.memory(&incoming.hello, seq, memory) {
                // A sender that is gone needs no answer.
                let _ = incoming.connection.writer.write(&[1]);
            } else {
                tracing::warn!(rank, seq, "memory that nobody wants was dropped");
            }
            false
        }
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => true,
        Err(error) => {
            tracing::warn!(rank, %error, "a caller that was to pass memory was dropped");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, Outbox, SessionId};
    use phalanx_core::{Deadline, WORLD};
    use rustix::io::Errno;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[derive(Default)]
    struct Takes(usize);

    impl Service for Takes {
        fn admit(&mut self, _hello: &Hello) -> Admission {
            Admission::Link
        }

        fn memory(&mut self, _hello: &Hello, _seq: u64, _memory: OwnedFd) -> bool {
            self.0 += 1;
            true
        }

        fn message(&mut self, _session: SessionId, _message: &[u8], _outbox: &mut Outbox) {}

        fn closed(&mut self, _session: SessionId, _outbox: &mut Outbox) {}
    }

    #[test]
    fn sender_and_receiver_may_be_stopped_for_as_long_as_the_offer_has_time() {
        pass_with_pauses(Duration::from_secs(60), Duration::from_secs(60));
    }

    #[test]
    fn an_offer_may_have_more_time_than_clocks() {
        pass_with_pauses(Duration::MAX, Duration::from_secs(60));
    }

    /// An offer that has time until `limit`, of which either end lets a third of `time` pass.
    fn pass_with_pauses(limit: Duration, time: Duration) {
        let secret = Secret::generate().unwrap();
        let (mut sender, mut receiver, mut service) =
            (FdPassing::open(&secret).unwrap(), FdPassing::open(&secret).unwrap(), Takes(0));
        let start = Instant::now();
        let (outcome, ended) = channel();
        let offer = FdOffer {
            name: receiver.name().to_owned(),
            hello: Hello { purpose: Purpose::Memory, rank: 1, called: 0, world_size: 2, group: WORLD },
            seq: 0,
            memory: Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
            deadline: Deadline::after(start, limit),
            outcome,
        };
        sender.advance(&secret, &mut service, vec![offer], start);
        for _ in 0..10_000 {
            receiver.advance(&secret, &mut service, Vec::new(), start);
            if !receiver.incoming.is_empty() {
                break;
            }
            sender.advance(&secret, &mut service, Vec::new(), start);
        }
        assert!(!receiver.incoming.is_empty(), "it was not let in");
        // Here the sender is stopped: the descriptor does not come.
        let later = start + time / 3;
        receiver.advance(&secret, &mut service, Vec::new(), later);
        // Here the receiver: nobody says that it has come.
        for now in [later, start + time * 2 / 3] {
            sender.advance(&secret, &mut service, Vec::new(), now);
            assert!(sender.waits_for(&mut Vec::new(), now, now + time) > now);
        }
        assert_eq!(ended.try_recv().ok(), None, "given up");
        receiver.advance(&secret, &mut service, Vec::new(), later);
        sender.advance(&secret, &mut service, Vec::new(), start + time * 2 / 3);
        assert_eq!((ended.try_recv(), service.0), (Ok(Ok(())), 1));
    }

    #[test]
    fn who_has_no_descriptor_left_tries_no_more() {
        for (errno, is_final) in [(Errno::MFILE, true), (Errno::CONNREFUSED, true), (Errno::AGAIN, false)] {
            assert_eq!(Name::is_final(&errno.into()), is_final, "{errno}");
        }
    }
}
