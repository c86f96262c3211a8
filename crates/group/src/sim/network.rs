//! The simulated network, and the clock, which moves from event to event.
//!
//! A connection is two pipes. What is written to one arrives in order, cut into pieces, after a delay; what is written while the
//! direction is cut arrives when that heals, as TCP sends again what was lost. A pipe holds so many bytes until its reader's
//! acknowledgement has come back. A process listens at a port for each generation.

use super::faults::Faults;
use super::log::Log;
use super::random::Random;
use super::store::{Request, Store, Ticket};
use crate::bootstrap::regroup::ask::{Answer, Ask};
use phalanx_core::Result as Outcome;
use phalanx_transport::LinkFault;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// More than a caller says in a handshake.
const TAP_LEN: usize = 128;

/// Where a process listens in generation 0; one further on in each after it.
pub(super) const FIRST_PORT: u16 = 1;

/// One end of a connection; 0 is the side that called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct End {
    connection: usize,
    side: usize,
}

/// What happens at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A process looks around.
    Wake(usize),
    /// A call reaches the other side.
    Knock(usize),
    /// A request reaches the store.
    Ask(usize),
    Start(usize),
    Die(usize),
    /// One of the harms that are drawn for a process that goes on.
    Hurt(usize),
    /// A process has ended, and its launcher sees it.
    Ended(usize),
    Reset([usize; 2]),
    Stranger(usize),
}

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Calling,
    Open,
    Refused,
}

#[derive(Debug, Default)]
struct Pipe {
    /// What is under way or unread, and when each piece arrives.
    pieces: VecDeque<(Instant, VecDeque<u8>)>,
    /// When the latest piece arrives; later ones don't overtake it.
    latest: Option<Instant>,
    /// Nothing arrives any more.
    stuck: bool,
    /// Bytes of which the writer does not know that they were read.
    held: usize,
    acknowledged: VecDeque<(Instant, usize)>,
    /// When the reader learns that nothing follows.
    end: Option<Instant>,
    /// From when on the writer knows that nobody reads.
    refused: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    processes: [usize; 2],
    /// Where the second listens, and of which generation both are.
    port: u16,
    capacity: usize,
    /// When the caller learns whether it was taken.
    answer: Option<(Instant, Line)>,
    /// `pipes[s]` carries what side `s` writes.
    pipes: [Pipe; 2],
    closed: [bool; 2],
    broken: Option<Instant>,
}

/// The network between the simulated processes.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) now: Instant,
    start: Instant,
    random: Random,
    faults: Faults,
    /// The impostor that answers in the place of the second rank of its pair.
    impostor: usize,
    connections: Vec<Connection>,
    /// The callers that wait, by process and port, where one listens.
    listening: BTreeMap<(usize, u16), VecDeque<End>>,
    store: Store,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    next: u64,
    /// The first bytes of the first caller of each process, for who says them again.
    taps: Vec<Vec<u8>>,
    pub(super) violations: Vec<String>,
    pub(super) log: Log,
}

/// Shared by all processes of a run. One thread uses it, so nobody ever waits for the lock.
#[derive(Debug, Clone)]
pub(super) struct Net(Arc<Mutex<Network>>);

impl Net {
    pub(super) fn new(network: Network) -> Self {
        Self(Arc::new(Mutex::new(network)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Network> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Between `processes` processes, of which the last answers as the impostor.
    pub(super) fn new(start: Instant, faults: Faults, processes: usize, random: Random, log: Log) -> Self {
        Self {
            now: start,
            start,
            random,
            faults,
            impostor: processes - 1,
            connections: Vec::new(),
            listening: BTreeMap::new(),
            store: Store::default(),
            events: BinaryHeap::new(),
            next: 0,
            taps: vec![Vec::new(); processes],
            violations: Vec::new(),
            log,
        }
    }

    /// How long the run has lasted.
    pub(super) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Lets `event` happen so long after the start.
    pub(super) fn plan(&mut self, after: Duration, event: Event) {
        self.at(self.start + after, event);
    }

    pub(super) fn at(&mut self, at: Instant, event: Event) {
        self.next += 1;
        self.events.push(Reverse((at.max(self.now), self.next, event)));
    }

    /// Moves the clock to the next event.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        loop {
            let Reverse((at, _, event)) = self.events.pop()?;
            self.now = at;
            match event {
                Event::Knock(connection) => self.arrive(connection),
                Event::Ask(ticket) => self.serve(ticket),
                event => return Some(event),
            }
        }
    }

    /// When what leaves `from` now arrives at `to`, if ever.
    fn arrival(&mut self, from: usize, to: usize) -> Option<Instant> {
        if from == to {
            // The system hands over at once what a process sends to itself.
            return Some(self.now);
        }
        let jitter = self.faults.jitter.as_micros() as u64;
        let delay = self.faults.delay + self.random.micros(0..jitter + 1);
        let mut leaves = self.elapsed();
        // Sent again when the cut has healed, into the next one perhaps.
        while let Some(cut) = self
            .faults
            .cuts
            .iter()
            .find(|c| (c.from, c.to) == (from, to) && c.at <= leaves && leaves < c.until)
        {
            leaves = cut.until;
        }
        (leaves < Duration::MAX).then(|| self.start + leaves + delay)
    }

    /// Calls a process, where it listens, over a connection that holds so many bytes each way; the outcome is in [`line`](Self::line).
    pub(super) fn connect(&mut self, from: usize, (to, port): (usize, u16), capacity: usize) -> End {
        let to = match self.faults.detour {
            Some([one, other, instead]) if [one, other] == [from, to] => instead,
            _ if self.faults.impostor == Some([from, to]) => self.impostor,
            _ => to,
        };
        let id = self.connections.len();
        self.log.note(self.now, "connect", [from, to, id]);
        self.connections.push(Connection {
            processes: [from, to],
            port,
            capacity,
            answer: None,
            pipes: Default::default(),
            closed: [false; 2],
            broken: None,
        });
        if let Some(at) = self.arrival(from, to) {
            self.at(at, Event::Knock(id));
        }
        End { connection: id, side: 0 }
    }

    fn arrive(&mut self, id: usize) {
        let Connection { processes: [from, to], port, closed, .. } = self.connections[id];
        if closed[0] {
            return;
        }
        let port = if to == self.impostor { FIRST_PORT } else { port };
        let line = if let Some(callers) = self.listening.get_mut(&(to, port)) {
            callers.push_back(End { connection: id, side: 1 });
            self.at(self.now, Event::Wake(to));
            Line::Open
        } else {
            Line::Refused
        };
        if let Some(at) = self.arrival(to, from) {
            self.connections[id].answer = Some((at, line));
            self.at(at, Event::Wake(from));
        }
    }

    pub(super) fn listen(&mut self, process: usize, port: u16) {
        self.listening.entry((process, port)).or_default();
    }

    /// A process is done with a generation: nobody listens at its port any more, and its connections close.
    pub(super) fn hush(&mut self, process: usize, port: u16) {
        self.listening.remove(&(process, port));
        self.close_all(process, |connection| connection.port == port);
    }

    fn close_all(&mut self, process: usize, which: impl Fn(&Connection) -> bool) {
        for connection in 0..self.connections.len() {
            for side in 0..2 {
                let of = &self.connections[connection];
                if of.processes[side] == process && which(of) {
                    self.close(End { connection, side });
                }
            }
        }
    }

    /// The next caller of a process.
    pub(super) fn accept(&mut self, process: usize, port: u16) -> Option<End> {
        self.listening.get_mut(&(process, port))?.pop_front()
    }

    /// How far the call has come whose end this is.
    pub(super) fn line(&self, end: End) -> Line {
        match self.connections[end.connection].answer {
            _ if end.side == 1 => Line::Open,
            Some((at, line)) if at <= self.now => line,
            _ => Line::Calling,
        }
    }

    /// The process at the other end, as only the simulation knows.
    pub(super) fn other(&self, end: End) -> usize {
        self.connections[end.connection].processes[1 - end.side]
    }

    /// Takes as much of `bytes` as fits.
    pub(super) fn write(&mut self, end: End, bytes: &[u8]) -> Result<usize, LinkFault> {
        let now = self.now;
        let connection = &mut self.connections[end.connection];
        let [writer, reader] = [connection.processes[end.side], connection.processes[1 - end.side]];
        let pipe = &mut connection.pipes[end.side];
        let is_past = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if connection.closed[end.side] || is_past(connection.broken) || is_past(pipe.refused) {
            return Err(LinkFault::Closed);
        }
        while let Some((_, read)) = pipe.acknowledged.pop_front_if(|(at, _)| *at <= now) {
            pipe.held -= read;
        }
        let mut n = bytes.len().min(connection.capacity.saturating_sub(pipe.held));
        if n == 0 {
            return Ok(0);
        }
        if self.random.chance(1, 8) {
            n = 1 + self.random.below(n);
        }
        pipe.held += n;
        if end.side == 0 && self.taps[reader].len() < TAP_LEN {
            self.taps[reader].extend(&bytes[..n]);
        }
        let nobody_reads = connection.closed[1 - end.side];
        self.log.bytes(now, [writer, reader, end.connection], &bytes[..n]);
        let first = if self.random.chance(1, 4) { self.random.below(n) } else { 0 };
        for piece in [&bytes[..first], &bytes[first..n]] {
            if piece.is_empty() {
                continue;
            }
            let arrival = self.arrival(writer, reader);
            let pipe = &mut self.connections[end.connection].pipes[end.side];
            let Some(at) = arrival.filter(|_| !pipe.stuck) else {
                pipe.stuck = true;
                break;
            };
            let at = pipe.latest.map_or(at, |latest| latest.max(at));
            pipe.latest = Some(at);
            if nobody_reads {
                let back = self.arrival(reader, writer).map(|back| at + (back - now));
                let pipe = &mut self.connections[end.connection].pipes[end.side];
                pipe.refused = pipe.refused.or(back);
                back.into_iter().for_each(|back| self.at(back, Event::Wake(writer)));
            } else {
                pipe.pieces.push_back((at, piece.iter().copied().collect()));
                self.at(at, Event::Wake(reader));
            }
        }
        Ok(n)
    }

    /// Fills the front of `buffer` with what has arrived.
    pub(super) fn read(&mut self, end: End, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let now = self.now;
        let connection = &mut self.connections[end.connection];
        let [reader, writer] = [connection.processes[end.side], connection.processes[1 - end.side]];
        let broken = connection.broken.is_some_and(|at| at <= now) || connection.closed[end.side];
        let pipe = &mut connection.pipes[1 - end.side];
        let mut n = 0;
        while n < buffer.len()
            && let Some((at, piece)) = pipe.pieces.front_mut()
            && *at <= now
        {
            let taken = piece.len().min(buffer.len() - n);
            for (to, byte) in buffer[n..].iter_mut().zip(piece.drain(..taken)) {
                *to = byte;
            }
            n += taken;
            if piece.is_empty() {
                pipe.pieces.pop_front();
            }
        }
        if n == 0 {
            return match broken || pipe.end.is_some_and(|at| at <= now) {
                true => Err(LinkFault::Closed),
                false => Ok(0),
            };
        }
        self.log.note(now, "read", [reader, end.connection, n]);
        let was_full = pipe.held >= connection.capacity;
        if let Some(at) = self.arrival(reader, writer) {
            let pipe = &mut self.connections[end.connection].pipes[1 - end.side];
            let at = pipe.acknowledged.back().map_or(at, |(last, _)| at.max(*last));
            pipe.acknowledged.push_back((at, n));
            if was_full {
                self.at(at, Event::Wake(writer));
            }
        }
        Ok(n)
    }

    /// Closes one end; what was written to it still arrives.
    pub(super) fn close(&mut self, end: End) {
        let connection = &mut self.connections[end.connection];
        if std::mem::replace(&mut connection.closed[end.side], true) {
            return;
        }
        let [writer, reader] = [connection.processes[end.side], connection.processes[1 - end.side]];
        connection.pipes[1 - end.side].pieces.clear();
        self.log.note(self.now, "close", [writer, reader, end.connection]);
        let arrival = self.arrival(writer, reader);
        let pipe = &mut self.connections[end.connection].pipes[end.side];
        if let Some(at) = arrival.filter(|_| !pipe.stuck) {
            let at = pipe.latest.map_or(at, |latest| latest.max(at));
            pipe.end = Some(at);
            self.at(at, Event::Wake(reader));
        }
    }

    /// A process is gone: its connections close, and nobody is let in.
    pub(super) fn leave(&mut self, process: usize) {
        self.listening.retain(|(listener, _), _| *listener != process);
        self.close_all(process, |_| true);
    }

    /// Breaks all connections between two processes. What has arrived can still be read.
    pub(super) fn reset(&mut self, pair: [usize; 2]) {
        let now = self.now;
        self.log.note(now, "reset", [pair[0], pair[1], 0]);
        for connection in &mut self.connections {
            if connection.processes == pair || connection.processes == [pair[1], pair[0]] {
                connection.broken = Some(connection.broken.unwrap_or(now));
                for pipe in &mut connection.pipes {
                    pipe.pieces.retain(|(at, _)| *at <= now);
                }
            }
        }
        pair.into_iter().for_each(|process| self.at(now, Event::Wake(process)));
    }

    /// The process at this end is sure that `meant` is at the other. Only the simulation knows whether it is.
    pub(super) fn trusted(&mut self, end: End, meant: usize) {
        let other = self.other(end);
        self.log.note(self.now, "trusts", [other, meant, end.connection]);
        if other != meant {
            self.violations.push(format!("process {other} was taken for process {meant}"));
        }
    }

    /// The job's store, as nobody in the job sees it.
    pub(super) fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Sends a request to the job's store. The answer comes as [`answer`](Self::answer).
    pub(super) fn ask(&mut self, process: usize, ask: Ask) -> Ticket {
        let jitter = self.faults.jitter.as_micros() as u64;
        let mut delays = [(); 2].map(|()| self.faults.delay + self.random.micros(0..jitter + 1));
        let nth = self.store.count(process);
        for slow in self.faults.slow_requests.iter().filter(|slow| slow.concerns(process, nth)) {
            delays[usize::from(slow.after)] += slow.by;
        }
        for (number, harm) in self.faults.harms.iter().enumerate() {
            if (harm.process, harm.request) == (process, nth) {
                let event = Event::Hurt(number);
                self.next += 1;
                self.events.push(Reverse((self.now + harm.after, self.next, event)));
            }
        }
        self.log.note(self.now, "asks", [process, nth, 0]);
        let (number, ticket) = self.store.begin(Request::new(process, ask, delays[1], self.now));
        self.at(self.now + delays[0], Event::Ask(number));
        ticket
    }

    fn serve(&mut self, ticket: usize) {
        let is_there = self.faults.store_ends.is_none_or(|at| self.elapsed() < at);
        for (process, at) in self.store.serve(ticket, self.now, is_there) {
            self.log.note(self.now, "serves", [process, 0, 0]);
            self.at(at, Event::Wake(process));
        }
    }

    /// What the store has answered, if it has come. Asked again, there is nothing.
    pub(super) fn answer(&mut self, ticket: Ticket) -> Option<Outcome<Answer>> {
        self.store.take(ticket, self.now)
    }

    /// See [`Log::say`].
    pub(super) fn say(&mut self, key: u64, line: impl FnOnce() -> String) {
        self.log.say(self.now, key, line);
    }

    /// What the first caller of this process said.
    pub(super) fn tapped(&self, process: usize) -> &[u8] {
        &self.taps[process]
    }
}
