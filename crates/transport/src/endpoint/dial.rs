//! Connections that this side makes, without blocking: tried again until they stand or their time is over.

use super::handshake_io::{Failure, Handshaking, Progress};
use super::limits::HANDSHAKE_TIME;
use crate::connection::Connection;
use crate::handshake::{Dialer, Hello, Nonces};
use crate::{Secret, socket};
use phalanx_core::Deadline;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// An address to which one can connect.
pub(crate) trait Address {
    type Stream: Read + Write;

    /// Begins to connect without waiting.
    fn connect(&self) -> io::Result<Self::Stream>;

    /// Whether a connection that was begun stands by now.
    fn connected(stream: &Self::Stream) -> io::Result<bool>;

    /// Whether no later try can go better.
    fn is_final(error: &io::Error) -> bool;
}

impl Address for SocketAddr {
    type Stream = TcpStream;

    fn connect(&self) -> io::Result<TcpStream> {
        socket::connect(*self)
    }

    fn connected(stream: &TcpStream) -> io::Result<bool> {
        socket::connected(stream)
    }

    /// Ranks listen before they tell anybody where, so where nobody listens now nobody ever will: the rank has ended.
    fn is_final(error: &io::Error) -> bool {
        error.kind() == ErrorKind::ConnectionRefused
    }
}

/// A connection to make, and where that stands.
pub(crate) struct Dialling<A: Address> {
    addr: A,
    hello: Hello,
    deadline: Deadline,
    tries: u32,
    state: DialState<A::Stream>,
}

enum DialState<S> {
    /// Not before this moment.
    Waiting(Instant),
    Connecting(S, Instant),
    Shaking(Box<Handshaking<S>>),
}

impl<A: Address> Dialling<A> {
    pub(crate) fn new(addr: A, hello: Hello, deadline: Deadline, now: Instant) -> Self {
        Self { addr, hello, deadline, tries: 0, state: DialState::Waiting(now) }
    }

    /// The descriptor to poll.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>>
    where
        A::Stream: AsFd,
    {
        match &self.state {
            DialState::Waiting(_) => None,
            DialState::Connecting(stream, _) => Some(PollFd::new(stream, PollFlags::OUT)),
            DialState::Shaking(half) => Some(half.poll_fd()),
        }
    }

    /// When to look again anyway.
    pub(crate) fn until(&self) -> Instant {
        match &self.state {
            DialState::Waiting(at) | DialState::Connecting(_, at) => *at,
            DialState::Shaking(half) => half.until,
        }
    }

    /// Makes one step. `Some` when the connection stands and both ends are sure of each other, an error when it never will.
    pub(crate) fn advance(
        &mut self,
        secret: &Secret,
        nonces: Nonces<'_>,
        now: Instant,
    ) -> Result<Option<Connection<A::Stream>>, Failure> {
        loop {
            let failure = match std::mem::replace(&mut self.state, DialState::Waiting(now)) {
                DialState::Waiting(at) if at > now => {
                    self.state = DialState::Waiting(at);
                    return Ok(None);
                }
                DialState::Waiting(_) => match self.addr.connect() {
                    Ok(stream) => {
                        self.state = DialState::Connecting(stream, self.gives_up(now));
                        continue;
                    }
                    Err(error) => Failure::Io(error),
                },
                DialState::Connecting(stream, until) => match A::connected(&stream) {
                    Ok(true) => match self.shake(stream, secret, nonces, now) {
                        Ok(half) => {
                            self.state = DialState::Shaking(Box::new(half));
                            continue;
                        }
                        Err(error) => Failure::Io(error),
                    },
                    Ok(false) if until > now => {
                        self.state = DialState::Connecting(stream, until);
                        return Ok(None);
                    }
                    Ok(false) => Failure::Io(ErrorKind::TimedOut.into()),
                    Err(error) => Failure::Io(error),
                },
                DialState::Shaking(mut half) => {
                    let progress = half.advance();
                    // The other side may let this one in at any moment, and be stopped or cut off before it can say so: who gives up
                    // now leaves it with a link that is dead.
                    if half.has_proved() {
                        half.until = half.until.max(self.deadline.until(now));
                    }
                    match progress {
                        Progress::Pending if half.until > now => {
                            self.state = DialState::Shaking(half);
                            return Ok(None);
                        }
                        Progress::Pending => Failure::Io(ErrorKind::TimedOut.into()),
                        Progress::Done => return Ok(Some(half.into_connection())),
                        Progress::Failed(Failure::Refused(why)) => return Err(Failure::Refused(why)),
                        Progress::Failed(why) => why,
                        Progress::Proved(_) => unreachable!("dialers are not asked to admit anybody"),
                    }
                }
            };
            let is_final = matches!(&failure, Failure::Io(error) if A::is_final(error));
            if is_final || self.deadline.has_passed(now) {
                return Err(failure);
            }
            self.tries += 1;
            self.state = DialState::Waiting(now + pause(self.tries, nonces));
            return Ok(None);
        }
    }

    fn shake(
        &self,
        stream: A::Stream,
        secret: &Secret,
        nonces: Nonces<'_>,
        now: Instant,
    ) -> io::Result<Handshaking<A::Stream>> {
        let nonce = nonces().map_err(io::Error::other)?;
        let (dialer, first) = Dialer::new(secret.clone(), self.hello, nonce);
        Ok(Handshaking::dialled(stream, dialer, first, self.gives_up(now)))
    }

    /// When a step that begins now is given up.
    fn gives_up(&self, now: Instant) -> Instant {
        self.deadline.until(now).min(now + HANDSHAKE_TIME)
    }
}

/// The pause before try number `tries`: doubling from 5 ms to 250 ms, with a random part so that ranks that failed
/// together do not come again together.
pub(crate) fn pause(tries: u32, nonces: Nonces<'_>) -> Duration {
    let full = (5u64 << tries.min(6)).min(250);
    let jitter = nonces().map_or(0, |nonce| u64::from(nonce[0]));
    Duration::from_millis(full / 2 + full * jitter / 510)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::{Acceptor, AcceptorStep, Purpose, Status};
    use crate::secret::random;
    use phalanx_core::WORLD;
    use std::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(15);

    /// A rank that is called, up to where it knows who calls and has not answered.
    struct Called {
        dialling: Dialling<SocketAddr>,
        secret: Secret,
        start: Instant,
        acceptor: Acceptor,
        stream: TcpStream,
        _listener: TcpListener,
    }

    impl Called {
        fn new() -> Self {
            Self::within(LIMIT)
        }

        fn within(limit: Duration) -> Self {
            let (secret, start) = (Secret::generate().unwrap(), Instant::now());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let hello = Hello { purpose: Purpose::Data, rank: 1, called: 0, world_size: 2, group: WORLD };
            let deadline = Deadline::after(start, limit);
            let mut dialling = Dialling::new(listener.local_addr().unwrap(), hello, deadline, start);
            assert!(dialling.advance(&secret, &mut random, start).unwrap().is_none());
            let stream = listener.accept().unwrap().0;
            stream.set_nonblocking(true).unwrap();
            let acceptor = Acceptor::new(secret.clone(), [7; 32]);
            let mut called = Self { dialling, secret, start, acceptor, stream, _listener: listener };
            let Ok(AcceptorStep::Send(challenge)) = called.hear() else { panic!("challenge expected") };
            called.stream.write_all(&challenge).unwrap();
            assert_eq!(called.hear(), Ok(AcceptorStep::Proved(hello)));
            called
        }

        fn hear(&mut self) -> Result<AcceptorStep, crate::handshake::Refusal> {
            let mut message = vec![0; self.acceptor.wants()];
            let mut have = 0;
            while have < message.len() {
                assert!(self.dialling.advance(&self.secret, &mut random, self.start).unwrap().is_none());
                match self.stream.read(&mut message[have..]) {
                    Ok(n) => have += n,
                    Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
                }
            }
            self.acceptor.handle(&message)
        }

        /// What the dialer has when so much time has passed, and so much again of real time.
        fn look(&mut self, after: Duration) -> Result<Option<Connection>, Failure> {
            let now = self.start + after;
            (0..100)
                .find_map(|_| {
                    std::thread::sleep(Duration::from_millis(1));
                    self.dialling.advance(&self.secret, &mut random, now).transpose()
                })
                .transpose()
        }
    }

    #[test]
    fn who_has_proved_itself_waits_for_the_verdict_of_one_that_is_stopped() {
        let mut called = Called::new();
        assert!(called.look(LIMIT * 9 / 10).unwrap().is_none());
        let verdict = called.acceptor.verdict(Status::Welcome);
        called.stream.write_all(&verdict).unwrap();
        assert!(called.look(LIMIT * 9 / 10).unwrap().is_some(), "it has given up");
    }

    #[test]
    fn one_that_says_nothing_is_given_up_when_the_time_is_over() {
        let (secret, start) = (Secret::generate().unwrap(), Instant::now());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hello = Hello { purpose: Purpose::Data, rank: 1, called: 0, world_size: 2, group: WORLD };
        let limit = HANDSHAKE_TIME / 5;
        let addr = listener.local_addr().unwrap();
        let mut dialling = Dialling::new(addr, hello, Deadline::after(start, limit), start);
        let mut look = |after| dialling.advance(&secret, &mut random, start + after);
        assert!(look(Duration::ZERO).unwrap().is_none());
        let _called = listener.accept().unwrap();
        assert!(look(limit / 2).unwrap().is_none());
        assert!(look(limit).is_err());
    }

    #[test]
    fn a_limit_may_go_further_than_clocks() {
        assert!(Called::within(Duration::MAX).look(LIMIT).unwrap().is_none());
    }

    #[test]
    fn no_longer_than_there_is_time() {
        let mut called = Called::new();
        assert!(called.look(LIMIT).is_err());
    }
}
