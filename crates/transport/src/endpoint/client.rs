//! Opening a session as a client: blocking, with one deadline.

use super::dial::pause;
use super::handshake_io::{Failure, Handshaking, Progress};
use super::limits::HANDSHAKE_TIME;
use super::session::Session;
use crate::handshake::{Dialer, Hello, Refusal, Status};
use crate::secret::random;
use crate::{Secret, resources, self_pipe, socket};
use phalanx_core::{Deadline, Error, Result};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long this process may have no descriptor for a session before that is an error: others may give some back.
const STARVED_TIME: Duration = Duration::from_secs(1);

/// Opens a session with the server at `addr` (`host:port`), trying until it answers or `deadline` passes. The name is
/// resolved anew for each try.
///
/// # Errors
/// [`Error::Rendezvous`] with what the last try met: nobody there, a stranger, another secret, or a refusal. [`Error::Io`], after a second, if this
/// process has no descriptor for it.
pub fn open_session(addr: &str, secret: &Secret, hello: &Hello, deadline: &Deadline) -> Result<Session> {
    open(addr, secret, hello, deadline, |_| false).map_err(|met| not_opened(addr, hello, deadline, met))
}

/// As [`open_session`], to a server that began to listen before this process was started: when it does not listen, it has ended, and is
/// not waited for.
///
/// # Errors
/// [`Error::Io`] of kind [`ConnectionRefused`](ErrorKind::ConnectionRefused), at once, if nobody listens there; else as [`open_session`].
pub fn open_session_if_listening(
    addr: &str,
    secret: &Secret,
    hello: &Hello,
    deadline: &Deadline,
) -> Result<Session> {
    open(addr, secret, hello, deadline, is_refused).map_err(|met| match met {
        Failure::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
            Error::io(format!("connecting to {addr}"), error)
        }
        met => not_opened(addr, hello, deadline, met),
    })
}

/// Why no session was opened.
#[derive(Debug)]
pub struct NoSession {
    /// The addresses that were tried, and what the last try met: nobody there, a stranger, another secret, or a refusal.
    pub what: String,
    /// The refusal of a process that knows the secret, if there was one.
    pub refusal: Option<Status>,
    /// Whether another try would meet the same.
    pub is_final: bool,
    /// Whether the other end broke off the handshake, as one does that has another secret.
    pub is_stranger: bool,
    /// The error, if this process lacks what it needs to try: that says nothing of the other end.
    pub own: Option<Error>,
}

/// As [`open_session`], for who can do something about a failure.
///
/// # Errors
/// See [`NoSession`].
pub fn try_to_open_session(
    addr: &str,
    secret: &Secret,
    hello: &Hello,
    deadline: &Deadline,
) -> Result<Session, NoSession> {
    open(addr, secret, hello, deadline, |_| false).map_err(|met| NoSession {
        what: format!("{addr}: {met}"),
        refusal: if let Failure::Refused(Refusal::Status(status)) = &met { Some(*status) } else { None },
        is_final: is_final_word(&met),
        is_stranger: is_stranger(&met),
        own: own_lack(addr, met),
    })
}

/// A peer that said so will say so again.
pub(crate) fn is_final_word(met: &Failure) -> bool {
    matches!(met, Failure::Refused(Refusal::Status(_) | Refusal::Version(_) | Refusal::Encryption { .. }))
}

/// Whether the other end is of another job, or does not speak phalanx.
fn is_stranger(met: &Failure) -> bool {
    match met {
        Failure::Refused(refusal) => matches!(refusal, Refusal::WrongSecret | Refusal::NotPhalanx),
        Failure::Io(error) => matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
    }
}

/// Whether nobody listens there.
fn is_refused(met: &Failure) -> bool {
    matches!(met, Failure::Io(error) if error.kind() == ErrorKind::ConnectionRefused)
}

fn lacks_descriptors(met: &Failure) -> bool {
    matches!(met, Failure::Io(error) if resources::are_descriptors_exhausted(error))
}

/// The error where what this process lacks is what it met.
fn own_lack(addr: &str, met: Failure) -> Option<Error> {
    match met {
        Failure::Io(error) if resources::are_descriptors_exhausted(&error) => {
            Some(Error::io(format!("connecting to {addr}"), error))
        }
        _ => None,
    }
}

fn not_opened(addr: &str, hello: &Hello, deadline: &Deadline, met: Failure) -> Error {
    let what = format!("{addr}: {met}");
    own_lack(addr, met).unwrap_or_else(|| Error::Rendezvous {
        rank: hello.rank as usize,
        world_size: hello.world_size as usize,
        what,
        waited: deadline.elapsed(Instant::now()),
    })
}

fn open(
    addr: &str,
    secret: &Secret,
    hello: &Hello,
    deadline: &Deadline,
    is_final: impl Fn(&Failure) -> bool,
) -> Result<Session, Failure> {
    let mut tries = 0;
    let (mut last, mut starved) = (None, None);
    loop {
        let now = Instant::now();
        let until = now + HANDSHAKE_TIME.min(deadline.remaining(now));
        let tried = resolve(addr).and_then(|targets| try_session(&targets, secret, hello, until));
        let met = match tried {
            Ok(session) => return Ok(session),
            Err(met) => met,
        };
        if is_final_word(&met) || is_final(&met) || deadline.has_passed(Instant::now()) {
            // A try that the deadline cut short says less than the one before it.
            let cut_short = matches!(&met, Failure::Io(error) if error.kind() == ErrorKind::TimedOut);
            return Err(last.filter(|_| cut_short).unwrap_or(met));
        }
        if !lacks_descriptors(&met) {
            starved = None;
        } else if now.saturating_duration_since(*starved.get_or_insert(now)) >= STARVED_TIME {
            return Err(met);
        }
        tries += 1;
        last = Some(met);
        std::thread::sleep(pause(tries, &mut random).min(deadline.remaining(Instant::now())));
    }
}

fn resolve(addr: &str) -> Result<Vec<SocketAddr>, Failure> {
    addr.to_socket_addrs().map(Iterator::collect).map_err(Failure::Io)
}

/// Tries all addresses in turn. Each has its share of the time that is left: one where packets are lost, or something else
/// listens, must not keep the next from being tried.
fn try_session(
    targets: &[SocketAddr],
    secret: &Secret,
    hello: &Hello,
    until: Instant,
) -> Result<Session, Failure> {
    let mut last = Failure::Io(io::Error::new(ErrorKind::NotFound, "the name has no address"));
    for (i, &target) in targets.iter().enumerate() {
        let now = Instant::now();
        let share = until.saturating_duration_since(now) / (targets.len() - i) as u32;
        match try_address(target, secret, hello, now + share) {
            Ok(session) => return Ok(session),
            // Only who knows the secret says so.
            Err(why @ Failure::Refused(Refusal::Status(_))) => return Err(why),
            // Who answered says more than who did not.
            Err(Failure::Io(_)) if matches!(last, Failure::Refused(_)) => {}
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn try_address(
    target: SocketAddr,
    secret: &Secret,
    hello: &Hello,
    until: Instant,
) -> Result<Session, Failure> {
    // Not none, which is refused: who is late may still try once.
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&target, left).map_err(Failure::Io)?;
    socket::prepare(&stream).map_err(Failure::Io)?;
    socket::tune_session(&stream);
    let nonce = random().map_err(|e| Failure::Io(io::Error::other(e)))?;
    let (dialer, first) = Dialer::new(secret.clone(), *hello, nonce);
    let mut half = Handshaking::dialled(stream, dialer, first, until);
    loop {
        match half.advance() {
            Progress::Done => return Ok(Session::new(half.into_connection(), target)),
            Progress::Failed(why) => return Err(why),
            Progress::Pending | Progress::Proved(_) => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Io(ErrorKind::TimedOut.into()));
        }
        self_pipe::sleep(&mut [half.poll_fd()], left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, Endpoint, Outbox, Service, SessionId};
    use std::net::TcpListener;

    struct Server;

    impl Service for Server {
        fn admit(&mut self, _hello: &Hello) -> Admission {
            Admission::Serve
        }

        fn message(&mut self, _session: SessionId, _message: &[u8], _outbox: &mut Outbox) {}

        fn closed(&mut self, _session: SessionId, _outbox: &mut Outbox) {}
    }

    #[test]
    fn an_address_that_is_of_no_use_keeps_nobody_from_the_next() {
        let secret = Secret::generate().unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Endpoint::start(local, secret.clone(), Server).unwrap();
        // One that never answers, as if packets were lost; one that speaks something else; one where nobody listens.
        let mute = TcpListener::bind(local).unwrap();
        let other = TcpListener::bind(local).unwrap();
        let nobody = TcpListener::bind(local).unwrap().local_addr().unwrap();
        let (mute, another) =
            (mute.local_addr().map(|addr| (mute, addr)).unwrap(), other.local_addr().unwrap());
        std::thread::spawn(move || {
            use std::io::Write;
            other.incoming().for_each(|caller| drop(caller.unwrap().write_all(&[b'!'; 40])));
        });
        let reach = |targets: &[SocketAddr], seconds| {
            let until = Instant::now() + Duration::from_secs(seconds);
            try_session(targets, &secret, &Hello::store(), until)
        };
        for useless in [mute.1, another, nobody] {
            // Its share of the time is half.
            let session = reach(&[useless, server.addr()], 2).unwrap();
            assert_eq!(session.peer_addr(), server.addr());
        }
        let why = reach(&[another, nobody], 20).unwrap_err().to_string();
        assert!(why.contains("does not speak phalanx"), "{why}");
    }
}
