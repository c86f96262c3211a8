//! The queue in which callers prove themselves: a listener, and the handshakes of those who came to it.

use super::handshake_io::{Failure, Handshaking, Progress};
use super::limits::{HALF_OPEN_MAX, HANDSHAKE_TIME};
use super::service::{Admission, Service};
use crate::connection::Connection;
use crate::handshake::{Acceptor, Hello, Nonces, Purpose, Refusal, Status};
use crate::{Secret, resources, socket};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Callers of one origin get into each other's way, and into nobody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Origin(u128);

impl Origin {
    /// Processes of this host.
    #[cfg(target_os = "linux")]
    pub(crate) const HERE: Self = Self(0);

    /// A host that has one IPv6 address has 2⁶⁴ of them.
    pub(crate) fn of(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits() & (u128::MAX << 64),
        })
    }
}

/// Callers that could not come in: those that don't know the secret, of another job, or of another start of this one; and those of another build.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strangers {
    /// How often one was refused. One process may call again and again.
    pub refused: usize,
    /// The address of the last one; of an IPv6 address, the network.
    pub last: Option<IpAddr>,
    /// The wire version of the last that has another one than this build, and where it came from. It went before it could prove anything.
    pub other_version: Option<(u16, IpAddr)>,
}

/// A nonblocking listener.
pub(crate) trait Listener {
    type Stream: Read + Write;

    /// The next caller, and where it comes from.
    fn accept(&self) -> io::Result<(Self::Stream, Origin)>;

    /// Makes a fresh stream nonblocking and prompt.
    fn prepare(stream: &Self::Stream) -> io::Result<()>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<(TcpStream, Origin)> {
        Self::accept(self).map(|(stream, addr)| (stream, Origin::of(addr.ip())))
    }

    fn prepare(stream: &TcpStream) -> io::Result<()> {
        socket::prepare(stream)
    }
}

/// How long this process may be out of descriptors before those who wait for callers hear of it: others may give some back.
const STARVED_TIME: Duration = Duration::from_secs(1);
/// How often a log line says that nobody can be accepted.
const REFUSALS_INTERVAL: Duration = Duration::from_secs(5);

/// A listener, and callers in the middle of their handshakes.
#[derive(Debug)]
pub(crate) struct AcceptQueue<L: Listener> {
    listener: L,
    /// The purposes for which callers are accepted here.
    purposes: &'static [Purpose],
    /// Oldest first.
    callers: Vec<Caller<L::Stream>>,
    /// Accepting pauses until then after the system refused (out of descriptors).
    accept_after: Option<Instant>,
    /// Since when this process has had no descriptor or memory for callers, and what the system says.
    starved: Option<(Instant, String)>,
    /// Attempts to accept that the system has refused, of which no log line has told, and when the last one did.
    refusals: (usize, Option<Instant>),
    /// Strays of which no log line has told, and when the last one did.
    strays: (usize, Option<Instant>),
    /// The strangers among them that spoke our protocol.
    pub(super) strangers: Arc<Mutex<Strangers>>,
}

#[derive(Debug)]
struct Caller<S> {
    half: Handshaking<S>,
    origin: Origin,
    /// The rank that it is, once it is to come in.
    admitted: Option<Hello>,
}

impl<L: Listener> AcceptQueue<L> {
    pub(crate) fn new(listener: L, purposes: &'static [Purpose]) -> Self {
        let (starved, refusals, strays, strangers) = Default::default();
        let (callers, accept_after) = Default::default();
        Self { listener, purposes, callers, accept_after, starved, refusals, strays, strangers }
    }

    /// Adds what to poll for.
    pub(crate) fn poll_fds<'l>(&'l self, fds: &mut Vec<PollFd<'l>>, now: Instant)
    where
        L: AsFd,
        L::Stream: AsFd,
    {
        if self.pauses_until(now).is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.callers.iter().map(|caller| caller.half.poll_fd()));
    }

    /// When to look again anyway.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        let callers = self.callers.iter().map(|caller| caller.half.until);
        callers.chain(self.pauses_until(now)).min()
    }

    fn pauses_until(&self, now: Instant) -> Option<Instant> {
        self.accept_after.filter(|at| *at > now)
    }

    /// Lets new callers begin their handshakes.
    pub(crate) fn accept(&mut self, secret: &Secret, nonces: Nonces<'_>, now: Instant) {
        if self.pauses_until(now).is_some() {
            return;
        }
        // Bounded, so that a flood of callers can't keep the thread from those it has already.
        for _ in 0..64 {
            let (stream, origin) = match self.listener.accept() {
                Ok(caller) => caller,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.starved = None;
                    return;
                }
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(error) => {
                    self.cannot_accept(now, &error);
                    self.accept_after = Some(now + Duration::from_millis(50));
                    return;
                }
            };
            self.starved = None;
            let Ok(nonce) = nonces() else { return };
            if L::prepare(&stream).is_err() {
                continue;
            }
            if self.callers.len() >= HALF_OPEN_MAX {
                self.make_room(now);
            }
            let half =
                Handshaking::accepted(stream, Acceptor::new(secret.clone(), nonce), now + HANDSHAKE_TIME);
            self.callers.push(Caller { half, origin, admitted: None });
        }
    }

    /// Ends the oldest handshake of the origin that has most: a flood pushes itself out, not those who come from elsewhere. Those
    /// who come from where it comes from are done long before it is their turn.
    fn make_room(&mut self, now: Instant) {
        let mut counts: HashMap<Origin, usize> = HashMap::new();
        self.callers.iter().for_each(|caller| *counts.entry(caller.origin).or_default() += 1);
        let most = counts.values().copied().max();
        if let Some(oldest) = self.callers.iter().position(|c| counts.get(&c.origin).copied() == most) {
            self.callers.remove(oldest);
            self.stray(now, "too many handshakes at once");
        }
    }

    /// Why nobody can come in, once this process has been out of descriptors or memory for a while.
    pub(crate) fn starved(&mut self, now: Instant) -> Option<String> {
        let (since, why) = self.starved.as_ref()?;
        (now.saturating_duration_since(*since) >= STARVED_TIME).then(|| why.clone())
    }

    /// Says that the system refuses to accept, once in a while: it is tried again twenty times a second.
    fn cannot_accept(&mut self, now: Instant, error: &io::Error) {
        if resources::are_exhausted(error) {
            self.starved.get_or_insert_with(|| (now, error.to_string()));
        }
        let (count, told) = &mut self.refusals;
        *count += 1;
        if told.is_none_or(|told| now.saturating_duration_since(told) >= REFUSALS_INTERVAL) {
            tracing::warn!(%error, attempts = *count, "cannot accept connections; trying again");
            self.refusals = (0, Some(now));
        }
    }

    /// Tells of strays, in one line a second at most: a log is no place to be flooded either.
    fn stray(&mut self, now: Instant, why: impl Display) {
        let (count, told) = &mut self.strays;
        *count += 1;
        if told.is_none_or(|told| now.saturating_duration_since(told) >= Duration::from_secs(1)) {
            tracing::debug!(count, %why, "stray connections were dropped");
            self.strays = (0, Some(now));
        }
    }

    /// Advances the handshakes. The service decides who may come in; those go to `welcome` at once, so that the next
    /// decision knows of them.
    pub(crate) fn greet<C, S: Service<C>>(
        &mut self,
        service: &mut S,
        now: Instant,
        mut welcome: impl FnMut(&mut S, Hello, Connection<L::Stream>),
    ) {
        for mut caller in std::mem::take(&mut self.callers) {
            loop {
                match caller.half.advance() {
                    Progress::Pending if caller.half.until > now => self.callers.push(caller),
                    Progress::Pending => self.stray(now, "it did not finish its handshake in time"),
                    Progress::Failed(why) => {
                        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
                        let from = Ipv6Addr::from_bits(caller.origin.0).to_canonical();
                        if let Some(version) = caller.half.other_version() {
                            strangers.other_version = Some((version, from));
                        } else if let Failure::Refused(Refusal::WrongSecret) = why {
                            strangers.refused += 1;
                            strangers.last = Some(from);
                        }
                        drop(strangers);
                        self.stray(now, why);
                    }
                    // Whoever said so may have given up since.
                    Progress::Proved(_) if caller.half.until <= now => {
                        self.stray(now, "it proved itself too late");
                    }
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
                                caller.half.answer(status);
                            }
                            Admission::Serve | Admission::Link => {
                                caller.admitted = Some(hello);
                                caller.half.answer(Status::Welcome);
                            }
                        }
                        continue;
                    }
                    Progress::Done => {
                        if let Some(hello) = caller.admitted {
                            welcome(service, hello, caller.half.into_connection());
                        }
                    }
                }
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::{Dialer, DialerStep};
    use crate::secret::random;
    use crate::{Outbox, SessionId};
    use phalanx_core::WORLD;

    struct Welcoming;

    impl Service for Welcoming {
        fn admit(&mut self, _hello: &Hello) -> Admission {
            Admission::Link
        }

        fn message(&mut self, _session: SessionId, _message: &[u8], _outbox: &mut Outbox) {}

        fn closed(&mut self, _session: SessionId, _outbox: &mut Outbox) {}
    }

    /// Whether a caller comes in whose proof is looked at so long after it came.
    fn comes_in(after: Duration) -> bool {
        let secret = Secret::generate().unwrap();
        let listener = socket::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut queue = AcceptQueue::new(listener, &[Purpose::Data]);
        let hello = Hello { purpose: Purpose::Data, rank: 1, called: 0, world_size: 2, group: WORLD };
        let (mut dialer, opening) = Dialer::new(secret.clone(), hello, [7; 32]);
        caller.write_all(&opening).unwrap();
        let now = Instant::now();
        while queue.callers.is_empty() {
            queue.accept(&secret, &mut random, now);
        }
        queue.greet(&mut Welcoming, now, |_, _, _| panic!("nothing is proved"));
        let mut challenge = vec![0; dialer.wants()];
        caller.read_exact(&mut challenge).unwrap();
        let Ok(DialerStep::Send(proof)) = dialer.handle(&challenge) else { panic!("proof expected") };
        caller.write_all(&proof).unwrap();
        let mut welcome = 0;
        queue.greet(&mut Welcoming, now + after, |_, _, _| welcome += 1);
        assert!(queue.callers.is_empty(), "the proof has come");
        welcome == 1
    }

    /// A listener of a process that is out of descriptors, or is not.
    struct Refusing(TcpListener, std::cell::Cell<bool>);

    impl AsFd for Refusing {
        fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Listener for Refusing {
        type Stream = TcpStream;

        fn accept(&self) -> io::Result<(TcpStream, Origin)> {
            let errno = if self.1.get() { rustix::io::Errno::MFILE } else { rustix::io::Errno::AGAIN };
            Err(errno.into())
        }

        fn prepare(_stream: &TcpStream) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_process_without_descriptors_says_so_now_and_then_and_knows_it_after_a_while() {
        let (secret, start) = (Secret::generate().unwrap(), Instant::now());
        let listener = socket::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let mut queue = AcceptQueue::new(Refusing(listener, true.into()), &[Purpose::Data]);
        for _ in 0..10 {
            queue.accept_after = None;
            queue.accept(&secret, &mut random, start);
        }
        assert_eq!(queue.refusals.0, 9, "one line was said");
        assert_eq!(queue.starved(start), None);
        assert!(queue.starved(start + 60 * STARVED_TIME).is_some_and(|why| why.contains("open files")));
        queue.listener.1.set(false);
        queue.accept_after = None;
        queue.accept(&secret, &mut random, start);
        assert_eq!(queue.starved(start + 60 * STARVED_TIME), None, "some were given back");
    }

    #[test]
    fn who_may_have_given_up_does_not_come_in() {
        assert!(comes_in(HANDSHAKE_TIME / 2));
        assert!(!comes_in(HANDSHAKE_TIME * 2));
    }
}
