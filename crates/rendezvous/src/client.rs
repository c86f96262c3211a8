//! The store over TCP, seen from a client.

use crate::Store;
use crate::protocol::{Answer, Operation, Reply, Request, encode};
use crate::store::{check, check_key, misuse, not_set};
use phalanx_core::{Deadline, Error, Result};
use phalanx_transport::handshake::Hello;
use phalanx_transport::{Secret, SessionReceiver, SessionSender, open_session};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A server that owes an answer for so long is given up. It answers everything but a wait at once.
const REPLY_TIME: Duration = Duration::from_secs(10);

/// A client of a [`TcpStoreServer`](crate::TcpStoreServer). Threads may share it: one that waits does not hold up the
/// others.
///
/// Once the server is lost, every call returns the error that said so first.
#[derive(Debug)]
pub struct TcpStore {
    sender: SessionSender,
    mail: Mutex<Mail>,
    /// A reply has come, or the receiver is free for another thread, or all is over.
    changed: Condvar,
    local: SocketAddr,
    server: String,
}

/// The replies that have come from the server, and the requests that wait for one.
#[derive(Debug)]
pub(crate) struct Mail {
    /// The receiving end; `None` while one of the waiting threads reads from it, for all of them.
    receiver: Option<SessionReceiver>,
    /// Number of the next request.
    next: u64,
    /// Requests under way, with the reply once it has come.
    open: HashMap<u64, Option<Vec<u8>>>,
    /// Why the session is of no more use.
    broken: Option<Error>,
}

impl Mail {
    pub(crate) fn new(receiver: Option<SessionReceiver>) -> Self {
        Self { receiver, next: 0, open: HashMap::new(), broken: None }
    }

    /// Makes a place for the reply to a new request.
    pub(crate) fn open(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        self.open.insert(id, None);
        id
    }

    /// Puts a reply where its request waits for it; false if it is none. The reply to a wait that was ended meanwhile is dropped.
    pub(crate) fn sort(&mut self, reply: Vec<u8>) -> bool {
        let Ok(Reply { id, .. }) = postcard::from_bytes(&reply) else { return false };
        if let Some(place) = self.open.get_mut(&id) {
            *place = Some(reply);
        }
        true
    }

    /// Ends a request; returns its reply if that has come.
    pub(crate) fn close(&mut self, id: u64) -> Option<Vec<u8>> {
        self.open.remove(&id).flatten()
    }
}

impl TcpStore {
    /// Connects to the server at `addr` (`host:port`). The server may start later: this tries again, with pauses, until it
    /// answers or the deadline passes, and resolves the name anew each time.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] with what the last try met. Rank and world size are 0 in it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Deadline;
    /// use phalanx_rendezvous::{Store, TcpStore, TcpStoreServer};
    /// use phalanx_transport::Secret;
    /// use std::time::{Duration, Instant};
    ///
    /// let secret = Secret::generate()?;
    /// let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret)?;
    /// let address = server.addr().to_string();
    /// let soon = Deadline::after(Instant::now(), Duration::from_secs(10));
    /// TcpStore::connect(&address, &secret, &soon)?.set("epoch", b"3")?;
    /// assert_eq!(TcpStore::connect(&address, &secret, &soon)?.get("epoch", &soon)?, b"3");
    ///
    /// let stranger = Secret::generate()?;
    /// let at_once = Deadline::after(Instant::now(), Duration::ZERO);
    /// assert!(TcpStore::connect(&address, &stranger, &at_once).is_err());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn connect(addr: &str, secret: &Secret, deadline: &Deadline) -> Result<Self> {
        let session = open_session(addr, secret, &Hello::store(), deadline)?;
        let local = session.local_addr()?;
        let (sender, receiver) = session.split();
        Ok(Self {
            local,
            server: addr.to_owned(),
            sender,
            mail: Mutex::new(Mail::new(Some(receiver))),
            changed: Condvar::new(),
        })
    }

    /// The address of this end of the connection: the one of this host from which packets reach the server.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use phalanx_rendezvous::{TcpStore, TcpStoreServer};
    /// # use phalanx_transport::Secret;
    /// # use std::time::{Duration, Instant};
    /// # let secret = Secret::generate()?;
    /// # let server = TcpStoreServer::start("127.0.0.1:0".parse().unwrap(), &secret)?;
    /// # let soon = Deadline::after(Instant::now(), Duration::from_secs(10));
    /// let store = TcpStore::connect(&server.addr().to_string(), &secret, &soon)?;
    /// assert_eq!(store.local_addr().ip(), server.addr().ip()); // both are on this host
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request that is answered at once, and reads its answer.
    fn ask<R>(&self, op: Operation<'_>, read: impl FnOnce(Answer<'_>) -> Option<R>) -> Result<R> {
        let id = self.mail().open();
        let reply = self.exchange(id, op, &Deadline::after(Instant::now(), REPLY_TIME))?;
        let reply = reply.ok_or_else(|| self.give_up(&mut self.mail(), self.fault(ErrorKind::TimedOut)))?;
        self.read(&reply, read)
    }

    /// Sends the request `id` and waits for its reply; `None` if there is none in time.
    fn exchange(&self, id: u64, op: Operation<'_>, deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        let reply = self.send(id, op).and_then(|()| self.receive(id, deadline));
        self.mail().close(id);
        reply
    }

    fn send(&self, id: u64, op: Operation<'_>) -> Result<()> {
        let message = encode(&Request { id, op });
        self.sender.send(&message).map_err(|error| self.give_up(&mut self.mail(), self.gone(error)))
    }

    /// Waits for the reply to `id`. Whoever finds the receiver free reads, and sorts what comes for the others.
    fn receive(&self, id: u64, deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        let mut mail = self.mail();
        loop {
            if let Some(reply) = mail.open.get_mut(&id).and_then(Option::take) {
                return Ok(Some(reply));
            }
            if let Some(error) = &mail.broken {
                return Err(error.clone());
            }
            let left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let Some(mut receiver) = mail.receiver.take() else {
                mail = self.changed.wait_timeout(mail, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            drop(mail);
            let received = receiver.recv(deadline);
            mail = self.mail();
            mail.receiver = Some(receiver);
            match received {
                Ok(Some(reply)) => {
                    if !mail.sort(reply) {
                        drop(self.give_up(&mut mail, self.fault(ErrorKind::InvalidData)));
                    }
                }
                Ok(None) => {}
                Err(error) => drop(self.give_up(&mut mail, self.gone(error))),
            }
            self.changed.notify_all();
        }
    }

    /// Ends the use of the session; returns the first reason to do so.
    fn give_up(&self, mail: &mut Mail, error: Error) -> Error {
        self.changed.notify_all();
        mail.broken.get_or_insert(error).clone()
    }

    /// Says in an error of a closed connection which connection it was, and what that means.
    fn gone(&self, error: Error) -> Error {
        match error {
            Error::Io { source, .. } => {
                let server = &self.server;
                let doing = format!(
                    "the store at {server} is gone, with rank 0 or whoever else ran it, or is cut off"
                );
                Error::Io { doing, source }
            }
            other => other,
        }
    }

    fn fault(&self, kind: ErrorKind) -> Error {
        Error::io(format!("waiting for an answer of the store at {}", self.server), kind.into())
    }

    fn read<R>(&self, reply: &[u8], read: impl FnOnce(Answer<'_>) -> Option<R>) -> Result<R> {
        match postcard::from_bytes::<Reply<'_>>(reply).map(|reply| reply.answer) {
            Ok(Answer::Refused(what)) => Err(misuse(what)),
            answer => answer.ok().and_then(read).ok_or_else(|| self.fault(ErrorKind::InvalidData)),
        }
    }
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check(key, value).map_err(misuse)?;
        self.ask(Operation::Set { key, value }, |answer| (answer == Answer::Done).then_some(()))
    }

    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        check_key(key).map_err(misuse)?;
        if deadline.has_passed(Instant::now()) {
            return self.try_get(key)?.ok_or_else(|| not_set(&[key], 1, deadline));
        }
        let id = self.mail().open();
        let Some(reply) = self.exchange(id, Operation::Get { key }, deadline)? else {
            self.send(id, Operation::Forget { key })?;
            return Err(not_set(&[key], 1, deadline));
        };
        self.read(&reply, value)?.ok_or_else(|| self.fault(ErrorKind::InvalidData))
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key).map_err(misuse)?;
        self.ask(Operation::TryGet { key }, value)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        check_key(key).map_err(misuse)?;
        self.ask(Operation::Add { key, delta }, |answer| match answer {
            Answer::Number(sum) => Some(sum),
            _ => None,
        })
    }

    fn compare_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        check(key, new).map_err(misuse)?;
        check(key, expected.unwrap_or_default()).map_err(misuse)?;
        self.ask(Operation::CompareSet { key, expected, new }, flag)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_key(key).map_err(misuse)?;
        self.ask(Operation::Delete { key }, flag)
    }
}

fn value(answer: Answer<'_>) -> Option<Option<Vec<u8>>> {
    match answer {
        Answer::Value(value) => Some(value.map(<[u8]>::to_vec)),
        _ => None,
    }
}

fn flag(answer: Answer<'_>) -> Option<bool> {
    match answer {
        Answer::Flag(flag) => Some(flag),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_transport::{Admission, Endpoint, Outbox, Service, SessionId};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A server that reports what it hears and answers everything with the same bytes, or not at all.
    struct Fake {
        heard: Sender<String>,
        says: Option<Vec<u8>>,
    }

    impl Service for Fake {
        fn admit(&mut self, _hello: &Hello) -> Admission {
            Admission::Serve
        }

        fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
            let request: Request<'_> = postcard::from_bytes(message).unwrap();
            self.heard.send(format!("{} {:?}", request.id, request.op)).unwrap();
            self.says.iter().for_each(|says| outbox.send(session, says.clone()));
        }

        fn closed(&mut self, _session: SessionId, _outbox: &mut Outbox) {}
    }

    fn within(limit: Duration) -> Deadline {
        Deadline::after(Instant::now(), limit)
    }

    fn fake(says: Option<Vec<u8>>) -> (Endpoint<Fake>, TcpStore, Receiver<String>) {
        let (heard, hears) = channel();
        let secret = Secret::generate().unwrap();
        let server =
            Endpoint::start("127.0.0.1:0".parse().unwrap(), secret.clone(), Fake { heard, says }).unwrap();
        let addr = server.addr().to_string();
        (server, TcpStore::connect(&addr, &secret, &within(Duration::from_secs(60))).unwrap(), hears)
    }

    #[test]
    fn a_wait_that_is_given_up_is_taken_back() {
        let (_server, store, heard) = fake(None);
        store.get("key", &within(Duration::from_millis(10))).unwrap_err();
        let heard: Vec<String> =
            (0..2).map(|_| heard.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert_eq!(heard, ["0 Get { key: \"key\" }", "0 Forget { key: \"key\" }"]);
        assert!(store.mail().open.is_empty());
    }

    #[test]
    fn the_reply_to_a_wait_given_up_is_nobodys() {
        let (_server, store, _heard) = fake(Some(encode(&Reply { id: 7, answer: Answer::Done })));
        let long = within(Duration::from_millis(50));
        assert!(matches!(store.get("key", &long), Err(Error::Rendezvous { .. })));
        assert!(store.mail().open.is_empty());
    }

    #[test]
    fn a_reply_that_makes_no_sense_is_an_error() {
        // Not a reply at all; and one to another question.
        for says in [vec![0xff; 20], encode(&Reply { id: 0, answer: Answer::Number(1) })] {
            let (_server, store, _heard) = fake(Some(says));
            let error = store.set("key", b"value").unwrap_err();
            assert!(
                matches!(&error, Error::Io { source, .. } if source.kind() == ErrorKind::InvalidData),
                "{error}"
            );
        }
    }
}
