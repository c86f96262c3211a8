//! The server of the store over TCP, which the launcher or rank 0 runs.

use crate::protocol::StoreCore;
use phalanx_core::Result;
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::{Admission, Outbox, Reception, Secret, Service, SessionId};
use std::net::SocketAddr;

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
    reception: Reception<Server>,
}

impl TcpStoreServer {
    /// Listens on exactly `bind`; port 0 takes any free port.
    ///
    /// # Errors
    /// [`Error::Io`](phalanx_core::Error::Io) if the port is taken, the address is not this host's, or the process has no descriptors left.
    pub fn start(bind: SocketAddr, secret: &Secret) -> Result<Self> {
        Ok(Self { reception: Reception::start(bind, secret.clone(), Server::default())? })
    }

    /// Where it listens; the port is the real one.
    pub fn addr(&self) -> SocketAddr {
        self.reception.addr()
    }
}

#[derive(Debug, Default)]
struct Server(StoreCore);

impl Service for Server {
    fn admit(&mut self, hello: &Hello) -> Admission {
        match hello.purpose {
            Purpose::Store => Admission::Serve,
            _ => Admission::Refuse(Status::Unwanted),
        }
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        match self.0.handle(session, message) {
            Ok(replies) => replies.into_iter().for_each(|(to, reply)| outbox.send(to, reply)),
            Err(error) => tracing::warn!(session, %error, "a store client sent what is no request"),
        }
    }

    fn closed(&mut self, session: SessionId, _outbox: &mut Outbox) {
        self.0.closed(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Operation, Request, encode};
    use phalanx_core::Deadline;
    use phalanx_transport::open_session;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    /// Waits until so many requests wait at the server.
    fn wait_until_waiting(server: &TcpStoreServer, expected: usize) {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        loop {
            let (answer, waiting) = channel();
            server.reception.call(move |server, _| answer.send(server.0.waiting()).unwrap());
            let waiting = waiting.recv().unwrap();
            if waiting == expected {
                return;
            }
            assert!(!deadline.has_passed(Instant::now()), "{waiting} wait, not {expected}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_client_that_leaves_while_it_waits_is_forgotten() {
        let secret = Secret::generate().unwrap();
        let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret).unwrap();
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        let connect =
            || open_session(&server.addr().to_string(), &secret, &Hello::store(), &deadline).unwrap();
        let (mut leaves, mut stays) = (connect(), connect());
        for (id, key) in [(0, "a"), (1, "b")] {
            leaves.send(&encode(&Request { id, op: Operation::Get { key } })).unwrap();
        }
        stays.send(&encode(&Request { id: 0, op: Operation::Get { key: "a" } })).unwrap();
        wait_until_waiting(&server, 3);
        drop(leaves);
        wait_until_waiting(&server, 1);
    }
}
