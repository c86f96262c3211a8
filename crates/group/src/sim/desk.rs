//! The connections of one simulated process: who may come in, whom it calls, and its control messages.
//!
//! Stands for the endpoint and the exchange of a process, without threads and sockets. What is decided here is decided as there.

use super::handshake::{Handshaking, Progress};
use super::network::{End, Line, Net, Network};
use super::program::Program;
use super::random::Random;
use super::transport::Links;
use crate::bootstrap::arbiter_service::ArbiterService;
use phalanx_core::{Deadline, WORLD};
use phalanx_transport::handshake::{Acceptor, Dialer, Hello, Purpose, Refusal, Status};
use phalanx_transport::{Admission, LinkFault, Outbox, Secret, Service, SessionId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// Bytes that the system keeps for a process which does not read them.
const LINE_CAPACITY: usize = 64 << 10;

/// A call to another process.
#[derive(Debug)]
struct Dial {
    target: usize,
    purpose: Purpose,
    deadline: Deadline,
    tries: u32,
    state: DialState,
}

#[derive(Debug)]
enum DialState {
    Waiting(Instant),
    Connecting(End, Instant),
    Shaking(Handshaking),
}

/// Messages over a connection that is trusted.
#[derive(Debug)]
pub(super) struct Session {
    end: End,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Session {
    fn new(end: End) -> Self {
        Self { end, input: Vec::new(), output: Vec::new() }
    }

    pub(super) fn send(&mut self, message: &[u8]) {
        self.output.extend((message.len() as u32).to_le_bytes());
        self.output.extend(message);
    }

    pub(super) fn is_writing(&self) -> bool {
        !self.output.is_empty()
    }

    pub(super) fn flush(&mut self, network: &mut Network) {
        while !self.output.is_empty() {
            match network.write(self.end, &self.output) {
                Ok(0) => return,
                Ok(n) => drop(self.output.drain(..n)),
                // What the other side said before it closed can still be read.
                Err(_) => self.output.clear(),
            }
        }
    }

    /// Moves bytes both ways; returns the messages that are whole, and whether the connection still stands.
    pub(super) fn advance(&mut self, network: &mut Network) -> (Vec<Vec<u8>>, bool) {
        self.flush(network);
        let mut stands = true;
        let mut part = [0; 512];
        loop {
            match network.read(self.end, &mut part) {
                Ok(0) => break,
                Ok(n) => self.input.extend(&part[..n]),
                Err(_) => {
                    stands = false;
                    break;
                }
            }
        }
        let mut messages = Vec::new();
        while let Some((len, rest)) = self.input.split_first_chunk::<4>()
            && let Some(message) = rest.get(..u32::from_le_bytes(*len) as usize)
        {
            messages.push(message.to_vec());
            self.input.drain(..4 + message.len());
        }
        (messages, stands)
    }
}

/// The endpoint of one simulated process.
#[derive(Debug)]
pub(super) struct Desk {
    me: usize,
    world_size: usize,
    secret: Secret,
    net: Net,
    /// Of links.
    capacity: usize,
    random: Random,
    callers: Vec<(Handshaking, Option<Hello>)>,
    dials: Vec<Dial>,
    links: Arc<Mutex<Links>>,
    /// To the arbiter.
    pub(super) line: Option<Session>,
    /// Why there will be none.
    pub(super) no_line: Option<String>,
    service: Option<ArbiterService>,
    /// When it wants to look around again.
    service_until: Option<Instant>,
    sessions: BTreeMap<SessionId, Session>,
    next_session: SessionId,
    outbox: Outbox,
}

impl Desk {
    pub(super) fn new(
        me: usize,
        program: &Program,
        secret: Secret,
        net: Net,
        capacity: usize,
        links: Arc<Mutex<Links>>,
        random: Random,
    ) -> Self {
        let Program { world_size, heartbeat, .. } = *program;
        net.lock().listen(me);
        let now = net.lock().now;
        Self {
            me,
            world_size,
            secret,
            net,
            capacity,
            random,
            callers: Vec::new(),
            dials: Vec::new(),
            links,
            line: None,
            no_line: None,
            service: (me == 0).then(|| ArbiterService::new(world_size, heartbeat, None, now)),
            service_until: None,
            sessions: BTreeMap::new(),
            next_session: 1,
            outbox: Outbox::default(),
        }
    }

    /// Begins to call the arbiter.
    pub(super) fn call_arbiter(&mut self, deadline: Deadline, now: Instant) {
        self.dial(0, Purpose::Control, deadline, now);
    }

    fn dial(&mut self, target: usize, purpose: Purpose, deadline: Deadline, now: Instant) {
        self.dials.push(Dial { target, purpose, deadline, tries: 0, state: DialState::Waiting(now) });
    }

    /// Whether anything it was given is not on its way yet.
    pub(super) fn is_writing(&self) -> bool {
        self.line.iter().chain(self.sessions.values()).any(Session::is_writing)
    }

    /// When to look again though nothing has come.
    pub(super) fn until(&self) -> Option<Instant> {
        let dials = self.dials.iter().map(|dial| match &dial.state {
            DialState::Waiting(at) | DialState::Connecting(_, at) => *at,
            DialState::Shaking(half) => half.until,
        });
        let callers = self.callers.iter().map(|(half, _)| half.until);
        dials.chain(callers).chain(self.service_until).min()
    }

    /// Does all that can be done now.
    pub(super) fn advance(&mut self) {
        let net = self.net.clone();
        let network = &mut *net.lock();
        let now = network.now;
        while let Some(end) = network.accept(self.me) {
            let acceptor = Acceptor::new(self.secret.clone(), self.random.array());
            self.callers.push((Handshaking::accepted(end, acceptor, now + HANDSHAKE_TIME), None));
        }
        self.greet(network);
        self.serve(network);
        let wanted = Links::of(&self.links).take_wanted();
        for (peer, deadline) in wanted {
            self.dial(peer, Purpose::Data, deadline, now);
        }
        self.call(network);
    }

    /// Advances the handshakes of callers.
    fn greet(&mut self, network: &mut Network) {
        for (mut half, mut admitted) in std::mem::take(&mut self.callers) {
            loop {
                match half.advance(network) {
                    Progress::Pending if half.until > network.now => self.callers.push((half, admitted)),
                    Progress::Pending | Progress::Refused(_) | Progress::Closed => network.close(half.end),
                    Progress::Proved(_) if half.until <= network.now => network.close(half.end),
                    Progress::Proved(hello) => {
                        network.authenticated(half.end, hello.rank as usize);
                        let status = self.admit(&hello);
                        network.say(u64::from(hello.rank), || {
                            format!("{} answers {hello:?}: {status:?}", self.me)
                        });
                        if status == Status::Welcome {
                            admitted = Some(hello);
                        }
                        half.answer(status);
                        continue;
                    }
                    Progress::Done => match admitted {
                        Some(hello) => self.welcome(&hello, half.end, network),
                        None => network.close(half.end),
                    },
                }
                break;
            }
        }
    }

    /// As the exchange of a process does.
    fn admit(&mut self, hello: &Hello) -> Status {
        let peer = hello.rank as usize;
        if let Some(objection) = hello.objection(self.me, self.world_size) {
            return objection;
        }
        match (hello.purpose, &mut self.service) {
            (Purpose::Control, Some(service)) => match service.admit(hello) {
                Admission::Refuse(status) => status,
                _ => Status::Welcome,
            },
            (Purpose::Data, _) => Links::of(&self.links).admit(peer),
            _ => Status::Unwanted,
        }
    }

    fn welcome(&mut self, hello: &Hello, end: End, network: &mut Network) {
        match (hello.purpose, &mut self.service) {
            (Purpose::Control, Some(service)) => {
                let id = self.next_session;
                self.next_session += 1;
                self.sessions.insert(id, Session::new(end));
                service.opened(id, hello, &mut self.outbox);
            }
            _ => self.linked(hello.rank as usize, end, network),
        }
    }

    fn linked(&self, peer: usize, end: End, network: &mut Network) {
        if !Links::of(&self.links).linked(peer, end) {
            network.close(end);
        }
    }

    /// The arbiter's sessions.
    fn serve(&mut self, network: &mut Network) {
        let Some(service) = &mut self.service else { return };
        let mut ended = Vec::new();
        for (&id, session) in &mut self.sessions {
            let (messages, stands) = session.advance(network);
            for message in messages {
                service.take(id, &message, network.now, &mut self.outbox);
            }
            if !stands {
                ended.push(id);
            }
        }
        for id in ended {
            if let Some(session) = self.sessions.remove(&id) {
                network.close(session.end);
                service.closed(id, &mut self.outbox);
            }
        }
        self.service_until = service.poll(network.now, &mut self.outbox);
        for (id, message) in self.outbox.take_messages() {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.send(&message);
                session.flush(network);
            }
        }
    }

    /// Advances the calls this process makes.
    fn call(&mut self, network: &mut Network) {
        let now = network.now;
        for mut dial in std::mem::take(&mut self.dials) {
            match self.advance_dial(&mut dial, network) {
                Ok(None) => self.dials.push(dial),
                Ok(Some(end)) if dial.purpose == Purpose::Control => {
                    network.dialled(end, dial.target);
                    self.line = Some(Session::new(end));
                }
                Ok(Some(end)) => {
                    network.dialled(end, dial.target);
                    self.linked(dial.target, end, network);
                }
                Err(refusal) => {
                    let is_line = dial.purpose == Purpose::Control;
                    let is_final = match &refusal {
                        Some(Refusal::Status(_) | Refusal::Version(_)) => true,
                        Some(_) => !is_line,
                        None => false,
                    };
                    if !is_final && !dial.deadline.has_passed(now) {
                        dial.tries += 1;
                        dial.state = DialState::Waiting(
                            now + self.pause(dial.tries).min(dial.deadline.remaining(now)),
                        );
                        self.dials.push(dial);
                        continue;
                    }
                    let why = refusal.as_ref().map_or_else(|| "no answer".into(), ToString::to_string);
                    if is_line {
                        self.no_line = Some(why);
                    } else if refusal != Some(Refusal::Status(Status::Crossed)) {
                        Links::of(&self.links).unreachable(dial.target, LinkFault::Unreachable(why));
                    }
                }
            }
        }
    }

    /// An error without a refusal: the connection did not come about, or broke.
    fn advance_dial(
        &mut self,
        dial: &mut Dial,
        network: &mut Network,
    ) -> Result<Option<End>, Option<Refusal>> {
        let now = network.now;
        let give_up = now
            + match dial.purpose {
                Purpose::Control => HANDSHAKE_TIME.min(dial.deadline.remaining(now)),
                _ => HANDSHAKE_TIME,
            };
        loop {
            match &mut dial.state {
                DialState::Waiting(at) if *at > now => return Ok(None),
                DialState::Waiting(_) => {
                    let end = network.connect(
                        self.me,
                        dial.target,
                        if dial.purpose == Purpose::Control { LINE_CAPACITY } else { self.capacity },
                    );
                    dial.state = DialState::Connecting(end, give_up);
                }
                DialState::Connecting(end, until) => match network.line(*end) {
                    Line::Calling if *until > now => return Ok(None),
                    Line::Calling | Line::Refused => {
                        network.close(*end);
                        return Err(None);
                    }
                    Line::Open => {
                        let hello = Hello {
                            purpose: dial.purpose,
                            rank: self.me as u32,
                            called: dial.target as u32,
                            world_size: self.world_size as u32,
                            group: WORLD,
                        };
                        let dialer = Dialer::new(self.secret.clone(), hello, self.random.array());
                        dial.state = DialState::Shaking(Handshaking::dialled(*end, dialer, give_up));
                    }
                },
                DialState::Shaking(half) => {
                    let progress = half.advance(network);
                    // As the endpoint does; who opens a session does not.
                    if half.has_proved() && dial.purpose != Purpose::Control {
                        half.until = half.until.max(dial.deadline.until(now));
                    }
                    match progress {
                        Progress::Pending if half.until > now => return Ok(None),
                        Progress::Done => return Ok(Some(half.end)),
                        Progress::Refused(refusal) => {
                            network.close(half.end);
                            return Err(Some(refusal));
                        }
                        Progress::Pending | Progress::Closed | Progress::Proved(_) => {
                            network.close(half.end);
                            return Err(None);
                        }
                    }
                }
            }
        }
    }

    fn pause(&mut self, tries: u32) -> Duration {
        let full = (5u64 << tries.min(6)).min(250);
        self.random.millis(full / 2..full)
    }
}
