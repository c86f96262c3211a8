//! The launcher's end of all lifelines.

use super::{Ended, FirstCause, Word, encode};
use phalanx_core::{Deadline, Result};
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::{Admission, Endpoint, Message, Outbox, Secret, Service, SessionId};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Something that the launcher hears from a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// The worker has called `init`.
    Here {
        /// Which one.
        worker: u64,
        /// The worker's process: not the one that the launcher started, if that has started it in turn. The number is that of its own name space.
        pid: u32,
    },
    /// The worker belongs to a group of all ranks.
    Formed {
        /// Which one.
        worker: u64,
        /// How many such groups the job had before.
        generation: u64,
    },
    /// The worker has heard what went wrong first.
    Failed {
        /// Which one.
        worker: u64,
        /// The generation that failed.
        generation: u64,
        /// What, and who is at fault.
        first: FirstCause,
    },
    /// The worker's `init` has failed.
    GaveUp {
        /// Which one.
        worker: u64,
        /// Why, and who is at fault: `None` where others did not come.
        first: FirstCause,
    },
}

/// The server of [`Lifeline`](super::Lifeline)s. It serves on a thread of its own until it is dropped; the drop ends every process that still has one.
///
/// # Examples
/// ```
/// use phalanx_rendezvous::LifelineServer;
/// use phalanx_transport::Secret;
///
/// let secret = Secret::generate()?;
/// let server = LifelineServer::start("127.0.0.1:0".parse().unwrap(), &secret, |heard| println!("{heard:?}"))?;
/// // Ranks are told so: PHALANX_LIFELINE=127.0.0.1:40001
/// let variable = server.addr().to_string();
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LifelineServer {
    endpoint: Endpoint<Lifelines>,
}

impl LifelineServer {
    /// Listens on exactly `bind`; port 0 takes any free port. `hear` is called on the server's thread and must not wait.
    ///
    /// # Errors
    /// [`Error::Io`](phalanx_core::Error::Io) if the port is taken, the address is not this host's, or the process has no descriptors left.
    pub fn start(
        bind: SocketAddr,
        secret: &Secret,
        hear: impl FnMut(Heard) + Send + 'static,
    ) -> Result<Self> {
        Ok(Self { endpoint: Endpoint::start(bind, secret.clone(), Lifelines::new(hear))? })
    }

    /// The address at which it listens; the port is the real one.
    pub fn addr(&self) -> SocketAddr {
        self.endpoint.addr()
    }

    /// Tells all ranks, and those that will come, that a process has ended.
    pub fn tell(&self, ended: Ended) {
        self.endpoint.call(move |lifelines, outbox| lifelines.tell(ended, outbox));
    }

    /// Ends the lifeline of a worker, and with it its process: what has started it is out of the launcher's reach.
    pub fn end(&self, worker: u64) {
        self.endpoint.call(move |lifelines, outbox| lifelines.end(worker, outbox));
    }

    /// Waits until all that ranks have said until now was heard; no longer than `limit`.
    pub fn catch_up(&self, limit: Duration) {
        let deadline = Deadline::after(Instant::now(), limit);
        // Calls are served before sessions are read: the second one comes when all that there was has been read.
        for _ in 0..2 {
            let (served, is_served) = channel();
            self.endpoint.call(move |_, _| {
                let _ = served.send(());
            });
            let _ = is_served.recv_timeout(deadline.remaining(Instant::now()));
        }
    }
}

struct Lifelines {
    hear: Box<dyn FnMut(Heard) + Send>,
    /// Workers that have to end, whenever they come.
    to_end: HashSet<u64>,
    /// The worker of each session; `None` before it has said so.
    workers: HashMap<SessionId, Option<u64>>,
    /// The launcher starts so many processes, and no more.
    ended: Vec<Ended>,
}

impl Lifelines {
    fn new(hear: impl FnMut(Heard) + Send + 'static) -> Self {
        let (to_end, workers, ended) = Default::default();
        Self { hear: Box::new(hear), to_end, workers, ended }
    }

    fn end(&mut self, worker: u64, outbox: &mut Outbox) {
        self.to_end.insert(worker);
        let its = self.workers.iter().filter(|(_, of)| **of == Some(worker));
        its.for_each(|(&session, _)| outbox.close(session));
    }

    fn tell(&mut self, ended: Ended, outbox: &mut Outbox) {
        self.ended.push(ended);
        let here = self.workers.iter().filter(|(_, worker)| worker.is_some());
        let message = Message::from(encode(&ended));
        here.for_each(|(&session, _)| outbox.send(session, message.clone()));
    }

    fn take(&mut self, session: SessionId, word: Word, outbox: &mut Outbox) {
        let known = self.workers.get(&session).copied().flatten();
        let heard = match (word, known) {
            (Word::Here { worker, .. }, None) if self.to_end.contains(&worker) => {
                return outbox.close(session);
            }
            (Word::Here { worker, pid }, None) => {
                self.workers.insert(session, Some(worker));
                self.ended.iter().for_each(|ended| outbox.send(session, encode(ended)));
                Heard::Here { worker, pid }
            }
            (Word::Formed { generation }, Some(worker)) => Heard::Formed { worker, generation },
            (Word::Failed { generation, first }, Some(worker)) => {
                Heard::Failed { worker, generation, first: first.cut() }
            }
            (Word::GaveUp { first }, Some(worker)) => Heard::GaveUp { worker, first: first.cut() },
            (word, _) => return tracing::warn!(?word, "a rank said that to its launcher at the wrong time"),
        };
        (self.hear)(heard);
    }
}

impl Service for Lifelines {
    fn admit(&mut self, hello: &Hello) -> Admission {
        match hello.purpose {
            Purpose::Lifeline => Admission::Serve,
            _ => Admission::Refuse(Status::Unwanted),
        }
    }

    fn opened(&mut self, session: SessionId, _hello: &Hello, _outbox: &mut Outbox) {
        self.workers.insert(session, None);
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        match postcard::from_bytes(message) {
            Ok(word) => self.take(session, word, outbox),
            Err(error) => tracing::warn!(session, %error, "a rank told its launcher what can't be read"),
        }
    }

    /// How a rank has ended the launcher knows from its process.
    fn closed(&mut self, session: SessionId, _outbox: &mut Outbox) {
        self.workers.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifeline::Exit;

    fn said(outbox: &mut Outbox) -> Vec<(SessionId, Ended)> {
        let messages = outbox.take_messages().into_iter();
        messages
            .map(|(session, message)| (session, postcard::from_bytes(message.content()).unwrap()))
            .collect()
    }

    #[test]
    fn who_comes_late_hears_who_has_ended() {
        let (sender, heard) = channel();
        let mut lifelines = Lifelines::new(move |word| sender.send(word).unwrap());
        let mut outbox = Outbox::default();
        let hello = Hello::lifeline(0, 4);
        lifelines.opened(1, &hello, &mut outbox);
        lifelines.opened(2, &hello, &mut outbox);
        let here = |worker| encode(&Word::Here { worker, pid: 70 });
        lifelines.message(1, &here(0), &mut outbox);
        let first = Ended { worker: 3, exit: Exit::Code(7) };
        lifelines.tell(first, &mut outbox);
        assert_eq!(said(&mut outbox), [(1, first)], "nobody knows who the other one is");
        lifelines.message(2, &here(1), &mut outbox);
        assert_eq!(said(&mut outbox), [(2, first)]);
        lifelines.closed(1, &mut outbox);
        let second = Ended { worker: 0, exit: Exit::Signal(9) };
        lifelines.tell(second, &mut outbox);
        assert_eq!(said(&mut outbox), [(2, second)]);
        let here = |worker| Heard::Here { worker, pid: 70 };
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [here(0), here(1)]);
    }

    #[test]
    fn what_comes_at_the_wrong_time_is_not_heard() {
        let (sender, heard) = channel();
        let mut lifelines = Lifelines::new(move |word| sender.send(word).unwrap());
        let mut outbox = Outbox::default();
        lifelines.opened(1, &Hello::lifeline(0, 4), &mut outbox);
        for word in [
            Word::Formed { generation: 0 },
            Word::Here { worker: 2, pid: 7 },
            Word::Here { worker: 3, pid: 7 },
        ] {
            lifelines.message(1, &encode(&word), &mut outbox);
        }
        lifelines.message(1, &[255; 3], &mut outbox);
        lifelines.message(9, &encode(&Word::Formed { generation: 0 }), &mut outbox);
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [Heard::Here { worker: 2, pid: 7 }]);
    }
}
