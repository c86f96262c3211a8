//! The server of the store over TCP, which the launcher or rank 0 runs.

use crate::protocol::StoreCore;
use phalanx_core::{Deadline, Result};
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::{Admission, Endpoint, Outbox, Secret, Service, SessionId, Strangers};
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How often it is looked whether clients have left.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The server of [`TcpStore`](crate::TcpStore). It serves on a thread of its own until it is dropped; the drop closes all sessions and joins
/// the thread. Who doesn't know the secret gets no further than the handshake.
///
/// ```
/// use phalanx_core::Deadline;
/// use phalanx_rendezvous::{Store, TcpStore, TcpStoreServer};
/// use phalanx_transport::Secret;
/// use std::time::{Duration, Instant};
///
/// let secret = Secret::generate()?;
/// let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret)?;
/// let deadline = Deadline::after(Instant::now(), Duration::from_secs(10));
/// let store = TcpStore::connect(&server.addr().to_string(), &secret, &deadline)?;
/// assert_eq!(store.add("ranks here", 1)?, 1);
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TcpStoreServer {
    endpoint: Endpoint<Server>,
}

impl TcpStoreServer {
    /// Listens on exactly `bind`; port 0 takes any free port.
    ///
    /// # Errors
    /// [`Error::Io`](phalanx_core::Error::Io) if the port is taken, the address is not this host's, or the process has no descriptors left.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::TcpStoreServer;
    /// use phalanx_transport::Secret;
    ///
    /// let secret = Secret::generate()?;
    /// let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret)?;
    /// let taken = TcpStoreServer::start(server.addr(), &secret);
    /// assert!(taken.unwrap_err().to_string().contains(&server.addr().to_string()));
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn start(bind: SocketAddr, secret: &Secret) -> Result<Self> {
        Ok(Self { endpoint: Endpoint::start(bind, secret.clone(), Server::default())? })
    }

    /// The address at which it listens; the port is the real one.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_rendezvous::TcpStoreServer;
    /// # use phalanx_transport::Secret;
    /// let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &Secret::generate()?)?;
    /// assert_ne!(server.addr().port(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn addr(&self) -> SocketAddr {
        self.endpoint.addr()
    }

    /// Callers so far that did not know the secret.
    #[doc(hidden)]
    pub fn strangers(&self) -> Strangers {
        self.endpoint.strangers()
    }

    /// Waits until at most `stay` clients are connected, or the deadline passes.
    #[doc(hidden)]
    pub fn wait_until_left(&self, stay: usize, deadline: &Deadline) {
        loop {
            let (answer, clients) = channel();
            // A receiver that waits no longer needs no answer.
            self.endpoint.call(move |server, _| {
                let _ = answer.send(server.clients);
            });
            let left = deadline.remaining(Instant::now());
            match clients.recv_timeout(left) {
                Ok(clients) if clients > stay && !left.is_zero() => {
                    std::thread::sleep(LOOK_INTERVAL.min(left));
                }
                _ => return,
            }
        }
    }
}

#[derive(Debug, Default)]
struct Server {
    core: StoreCore,
    clients: usize,
}

impl Service for Server {
    fn admit(&mut self, hello: &Hello) -> Admission {
        match hello.purpose {
            Purpose::Store => Admission::Serve,
            _ => Admission::Refuse(Status::Unwanted),
        }
    }

    fn opened(&mut self, _session: SessionId, _hello: &Hello, _outbox: &mut Outbox) {
        self.clients += 1;
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        match self.core.handle(session, message) {
            Ok(replies) => replies.into_iter().for_each(|(to, reply)| outbox.send(to, reply)),
            Err(error) => tracing::warn!(session, %error, "a store client sent what is no request"),
        }
    }

    fn closed(&mut self, session: SessionId, _outbox: &mut Outbox) {
        self.clients = self.clients.saturating_sub(1);
        self.core.closed(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Operation, Request, encode};
    use phalanx_transport::open_session;

    /// Waits until so many requests wait at the server.
    fn wait_until_waiting(server: &TcpStoreServer, expected: usize) {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        loop {
            let (answer, waiting) = channel();
            server.endpoint.call(move |server, _| answer.send(server.core.waiting()).unwrap());
            let waiting = waiting.recv().unwrap();
            if waiting == expected {
                return;
            }
            assert!(!deadline.has_passed(Instant::now()), "{waiting} wait, not {expected}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn clients_are_waited_for_until_they_leave_or_time_is_over() {
        let secret = Secret::generate().unwrap();
        let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret).unwrap();
        let within = |limit| Deadline::after(Instant::now(), limit);
        let long = Duration::from_secs(60);
        let connect =
            || open_session(&server.addr().to_string(), &secret, &Hello::store(), &within(long)).unwrap();
        let (_stays, leaves) = (connect(), connect());
        let began = Instant::now();
        server.wait_until_left(1, &within(Duration::from_millis(100)));
        assert!(began.elapsed() >= Duration::from_millis(100));
        let leaving = std::thread::spawn(move || drop(leaves));
        server.wait_until_left(1, &within(long));
        leaving.join().unwrap();
        assert!(began.elapsed() < long, "it left");
    }

    #[test]
    fn a_client_that_leaves_while_it_waits_is_forgotten() {
        let secret = Secret::generate().unwrap();
        let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret).unwrap();
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        let connect =
            || open_session(&server.addr().to_string(), &secret, &Hello::store(), &deadline).unwrap();
        let (leaves, stays) = (connect(), connect());
        for (id, key) in [(0, "a"), (1, "b")] {
            leaves.send(&encode(&Request { id, op: Operation::Get { key } })).unwrap();
        }
        stays.send(&encode(&Request { id: 0, op: Operation::Get { key: "a" } })).unwrap();
        wait_until_waiting(&server, 3);
        drop(leaves);
        wait_until_waiting(&server, 1);
    }
}
