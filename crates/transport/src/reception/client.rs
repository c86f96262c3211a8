//! Opening a session as a client: blocking, with one deadline.

use super::dial::pause;
use super::half_open::{Failure, HalfOpen, Progress};
use super::{HANDSHAKE_TIME, Session};
use crate::handshake::{Dialer, Hello, Refusal};
use crate::secret::random;
use crate::{Secret, bell, socket};
use phalanx_core::{Deadline, Error, Result};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Opens a session with the server at `addr` (`host:port`), trying until it answers or `deadline` passes. The name is
/// resolved anew for each try.
///
/// # Errors
/// [`Error::Rendezvous`] with what the last try met: nobody there, a stranger, another secret, or a refusal.
pub fn open_session(addr: &str, secret: &Secret, hello: &Hello, deadline: &Deadline) -> Result<Session> {
    let mut tries = 0;
    let mut last = None;
    loop {
        let now = Instant::now();
        let until = now + HANDSHAKE_TIME.min(deadline.remaining(now));
        let met = match try_session(addr, secret, hello, until) {
            Ok(session) => return Ok(session),
            Err(met) => met,
        };
        let final_word = matches!(
            &met,
            Failure::Refused(Refusal::Status(_) | Refusal::Version(_) | Refusal::Encryption { .. })
        );
        if final_word || deadline.has_passed(Instant::now()) {
            // A try that the deadline cut short says less than the one before it.
            let cut_short = matches!(&met, Failure::Io(error) if error.kind() == ErrorKind::TimedOut);
            let met = last.filter(|_| cut_short).unwrap_or(met);
            return Err(Error::Rendezvous {
                rank: hello.rank as usize,
                world_size: hello.world_size as usize,
                what: format!("{addr}: {met}"),
                waited: deadline.elapsed(Instant::now()),
            });
        }
        tries += 1;
        last = Some(met);
        std::thread::sleep(pause(tries).min(deadline.remaining(Instant::now())));
    }
}

fn try_session(addr: &str, secret: &Secret, hello: &Hello, until: Instant) -> Result<Session, Failure> {
    use std::net::ToSocketAddrs;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for target in addr.to_socket_addrs().map_err(Failure::Io)? {
        // Not none, which is refused: who is late may still try once.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let stream = match TcpStream::connect_timeout(&target, left) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        socket::prepare(&stream).map_err(Failure::Io)?;
        let nonce = random().map_err(|e| Failure::Io(io::Error::other(e)))?;
        let (dialer, first) = Dialer::new(secret.clone(), *hello, nonce);
        let mut half = HalfOpen::dialled(stream, dialer, first, until);
        loop {
            match half.advance() {
                Progress::Done => {
                    half.stream.set_nonblocking(false).map_err(Failure::Io)?;
                    return Ok(Session::new(half.into_connection(), target));
                }
                Progress::Failed(why) => return Err(why),
                Progress::Pending | Progress::Proved(_) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Io(ErrorKind::TimedOut.into()));
            }
            bell::sleep(&mut [half.poll_fd()], left);
        }
    }
    Err(Failure::Io(last))
}
