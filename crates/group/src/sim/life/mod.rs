//! One simulated process in one generation: what its threads do in turn, driven by the events of the network.

mod calls;

use super::account::Account;
use super::connections::{Connections, SharedConnections};
use super::doing::Doing;
use super::faults::{Astray, Faults, Lie, Misdeed};
use super::job::{Notices, Seat, SimJob};
use super::network::Net;
use super::program::{Program, Script};
use super::random::Random;
use super::runtime::SimRuntime;
use super::stream::port;
use super::transport::SimTransport;
use crate::bootstrap::rendezvous::{Rendezvous, Step};
use crate::control::Control;
use crate::control::client::ControlClient;
use crate::control::group_health::GroupHealth;
use crate::control::membership::Membership;
use crate::control::notice::{Notice, Verdict};
use crate::control::outage::Silence;
use crate::engine::attempt::Attempt;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use phalanx_core::{Deadline, Error, GroupId, Loss, WORLD};
use phalanx_trace::Recorded;
use phalanx_transport::{Secret, Wire};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process tries to deliver its last messages.
const LAST_WORDS_TIME: Duration = Duration::from_millis(500);

#[derive(Debug)]
enum Stage {
    /// Calls the arbiter.
    Calling,
    /// Waits for the others, and asks who is missing at this moment.
    Rendezvous(Instant),
    /// Computes until then.
    Pausing(Instant),
    Doing(Box<Doing>, Attempt),
    /// Aborts or panics, and waits until that is settled.
    GivingUp,
    /// Has failed, and stays for a while.
    Lingering(Instant),
    /// Waits for the others to leave, until then.
    Leaving(Instant),
    /// Delivers its last messages, until then.
    LastWords(Instant),
    /// Has failed, and stays as it is while the process goes on to the next generation.
    Standing,
    Over,
}

/// A group as its member has it.
#[derive(Debug)]
struct OpenGroup {
    id: GroupId,
    backend: ScheduledBackend,
    health: Arc<GroupHealth>,
}

/// One simulated process in one generation.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) account: Account,
    seat: Seat,
    program: Arc<Program>,
    astray: Option<Astray>,
    net: Net,
    random: Random,
    connections: SharedConnections,
    membership: Arc<Membership>,
    notices: Arc<Notices>,
    /// `None`: the line does not stand.
    client: Option<ControlClient>,
    meeting: Rendezvous,
    stage: Stage,
    job: Option<Arc<SimJob>>,
    /// Its group of each division of the program.
    groups: Vec<Option<OpenGroup>>,
    /// The next call: the line of the program, and which of its calls.
    at: usize,
    part: usize,
    /// Whose messages it has taken at this line, of those that any rank might have sent.
    heard: Vec<usize>,
    lie: Option<Lie>,
}

impl Life {
    /// Begins to come together with the others of its roster, until then.
    pub(super) fn start(
        seat: Seat,
        script: &Script,
        faults: &Faults,
        secret: &Secret,
        net: &Net,
        mut random: Random,
        deadline: Deadline,
    ) -> Self {
        let now = net.lock().now;
        let program = script.of(seat.generation, seat.world_size());
        let is_first = script.is_first(seat.generation, seat.world_size());
        let (heartbeat, me, world_size) = (program.heartbeat, seat.peer(seat.rank), seat.world_size());
        let connections =
            Connections::open(net, secret, &seat, heartbeat, faults.capacity, deadline, random.fork());
        let recorded = Recorded { me: me.clone(), world_size, timeout: program.limit };
        let runtime = Arc::new(SimRuntime::new(net));
        Self {
            account: Account::begin(seat.clone(), now, deadline),
            astray: faults.astray.filter(|astray| is_first && astray.rank == seat.me),
            lie: faults.lie.filter(|lie| is_first && lie.rank == seat.me),
            program,
            net: net.clone(),
            random,
            connections,
            membership: Membership::new(recorded, 16, runtime),
            notices: Arc::default(),
            client: None,
            meeting: Rendezvous { me, world_size, deadline },
            stage: Stage::Calling,
            job: None,
            groups: Vec::new(),
            at: 0,
            part: 0,
            heard: Vec::new(),
            seat,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// It has failed, and could go on.
    pub(super) fn stands(&self) -> bool {
        matches!(self.stage, Stage::Standing)
    }

    /// Whether the group of all ranks has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.groups.first().and_then(Option::as_ref).is_some_and(|world| world.health.latch.cause().is_some())
    }

    pub(super) fn job(&self) -> Option<&Arc<SimJob>> {
        self.job.as_ref()
    }

    pub(super) fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// Ends, after a farewell if it is `in_order`.
    pub(super) fn end(&mut self, in_order: bool, now: Instant) {
        if in_order {
            self.say_farewell(now);
        }
        self.stage = Stage::LastWords(now + LAST_WORDS_TIME);
    }

    /// Gives up coming together, and says so to those who have joined.
    pub(super) fn give_up(&mut self, error: Error, now: Instant) {
        let _ = self.notices.send(self.meeting.give_up(&error));
        self.account.met = Some((now, Err(error)));
        self.end(false, now);
    }

    /// Closes all its connections; what is left is the account.
    pub(super) fn close(mut self) -> Account {
        let groups = self.groups.iter().flatten();
        let causes = groups.filter_map(|group| Some((group.id, group.health.latch.first_cause().cloned()?)));
        self.account.causes = causes.collect();
        self.net.lock().hush(self.seat.me, port(self.seat.generation));
        self.account
    }

    /// The group of the call that it is at.
    fn group(&self) -> &OpenGroup {
        let division = self.program.lines[self.at].division;
        self.groups[division].as_ref().expect("whoever calls in a group has it")
    }

    /// Each thread of the process may look around, in any order. Returns when to do so again, though nothing has come.
    pub(super) fn look(&mut self) -> Option<Instant> {
        let now = self.net.lock().now;
        let mut again = None;
        // Threads that were not given a core yet come a little later.
        let hesitates = |random: &mut Random, again: &mut Option<Instant>| {
            let later = random.chance(1, 8);
            if later {
                *again = Some(now + random.micros(1..300));
            }
            later
        };
        if !hesitates(&mut self.random, &mut again) {
            self.connections.lock().advance();
        }
        if !hesitates(&mut self.random, &mut again) {
            self.listen(now);
        }
        if !hesitates(&mut self.random, &mut again) {
            while self.work(now) {}
            self.tell();
            self.connections.lock().advance();
        }
        if self.is_over() {
            return None;
        }
        let client = self.client.as_ref().and_then(ControlClient::deadline);
        again
            .into_iter()
            .chain(self.connections.lock().until(now))
            .chain(client)
            .chain(self.work_until(now))
            .min()
    }

    /// A caller that has something to tell the arbiter writes it to the line itself.
    fn tell(&mut self) {
        let mut connections = self.connections.lock();
        let Some(line) = &mut connections.line else { return };
        for notice in self.notices.take() {
            let message = postcard::to_stdvec(&notice).expect("notices are plain data");
            self.net.lock().say(message.len() as u64, || format!("{} tells {notice:?}", self.seat.me));
            line.send(&message);
        }
    }

    /// The thread of the line.
    fn listen(&mut self, now: Instant) {
        let mut connections = self.connections.lock();
        let Some(line) = &mut connections.line else { return };
        let Some(client) = &mut self.client else { return };
        let (messages, stands) = line.advance();
        for message in messages {
            self.net.lock().say(message.len() as u64, || {
                let verdict = postcard::from_bytes::<Verdict>(&message);
                format!("{} hears {verdict:?}", self.seat.me)
            });
            client.hear(&message, now);
        }
        if !stands {
            client.line_broke(Loss::Died);
            self.client = None;
            return;
        }
        for notice in client.poll(now, || Silence::Peer) {
            line.send(&postcard::to_stdvec(&notice).expect("notices are plain data"));
        }
    }

    /// The main thread; whether it has more to do at once.
    fn work(&mut self, now: Instant) -> bool {
        let next = match &mut self.stage {
            Stage::Calling => match self.called() {
                Some(Ok(())) => {
                    self.client =
                        Some(ControlClient::new(self.membership.clone(), self.program.heartbeat, now));
                    let (host, addr) =
                        (self.seat.peer(self.seat.rank).host, self.seat.address(self.seat.rank));
                    let _ =
                        self.notices.send(Notice::Join { host, addr, local: None, settings: String::new() });
                    Stage::Rendezvous(now + self.meeting.pause(now))
                }
                Some(Err(what)) => {
                    let (rank, world_size) = (self.seat.rank, self.seat.world_size());
                    let waited = now - self.account.started;
                    self.account.met = Some((now, Err(Error::Rendezvous { rank, world_size, what, waited })));
                    Stage::LastWords(now)
                }
                None => return false,
            },
            Stage::Rendezvous(ask_at) => {
                match self.membership.wait_complete(&Deadline::after(now, Duration::ZERO)) {
                    Ok(_) => {
                        self.account.met = Some((now, Ok(())));
                        self.join();
                        self.pause(now)
                    }
                    Err(incomplete) if incomplete.hopeless.is_some() || *ask_at <= now => {
                        match self.meeting.step(incomplete, now) {
                            Step::Ask(notice) => {
                                let _ = self.notices.send(notice);
                                Stage::Rendezvous(now + self.meeting.pause(now))
                            }
                            Step::End(notice, error) => {
                                notice.into_iter().for_each(|notice| drop(self.notices.send(notice)));
                                self.account.met = Some((now, Err(error)));
                                Stage::LastWords(now + LAST_WORDS_TIME)
                            }
                        }
                    }
                    Err(_) => return false,
                }
            }
            Stage::Pausing(until) if *until > now => return false,
            Stage::Pausing(_) => self.begin(now),
            Stage::Doing(..) => return self.drive(now),
            Stage::GivingUp => {
                match self.group().health.verdict(now) {
                    // Without a farewell.
                    Ok(_) if self.strays(Misdeed::Panics) => Stage::LastWords(now + LAST_WORDS_TIME),
                    Ok(_) => self.failed(now),
                    Err(_) => return false,
                }
            }
            Stage::Lingering(until) if *until > now => return false,
            Stage::Lingering(_) if self.program.goes_on.is_some() => Stage::Standing,
            Stage::Lingering(_) => self.leave(now, Duration::ZERO),
            Stage::Leaving(until) => {
                let all =
                    self.seat.rank != 0 || self.membership.have_left(|r| r != 0, self.seat.world_size());
                if !all && *until > now {
                    return false;
                }
                Stage::LastWords(now + LAST_WORDS_TIME)
            }
            Stage::LastWords(until) => {
                if *until > now && (self.connections.lock().is_writing() || !self.notices.is_empty()) {
                    return false;
                }
                let Seat { me, generation, .. } = self.seat;
                self.net.lock().say(me as u64, || format!("{me} ends in generation {generation}"));
                self.account.ended = Some(now);
                Stage::Over
            }
            Stage::Standing | Stage::Over => return false,
        };
        self.stage = next;
        true
    }

    /// How the call to the arbiter has ended, if it has.
    fn called(&self) -> Option<Result<(), String>> {
        let mut connections = self.connections.lock();
        connections.no_line.take().map(Err).or(connections.line.is_some().then_some(Ok(())))
    }

    /// When the main thread looks again.
    fn work_until(&self, now: Instant) -> Option<Instant> {
        match &self.stage {
            Stage::Rendezvous(at)
            | Stage::Pausing(at)
            | Stage::Lingering(at)
            | Stage::Leaving(at)
            | Stage::LastWords(at) => Some(*at),
            Stage::Doing(doing, attempt) => {
                let engine = &self.group().backend.engine;
                Some(now + attempt.waits_for(&engine.lock(), &**doing, &mut Vec::new(), now))
            }
            Stage::GivingUp => self.group().health.verdict(now).err(),
            Stage::Calling | Stage::Standing | Stage::Over => None,
        }
    }

    /// All ranks are here: makes the group of all.
    fn join(&mut self) {
        let (membership, notices) = (self.membership.clone(), self.notices.clone());
        self.job = Some(Arc::new(SimJob::new(&self.seat, self.program.limit, membership, notices)));
        self.groups = self.program.divisions.iter().map(|_| None).collect();
        self.open(0, WORLD, (0..self.seat.world_size()).collect());
    }

    /// Makes a group whose members are these ranks of the job.
    fn open(&mut self, division: usize, id: GroupId, members: Vec<usize>) {
        let (limit, lie) = (self.program.limit, self.lie);
        let transport =
            SimTransport::open(&self.net, &self.connections, (id, &members), &self.seat, limit, lie);
        let job = self.job.clone().expect("it has come together with the others");
        let health = Arc::new(GroupHealth::new(job, id, members));
        let wire = Wire::new(Box::new(transport));
        let selector = self.program.selector.clone();
        let backend = ScheduledBackend::over(wire, health.clone(), BackendChoice::Auto, selector);
        self.groups[division] = Some(OpenGroup { id, backend, health });
    }

    fn failed(&self, now: Instant) -> Stage {
        Stage::Lingering(now + self.program.linger)
    }

    fn say_farewell(&mut self, now: Instant) {
        let _ = self.notices.send(self.membership.farewell());
        self.account.left = Some(now);
    }

    /// Says farewell; rank 0 stays until all others have, or for so long.
    fn leave(&mut self, now: Instant, stays: Duration) -> Stage {
        self.say_farewell(now);
        Stage::Leaving(now + stays)
    }
}
