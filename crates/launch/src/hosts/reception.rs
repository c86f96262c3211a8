//! The leader's end of its sessions with agents: who is here, what they say, and who is lost. It runs on the endpoint's thread.

use super::limits::ALIVE_INTERVAL;
use super::protocol::{Here, Order, WORDS_LEN_MAX, Word, cut, encode, word};
use super::remote::Task;
use crate::event::{Event, HostEvent};
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::{Admission, Message, Outbox, Service, SessionId};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a host is lost whose session has broken.
pub(super) const GONE: &str = "its agent has ended or was killed, or the host went down";

/// A host whose agent is here.
#[derive(Debug, Clone)]
pub(crate) struct Present {
    pub(super) session: SessionId,
    pub(super) here: Here,
}

/// The hosts as they are now, for the thread that supervises.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// By node rank.
    present: Mutex<BTreeMap<usize, Present>>,
    /// Notified when an agent has gone.
    gone: Condvar,
}

impl Board {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Present>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no agent is here, no longer than `limit`.
    pub(super) fn wait_until_empty(&self, limit: Duration) {
        let waited = self.gone.wait_timeout_while(self.lock(), limit, |present| !present.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// An agent's session.
struct Agent {
    node: usize,
    /// Whether it has said who it is.
    is_here: bool,
    heard: Instant,
    tasks: HashMap<u64, Task>,
}

/// The service of the leader's endpoint.
pub(crate) struct Reception {
    nodes: usize,
    events: Sender<Event>,
    board: Arc<Board>,
    /// How long an agent may say nothing; `None`: for ever.
    silence_max: Option<Duration>,
    agents: BTreeMap<SessionId, Agent>,
    alive_due: Instant,
}

impl Reception {
    pub(crate) fn new(
        nodes: usize,
        silence_max: Option<Duration>,
        events: Sender<Event>,
        board: Arc<Board>,
    ) -> Self {
        Self { nodes, events, board, silence_max, agents: BTreeMap::new(), alive_due: Instant::now() }
    }

    /// Has an agent start a task; one whose agent has gone is lost at once.
    pub(super) fn start(
        &mut self,
        session: SessionId,
        number: u64,
        task: Task,
        order: &Order,
        outbox: &mut Outbox,
    ) {
        match self.agents.get_mut(&session) {
            Some(agent) => {
                agent.tasks.insert(number, task);
                outbox.send(session, encode(order));
            }
            None => task.lost(GONE),
        }
    }

    /// The job is over: tells all agents, and takes them for gone when they are.
    pub(super) fn over(&self, code: i32, words: &str, outbox: &mut Outbox) {
        let words = cut(words, WORDS_LEN_MAX).to_owned();
        let order = Message::from(encode(&Order::Over { code, words }));
        self.agents.keys().for_each(|&session| outbox.send(session, order.clone()));
    }

    fn tell(&self, event: HostEvent) {
        // The receiver is gone only when the job was given up.
        let _ = self.events.send(Event::Host(event));
    }

    /// This agent no longer counts, for this reason. If it can still be reached it hears so.
    fn lose(&mut self, session: SessionId, why: &str, outbox: &mut Outbox) {
        if self.agents.contains_key(&session) {
            let words =
                cut(&format!("the launcher of node 0 goes on without this host: {why}"), WORDS_LEN_MAX)
                    .to_owned();
            outbox.send(session, encode(&Order::Over { code: 1, words }));
            outbox.close(session);
            self.forget(session, why);
        }
    }

    fn forget(&mut self, session: SessionId, why: &str) {
        let Some(agent) = self.agents.remove(&session) else { return };
        let mut present = self.board.lock();
        if present.get(&agent.node).is_some_and(|it| it.session == session)
            && let Some(Present { here, .. }) = present.remove(&agent.node)
        {
            let lost = HostEvent::Lost { node: agent.node, host: here.host, why: why.to_owned() };
            // Before the ends of its tasks, which come of it.
            self.tell(lost);
        }
        drop(present);
        self.board.gone.notify_all();
        agent.tasks.into_values().for_each(|task| task.lost(why));
    }

    fn take(&mut self, session: SessionId, word: Word) -> Result<(), String> {
        let Some(agent) = self.agents.get_mut(&session) else { return Ok(()) };
        agent.heard = Instant::now();
        let unknown = "it speaks of a process that it was not told to start";
        let task = |agent: &Agent, number| agent.tasks.get(&number).cloned().ok_or(unknown.to_owned());
        match word {
            Word::Here(here) if !agent.is_here => {
                agent.is_here = true;
                let (node, host) = (agent.node, here.host.clone());
                self.board.lock().insert(node, Present { session, here });
                self.tell(HostEvent::Came { node, host });
            }
            Word::Alive => {}
            _ if !agent.is_here => return Err("it has not said who it is".into()),
            Word::Here(_) => return Err("it says again who it is".into()),
            Word::Started { task: number, pid } => task(agent, number)?.started(pid),
            Word::Output { task: number, stream, bytes } => task(agent, number)?.output(stream, bytes)?,
            Word::Closed { task: number, stream } => task(agent, number)?.closed(stream),
            Word::Exited { task: number, exit } => task(agent, number)?.ended(exit.into()),
            Word::Deaf { task: number, signal } => {
                let pid = task(agent, number)?.pid();
                let node = agent.node;
                self.tell(HostEvent::Deaf { node, pid, signal });
            }
            Word::Asked { signal } => drop(self.events.send(Event::Signal(signal))),
        }
        Ok(())
    }
}

impl Service for Reception {
    fn admit(&mut self, hello: &Hello) -> Admission {
        let node = hello.rank as usize;
        if hello.purpose != Purpose::Agent {
            Admission::Refuse(Status::Unwanted)
        } else if hello.world_size as usize != self.nodes {
            Admission::Refuse(Status::OtherSize(u32::try_from(self.nodes).unwrap_or(u32::MAX)))
        } else if node == 0 || node >= self.nodes || self.agents.values().any(|agent| agent.node == node) {
            Admission::Refuse(Status::Taken)
        } else {
            Admission::Serve
        }
    }

    fn opened(&mut self, session: SessionId, hello: &Hello, _outbox: &mut Outbox) {
        let node = hello.rank as usize;
        let agent = Agent { node, is_here: false, heard: Instant::now(), tasks: HashMap::new() };
        self.agents.insert(session, agent);
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        let taken = word(message).and_then(|word| self.take(session, word));
        if let Err(why) = taken {
            self.lose(session, &format!("its agent breaks the protocol: {why}"), outbox);
        }
    }

    fn closed(&mut self, session: SessionId, _outbox: &mut Outbox) {
        self.forget(session, GONE);
    }

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) -> Option<Instant> {
        if let Some(limit) = self.silence_max {
            let is_silent = |agent: &Agent| now.saturating_duration_since(agent.heard) >= limit;
            let silent: Vec<_> =
                self.agents.iter().filter(|(_, agent)| is_silent(agent)).map(|(&id, _)| id).collect();
            for session in silent {
                let why = format!("nothing was heard of its agent for {:.1} s", limit.as_secs_f64());
                self.lose(session, &why, outbox);
            }
        }
        if now >= self.alive_due {
            self.agents.keys().for_each(|&session| outbox.send(session, encode(&Order::Alive)));
            self.alive_due = now + ALIVE_INTERVAL;
        }
        // Without agents there is nobody to be silent.
        (!self.agents.is_empty()).then_some(self.alive_due)
    }
}
