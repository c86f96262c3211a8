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
use std::time::Instant;

/// Opens a session with the server at `addr` (`host:port`), trying until it answers or `deadline` passes. The name is
/// resolved anew for each try.
///
/// # Errors
/// [`Error::Rendezvous`] with what the last try met: nobody there, a stranger, another secret, or a refusal.
pub fn open_session(addr: &str, secret: &Secret, hello: &Hello, deadline: &Deadline) -> Result<Session> {
    let mut tries = 0;
    loop {
        let now = Instant::now();
        let met = match try_session(addr, secret, hello, now) {
            Ok(session) => return Ok(session),
            Err(met) => met,
        };
        let final_word = matches!(
            &met,
            Failure::Refused(Refusal::Status(_) | Refusal::Version(_) | Refusal::Encryption { .. })
        );
        if final_word || deadline.has_passed(Instant::now()) {
            return Err(Error::Rendezvous {
                rank: hello.rank as usize,
                world_size: hello.world_size as usize,
                what: format!("{addr}: {met}"),
                waited: deadline.elapsed(Instant::now()),
            });
        }
        tries += 1;
        std::thread::sleep(pause(tries).min(deadline.remaining(Instant::now())));
    }
}

fn try_session(addr: &str, secret: &Secret, hello: &Hello, now: Instant) -> Result<Session, Failure> {
    use std::net::ToSocketAddrs;
    let until = now + HANDSHAKE_TIME;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for target in addr.to_socket_addrs().map_err(Failure::Io)? {
        let stream = match TcpStream::connect_timeout(&target, HANDSHAKE_TIME) {
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
