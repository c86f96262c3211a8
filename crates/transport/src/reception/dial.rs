//! Connections that this side makes, without blocking: tried again until they stand or their time is over.

use super::HANDSHAKE_TIME;
use super::half_open::{Failure, HalfOpen, Progress};
use super::service::Dial;
use crate::handshake::Dialer;
use crate::secret::random;
use crate::{Secret, socket};
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A dial and where it stands.
pub(super) struct Dialling {
    pub(super) dial: Dial,
    tries: u32,
    state: DialState,
}

enum DialState {
    /// Not before this moment.
    Waiting(Instant),
    Connecting(TcpStream, Instant),
    Shaking(HalfOpen),
}

impl Dialling {
    pub(super) fn new(dial: Dial, now: Instant) -> Self {
        Self { dial, tries: 0, state: DialState::Waiting(now) }
    }

    /// What to poll for, and when to look again anyway.
    pub(super) fn waits_for(&self) -> (Option<PollFd<'_>>, Instant) {
        match &self.state {
            DialState::Waiting(at) => (None, *at),
            DialState::Connecting(stream, at) => (Some(PollFd::new(stream, PollFlags::OUT)), *at),
            DialState::Shaking(half) => (Some(half.poll_fd()), half.until),
        }
    }

    /// One step: `Some` when the link stands, an error when it never will.
    pub(super) fn advance(&mut self, secret: &Secret, now: Instant) -> Result<Option<TcpStream>, Failure> {
        loop {
            let failure = match &mut self.state {
                DialState::Waiting(at) if *at > now => return Ok(None),
                DialState::Waiting(_) => match socket::connect(self.dial.addr) {
                    Ok(stream) => {
                        self.state = DialState::Connecting(stream, now + HANDSHAKE_TIME);
                        continue;
                    }
                    Err(error) => Failure::Io(error),
                },
                DialState::Connecting(stream, until) => match socket::connected(stream) {
                    Ok(true) => match self.shake(secret, now) {
                        Ok(()) => continue,
                        Err(error) => Failure::Io(error),
                    },
                    Ok(false) if *until > now => return Ok(None),
                    Ok(false) => Failure::Io(ErrorKind::TimedOut.into()),
                    Err(error) => Failure::Io(error),
                },
                DialState::Shaking(half) => match half.advance() {
                    Progress::Pending if half.until > now => return Ok(None),
                    Progress::Pending => Failure::Io(ErrorKind::TimedOut.into()),
                    Progress::Done => return half.stream.try_clone().map(Some).map_err(Failure::Io),
                    Progress::Failed(Failure::Refused(why)) => return Err(Failure::Refused(why)),
                    Progress::Failed(why) => why,
                    Progress::Proved(_) => unreachable!("dialers are not asked to admit anybody"),
                },
            };
            if self.dial.deadline.has_passed(now) {
                return Err(failure);
            }
            self.tries += 1;
            self.state = DialState::Waiting(now + pause(self.tries));
            return Ok(None);
        }
    }

    fn shake(&mut self, secret: &Secret, now: Instant) -> io::Result<()> {
        let nonce = random().map_err(io::Error::other)?;
        let (dialer, first) = Dialer::new(secret.clone(), self.dial.hello, nonce);
        let DialState::Connecting(stream, _) = &self.state else {
            unreachable!("only a connected dial shakes hands")
        };
        let stream = stream.try_clone()?;
        self.state = DialState::Shaking(HalfOpen::dialled(stream, dialer, first, now + HANDSHAKE_TIME));
        Ok(())
    }
}

/// The pause before try number `tries`: doubling from 5 ms to 250 ms, with a random part so that ranks that failed
/// together do not come again together.
pub(super) fn pause(tries: u32) -> Duration {
    let full = (5u64 << tries.min(6)).min(250);
    let jitter = random::<1>().map_or(0, |[byte]| u64::from(byte));
    Duration::from_millis(full / 2 + full * jitter / 510)
}
