//! The job's store: the true table, behind a network with delays, and a client that gives up.

use crate::bootstrap::regroup::ask::{Answer, Ask};
use phalanx_core::{Error, Result};
use phalanx_rendezvous::MemoryStore;
use std::io;
use std::time::{Duration, Instant};

/// How long a client waits for what is answered at once.
const REPLY_TIME: Duration = Duration::from_secs(10);

/// A request that was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    number: usize,
    /// When its client waits no longer.
    pub(super) gives_up: Instant,
}

/// A process's request.
#[derive(Debug)]
pub(super) struct Request {
    process: usize,
    ask: Ask,
    /// How long the answer takes on its way.
    back: Duration,
    gives_up: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// On its way, or at a key that nobody has set.
    Open,
    Answered(Instant, Result<Answer>),
    Taken,
}

/// The store.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) table: MemoryStore,
    requests: Vec<Request>,
    /// Those that wait for a key.
    waiting: Vec<usize>,
    /// How many requests each process has made.
    counts: Vec<usize>,
}

impl Request {
    pub(super) fn new(process: usize, ask: Ask, back: Duration, now: Instant) -> Self {
        // A request that does not wait is answered with what is there.
        let ask = match ask {
            Ask::Get(key, Duration::ZERO) => Ask::TryGet(key),
            ask => ask,
        };
        let limit = if let Ask::Get(_, limit) = &ask { *limit } else { REPLY_TIME };
        Self { process, ask, back, gives_up: now + limit, stage: Stage::Open }
    }
}

impl Store {
    /// The number of a process's next request.
    pub(super) fn count(&mut self, process: usize) -> usize {
        let len = self.counts.len().max(process + 1);
        self.counts.resize(len, 0);
        self.counts[process] += 1;
        self.counts[process]
    }

    /// Takes a request, and numbers it.
    pub(super) fn begin(&mut self, request: Request) -> (usize, Ticket) {
        let (number, gives_up) = (self.requests.len(), request.gives_up);
        self.requests.push(request);
        (number, Ticket { number, gives_up })
    }

    /// A request has arrived at the store, if that `is_there`. Returns who gets an answer, and when.
    pub(super) fn serve(&mut self, ticket: usize, now: Instant, is_there: bool) -> Vec<(usize, Instant)> {
        let ask = self.requests[ticket].ask.clone();
        if !is_there {
            return vec![self.reply(ticket, Err(lost(io::ErrorKind::ConnectionReset)), now)];
        }
        let at_once = match &ask {
            Ask::Get(key, _) => Ask::TryGet(key.clone()),
            other => other.clone(),
        };
        let answer = at_once.perform(&self.table);
        if let (Ask::Get(..), Ok(Answer::Value(None))) = (&ask, &answer) {
            self.waiting.push(ticket);
            return Vec::new();
        }
        let mut told = vec![self.reply(ticket, answer, now)];
        if let Ask::Set(key, _) | Ask::CompareSet(key, ..) = &ask {
            let waits =
                |ticket: &mut usize| matches!(&self.requests[*ticket].ask, Ask::Get(of, _) if of == key);
            let heard: Vec<_> = self.waiting.extract_if(.., waits).collect();
            for ticket in heard {
                let answer = Ask::TryGet(key.clone()).perform(&self.table);
                told.push(self.reply(ticket, answer, now));
            }
        }
        told
    }

    fn reply(&mut self, ticket: usize, answer: Result<Answer>, now: Instant) -> (usize, Instant) {
        let request = &mut self.requests[ticket];
        let at = now + request.back;
        if let Stage::Open = request.stage {
            request.stage = Stage::Answered(at, answer);
        }
        (request.process, at)
    }

    /// What the client has heard by now.
    pub(super) fn take(&mut self, ticket: Ticket, now: Instant) -> Option<Result<Answer>> {
        let request = &mut self.requests[ticket.number];
        let answer = match std::mem::replace(&mut request.stage, Stage::Taken) {
            Stage::Answered(at, answer) if at <= now.min(request.gives_up) => answer,
            Stage::Taken => return None,
            open if now < request.gives_up => {
                request.stage = open;
                return None;
            }
            _ if matches!(request.ask, Ask::Get(..)) => Ok(Answer::Value(None)),
            _ => Err(lost(io::ErrorKind::TimedOut)),
        };
        Some(answer)
    }
}

fn lost(kind: io::ErrorKind) -> Error {
    Error::io("asking the job's store", kind.into())
}
