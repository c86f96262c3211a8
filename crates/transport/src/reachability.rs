//! Whether the network between this rank and a peer still stands: whoever has waited for long asks.
//!
//! No option of the link itself can tell. While data is unacknowledged or the peer takes none, keepalive is off, and
//! `TCP_USER_TIMEOUT` also ends links to a peer that only computes and reads nothing. So another connection is tried to where the peer
//! listens. That its system answers is enough, and it answers while the process computes or is stopped: that is for
//! heartbeats to find.

use crate::host_probe::answer;
use crate::{resources, socket};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A waiting rank looks at least so often.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How often another connection is tried: the system tries each again after pauses that double, and would notice late that a cut has healed.
const TRY_INTERVAL: Duration = Duration::from_secs(1);
/// Connections that are tried at a time.
const TRIES_MAX: usize = 8;

/// The way to one peer. Time is an argument.
#[derive(Debug, Default)]
pub(crate) struct Reachability(Option<Waiting>);

/// The state of a link for which somebody waits.
#[derive(Debug)]
struct Waiting {
    /// When it began, or the path last stood.
    since: Instant,
    looked: Instant,
    /// Since when the peer's system is asked, and the connections being tried, each since when.
    asked: Option<Instant>,
    attempts: Vec<(Instant, TcpStream)>,
}

impl Waiting {
    fn new(now: Instant) -> Self {
        Self { since: now, looked: now, asked: None, attempts: Vec::new() }
    }
}

impl Reachability {
    /// Bytes have moved: it stands.
    pub(crate) fn stands(&mut self) {
        self.0 = None;
    }

    /// For whoever waits and nothing moves, again and again. After half of `limit` it asks at `addr`.
    ///
    /// # Errors
    /// Nothing has answered for as long as `limit`; says so.
    pub(crate) fn look(&mut self, addr: SocketAddr, limit: Duration, now: Instant) -> Result<(), String> {
        self.look_by(|| socket::connect(addr), addr, limit, now)
    }

    fn look_by(
        &mut self,
        connect: impl FnOnce() -> io::Result<TcpStream>,
        addr: SocketAddr,
        limit: Duration,
        now: Instant,
    ) -> Result<(), String> {
        let waiting = self.0.get_or_insert_with(|| Waiting::new(now));
        if now.saturating_duration_since(waiting.looked) > limit / 2 + LOOK_INTERVAL {
            // Nobody waited in between.
            *waiting = Waiting::new(now);
        }
        waiting.looked = now;
        if now.saturating_duration_since(waiting.since) < limit / 2 {
            return Ok(());
        }
        let asked = *waiting.asked.get_or_insert(now);
        let latest = waiting.attempts.last().map(|(at, _)| now.saturating_duration_since(*at));
        if latest.is_none_or(|since| since >= TRY_INTERVAL) {
            match connect() {
                Err(error) if resources::are_exhausted(&error) => {
                    // Who cannot ask learns nothing.
                    tracing::warn!(%addr, %error, "this rank cannot see whether the network to a peer still stands");
                    *waiting = Waiting::new(now);
                    return Ok(());
                }
                Err(_) => {}
                Ok(attempt) => {
                    if waiting.attempts.len() == TRIES_MAX {
                        waiting.attempts.remove(0);
                    }
                    waiting.attempts.push((now, attempt));
                }
            }
        }
        let answers: Vec<_> = waiting.attempts.iter().map(|(_, attempt)| answer(attempt)).collect();
        if answers.contains(&Some(true)) {
            *waiting = Waiting::new(now);
        } else {
            let mut answers = answers.into_iter();
            waiting.attempts.retain(|_| answers.next() == Some(None));
        }
        if waiting.asked.is_some() && now.saturating_duration_since(asked) >= limit {
            return Err(format!("nothing has answered at {addr} for {} s", limit.as_secs_f64()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Looks twice a second of made-up time; returns when it gave up.
    fn gives_up(path: &mut Reachability, addr: SocketAddr, seconds: u32) -> Option<Duration> {
        let start = Instant::now();
        (0..2 * seconds).map(|i| i * Duration::from_millis(500)).find(|&after| {
            // Real time for the system to answer in.
            std::thread::sleep(Duration::from_millis(1));
            path.look(addr, LIMIT, start + after).is_err()
        })
    }

    /// A listener whose queue is full takes no notice of whoever comes: as if the cable were cut.
    #[cfg(target_os = "linux")]
    fn deaf() -> (TcpListener, Vec<TcpStream>) {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let listener = TcpListener::from(socket);
        let addr = listener.local_addr().unwrap();
        let waiting = (0..3).map(|_| socket::connect(addr).unwrap()).collect();
        (listener, waiting)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_path_on_which_nothing_answers_is_given_up_in_time() {
        let (listener, _waiting) = deaf();
        let addr = listener.local_addr().unwrap();
        assert_eq!(gives_up(&mut Reachability::default(), addr, 60), Some(LIMIT * 3 / 2));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_in_which_nobody_waits_does_not_count() {
        let (listener, _waiting) = deaf();
        let (mut path, mut now) = (Reachability::default(), Instant::now());
        for _ in 0..20 {
            path.look(listener.local_addr().unwrap(), LIMIT, now).expect("nobody has waited for long");
            now += LIMIT;
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_path_that_carries_bytes_stands() {
        let (listener, _waiting) = deaf();
        let (mut path, mut now) = (Reachability::default(), Instant::now());
        for _ in 0..100 {
            path.look(listener.local_addr().unwrap(), LIMIT, now).expect("something came lately");
            now += LIMIT / 8;
            path.stands();
        }
    }

    #[test]
    fn who_cannot_ask_blames_nobody() {
        use rustix::io::Errno;
        let (mut path, mut now) = (Reachability::default(), Instant::now());
        let addr = SocketAddr::from(([192, 0, 2, 1], 1));
        for _ in 0..100 {
            path.look_by(|| Err(Errno::MFILE.into()), addr, LIMIT, now).expect("no descriptor is left here");
            now += LIMIT / 4;
        }
        let mut cut = || {
            now += LIMIT / 4;
            path.look_by(|| Err(Errno::HOSTUNREACH.into()), addr, LIMIT, now)
        };
        assert!((0..100).any(|_| cut().is_err()), "the network is cut");
    }

    #[test]
    fn a_system_that_answers_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // Nobody accepts: a process that computes, or is stopped.
        assert_eq!(gives_up(&mut Reachability::default(), addr, 600), None);
        drop(listener);
        // Nobody listens, and the system says so.
        assert_eq!(gives_up(&mut Reachability::default(), addr, 600), None);
    }
}
