//! One simulated process: what its threads do in turn, driven by the events of the network.

use super::desk::{Desk, SharedDesk};
use super::division::{Division, Group};
use super::doing::Doing;
use super::faults::{Astray, Faults, Misdeed};
use super::job::{Notices, SimJob, peer};
use super::network::Net;
use super::program::Program;
use super::random::Random;
use super::stream::address;
use super::transport::SimTransport;
use crate::bootstrap::rendezvous::{Rendezvous, Step};
use crate::control::Control;
use crate::control::changes::Changes;
use crate::control::client::ControlClient;
use crate::control::failure_report::SETTLE_TIME;
use crate::control::group_health::GroupHealth;
use crate::control::membership::Membership;
use crate::control::notice::{Notice, Verdict};
use crate::control::outage::Silence;
use crate::control::runtime::Runtime;
use crate::engine::attempt::{Attempt, Outcome};
use crate::engine::operation::Operation;
use crate::group::split;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use phalanx_core::{Cause, Deadline, Error, GroupId, Loss, OpKind, Signature, WORLD};
use phalanx_trace::{Now, Recorded};
use phalanx_transport::{Secret, Wire};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a process tries to deliver its last messages.
const LAST_WORDS_TIME: Duration = Duration::from_millis(500);

/// One call of a rank, and how it ended.
#[derive(Debug)]
pub(super) struct Record {
    /// Its place in the program.
    pub(super) at: usize,
    pub(super) seq: u64,
    pub(super) signature: Signature,
    pub(super) called: Instant,
    /// When, and whether its result was the right one if it ended well.
    pub(super) ended: Option<(Instant, Result<bool, Error>)>,
}

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
    Over,
}

/// A group as its member has it.
#[derive(Debug)]
struct OpenGroup {
    id: GroupId,
    backend: ScheduledBackend,
    health: Arc<GroupHealth>,
}

/// One simulated process.
#[derive(Debug)]
pub(super) struct Process {
    me: usize,
    program: Arc<Program>,
    astray: Option<Astray>,
    net: Net,
    random: Random,
    desk: SharedDesk,
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
    pub(super) started: Instant,
    /// When the ranks had come together, or why they did not.
    pub(super) met: Option<(Instant, Result<(), Error>)>,
    /// Whose messages it has taken at this line, of those that any rank might have sent.
    heard: Vec<usize>,
    pub(super) records: Vec<Record>,
    /// When it was over.
    pub(super) ended: Option<Instant>,
    lie: Option<super::faults::Lie>,
}

/// The process as its control plane sees it.
#[derive(Debug)]
struct SimRuntime {
    net: Net,
    /// When the process slept last, and for how long: nothing happens in the network meanwhile.
    slept: Mutex<(Instant, Duration)>,
}

impl Runtime for SimRuntime {
    fn now(&self) -> Instant {
        let now = self.net.lock().now;
        let (at, slept) = *self.slept.lock().unwrap_or_else(PoisonError::into_inner);
        if at == now { now + slept } else { now }
    }

    /// Whoever sleeps without leaving the processor to the others hears nothing from them: its time is over.
    fn sleep(&self, _changes: &Changes, _seen: u64, limit: Duration) {
        let now = self.net.lock().now;
        let slept = self.now().saturating_duration_since(now) + limit;
        *self.slept.lock().unwrap_or_else(PoisonError::into_inner) = (now, slept);
    }

    fn trace_time(&self) -> Now {
        Now { at: 0, epoch: 0 }
    }

    /// It has one thread, which does nothing while it waits.
    fn stands_still(&self) -> bool {
        true
    }
}

impl Process {
    pub(super) fn start(
        me: usize,
        program: Arc<Program>,
        faults: &Faults,
        secret: Secret,
        net: &Net,
        mut random: Random,
    ) -> Self {
        let (now, world_size) = (net.lock().now, program.world_size);
        let deadline = Deadline::after(now, program.init_limit);
        let place = (me, world_size);
        let desk =
            Desk::open(net, secret, place, program.heartbeat, faults.capacity, deadline, random.fork());
        let recorded = Recorded { me: peer(me), world_size, timeout: program.limit };
        let runtime = Arc::new(SimRuntime { net: net.clone(), slept: Mutex::new((now, Duration::ZERO)) });
        Self {
            me,
            astray: faults.astray.filter(|astray| astray.rank == me),
            lie: faults.lie.filter(|lie| lie.rank == me),
            program,
            net: net.clone(),
            random,
            desk,
            membership: Membership::new(recorded, 16, runtime),
            notices: Arc::default(),
            client: None,
            meeting: Rendezvous { me: peer(me), world_size, deadline },
            stage: Stage::Calling,
            job: None,
            groups: Vec::new(),
            at: 0,
            part: 0,
            started: now,
            met: None,
            heard: Vec::new(),
            records: Vec::new(),
            ended: None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Why its groups have failed, as it saw it, each in its order of the program.
    pub(super) fn causes(&self) -> impl Iterator<Item = (GroupId, Cause)> {
        let groups = self.groups.iter().flatten();
        groups.filter_map(|group| Some((group.id, group.health.latch.first_cause().cloned()?)))
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
            self.desk.lock().advance();
        }
        if !hesitates(&mut self.random, &mut again) {
            self.listen(now);
        }
        if !hesitates(&mut self.random, &mut again) {
            while self.work(now) {}
            self.tell();
            self.desk.lock().advance();
        }
        if self.is_over() {
            return None;
        }
        let client = self.client.as_ref().and_then(ControlClient::deadline);
        again.into_iter().chain(self.desk.lock().until(now)).chain(client).chain(self.work_until(now)).min()
    }

    /// A caller that has something to tell the arbiter writes it to the line itself.
    fn tell(&mut self) {
        let mut desk = self.desk.lock();
        let Some(line) = &mut desk.line else { return };
        for notice in self.notices.take() {
            let message = postcard::to_stdvec(&notice).expect("notices are plain data");
            self.net.lock().say(message.len() as u64, || format!("{} tells {notice:?}", self.me));
            line.send(&message);
        }
    }

    /// The thread of the line.
    fn listen(&mut self, now: Instant) {
        let mut desk = self.desk.lock();
        let Some(line) = &mut desk.line else { return };
        let Some(client) = &mut self.client else { return };
        let (messages, stands) = line.advance();
        for message in messages {
            self.net.lock().say(message.len() as u64, || {
                let verdict = postcard::from_bytes::<Verdict>(&message);
                format!("{} hears {verdict:?}", self.me)
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
                    let (host, addr) = (peer(self.me).host, address(self.me));
                    let _ =
                        self.notices.send(Notice::Join { host, addr, local: None, settings: String::new() });
                    Stage::Rendezvous(now + self.meeting.pause(now))
                }
                Some(Err(what)) => {
                    let (rank, world_size) = (self.me, self.program.world_size);
                    let waited = now - self.started;
                    self.met = Some((now, Err(Error::Rendezvous { rank, world_size, what, waited })));
                    Stage::LastWords(now)
                }
                None => return false,
            },
            Stage::Rendezvous(ask_at) => {
                match self.membership.wait_complete(&Deadline::after(now, Duration::ZERO)) {
                    Ok(_) => {
                        self.met = Some((now, Ok(())));
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
                                self.met = Some((now, Err(error)));
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
            Stage::Lingering(_) => self.leave(now),
            Stage::Leaving(until) => {
                let all = self.me != 0 || self.membership.have_left(|r| r != 0, self.program.world_size);
                if !all && *until > now {
                    return false;
                }
                Stage::LastWords(now + LAST_WORDS_TIME)
            }
            Stage::LastWords(until) => {
                if *until > now && (self.desk.lock().is_writing() || !self.notices.is_empty()) {
                    return false;
                }
                self.net.lock().say(self.me as u64, || format!("{} ends", self.me));
                self.net.lock().leave(self.me);
                self.ended = Some(now);
                Stage::Over
            }
            Stage::Over => return false,
        };
        self.stage = next;
        true
    }

    /// How the call to the arbiter has ended, if it has.
    fn called(&self) -> Option<Result<(), String>> {
        let mut desk = self.desk.lock();
        desk.no_line.take().map(Err).or(desk.line.is_some().then_some(Ok(())))
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
            Stage::Calling | Stage::Over => None,
        }
    }

    /// All ranks are here: makes the group of all.
    fn join(&mut self) {
        let (membership, notices) = (self.membership.clone(), self.notices.clone());
        let Program { world_size, limit, .. } = *self.program;
        self.job = Some(Arc::new(SimJob::new(self.me, world_size, limit, membership, notices)));
        self.groups = self.program.divisions.iter().map(|_| None).collect();
        self.open(0, WORLD, (0..world_size).collect());
    }

    /// Makes a group whose members are these ranks of the job.
    fn open(&mut self, division: usize, id: GroupId, members: Vec<usize>) {
        let Program { world_size, limit, .. } = *self.program;
        let place = (self.me, world_size);
        let transport = SimTransport::open(&self.net, &self.desk, (id, &members), place, limit, self.lie);
        let job = self.job.clone().expect("it has come together with the others");
        let health = Arc::new(GroupHealth::new(job, id, members));
        let wire = Wire::new(Box::new(transport));
        let selector = self.program.selector.clone();
        let backend = ScheduledBackend::over(wire, health.clone(), BackendChoice::Auto, selector);
        self.groups[division] = Some(OpenGroup { id, backend, health });
    }

    /// The group that this rank is to be in after the split that it is at.
    fn divided(&self) -> Option<(usize, i64, GroupId)> {
        // One that is led astray may call something else there.
        let splits = self.records.last().is_some_and(|record| record.signature.op == OpKind::Split);
        let made = self.program.lines[self.at].makes.filter(|_| splits)?;
        let Division { said, number, .. } = &self.program.divisions[made];
        let color = said[self.me].0?;
        Some((made, color.into(), split::name(self.group().id, *number, color)))
    }

    /// Makes the group that members make at this line, if they do, as far as that needs nobody else.
    fn meet(&mut self) -> Result<(), Error> {
        let line = &self.program.lines[self.at];
        let (op, division) = (line.op, line.division);
        let (OpKind::NewGroup, Some(world)) = (op, &self.groups[0]) else { return Ok(()) };
        let Group { id, members } = self.program.divisions[division].groups[0].clone();
        if let Some(cause) = world.health.latch.cause() {
            let error = Error::Poisoned { op, cause: Box::new(cause.clone()) };
            world.health.forgo(id, &error);
            return Err(error);
        }
        self.open(division, id, members);
        Ok(())
    }

    fn strays(&self, how: Misdeed) -> bool {
        self.astray.is_some_and(|astray| astray.call == self.at && astray.how == how)
    }

    /// Computes before the next call.
    fn pause(&mut self, now: Instant) -> Stage {
        if self.part > 0 && self.part < self.program.parts(self.at, self.me) {
            return Stage::Pausing(now);
        }
        self.at += usize::from(self.part > 0);
        self.part = 0;
        loop {
            let Some(line) = self.program.lines.get(self.at) else {
                return self.leave(now + self.program.limit + SETTLE_TIME);
            };
            // Whoever left out a split has no group of it.
            let is_in = line.op == OpKind::NewGroup || self.groups[line.division].is_some();
            if is_in && self.program.parts(self.at, self.me) > 0 && !self.strays(Misdeed::Skips) {
                return Stage::Pausing(now + line.pauses[self.me]);
            }
            self.at += 1;
        }
    }

    /// Makes the next call.
    fn begin(&mut self, now: Instant) -> Stage {
        if self.strays(Misdeed::Leaves) {
            return self.leave(now);
        }
        if let Err(error) = self.meet() {
            let (at, written) = (self.at, &self.program.lines[self.at]);
            let signature = self.program.call(at, self.me, written).0;
            self.records.push(Record { at, seq: 0, signature, called: now, ended: Some((now, Err(error))) });
            return self.failed(now);
        }
        let health = self.group().health.clone();
        if self.strays(Misdeed::Panics) {
            let cause = Cause::Lost { peer: peer(self.me), how: Loss::Panicked };
            return if health.begin_to_give_up(cause) { Stage::GivingUp } else { self.failed(now) };
        }
        if self.strays(Misdeed::Aborts) {
            let cause = Cause::Aborted { peer: peer(self.me), reason: "the seed says so".into() };
            return if health.begin_to_give_up(cause) { Stage::GivingUp } else { self.failed(now) };
        }
        let program = self.program.clone();
        let written = &program.lines[self.at];
        // In a group of one, nothing is another call than that of the others.
        let is_alone = self.group().health.members().len() == 1;
        let astray = self.astray.filter(|astray| astray.call == self.at && !is_alone);
        let line = match astray.map(|astray| astray.how) {
            Some(Misdeed::OtherOp) => written.other_op(),
            Some(Misdeed::OtherCount) => written.other_count(program.world_size),
            _ => written.clone(),
        };
        let (at, part) = (self.at, self.part);
        let backend = &self.group().backend;
        let mut record =
            Record { at, seq: 0, signature: program.call(at, self.me, &line).0, called: now, ended: None };
        self.net.lock().say(self.me as u64, || format!("{} calls #{at} {}", self.me, record.signature));
        match Doing::begin(backend, &program, (at, part), self.me, &line) {
            Ok(doing) => {
                record.seq = doing.seq();
                self.records.push(record);
                Stage::Doing(Box::new(doing), Attempt::new(now, program.limit))
            }
            Err(error) => {
                record.ended = Some((now, Err(error)));
                self.records.push(record);
                self.failed(now)
            }
        }
    }

    /// Drives the call on; whether anything moved.
    fn drive(&mut self, now: Instant) -> bool {
        let divided = self.divided();
        let Stage::Doing(doing, attempt) = &mut self.stage else { return false };
        let division = self.program.lines[self.at].division;
        let OpenGroup { backend, health, .. } = self.groups[division].as_ref().expect("it calls there");
        let outcome = attempt.poll(&mut backend.engine.lock(), &mut **doing, || now);
        let record = self.records.last_mut().expect("the call was recorded");
        self.stage = match outcome {
            Outcome::Idle => return false,
            Outcome::Moved => return true,
            Outcome::Finished => {
                let from = doing.sender().map(|from| health.members()[from]);
                let (range, expected) = match from {
                    Some(from) => self.program.sent_to_any(self.at, from),
                    None => self.program.expected(self.at, self.part, self.me),
                };
                let mut right = doing.result().get(range) == Some(&expected[..]);
                if let Some(from) = from {
                    // Each sends one.
                    right &= self.part == 0 || !self.heard.contains(&from);
                    self.heard.truncate(self.part);
                    self.heard.push(from);
                }
                doing.ended(backend);
                record.ended = Some((now, Ok(right)));
                self.net.lock().say(self.at as u64, || format!("{} is done with #{}", self.me, self.at));
                if let Some((made, color, id)) = divided {
                    let members = health.members();
                    let of_job = split::of_color(doing.result(), color).into_iter();
                    let new = of_job.map(|rank| members[rank]).collect();
                    self.open(made, id, new);
                }
                self.part += 1;
                self.pause(now)
            }
            Outcome::Failed(error) => {
                self.net.lock().say(self.at as u64, || format!("{} fails: {error}", self.me));
                doing.failed(backend);
                // The others may have all they need, and wait in a new group for this rank.
                if let Some((_, _, id)) = divided {
                    health.forgo(id, &error);
                } else if let (Some(world), OpKind::NewGroup) = (&self.groups[0], record.signature.op) {
                    world.health.forgo(health.latch.group(), &error);
                }
                record.ended = Some((now, Err(error)));
                self.failed(now)
            }
        };
        true
    }

    fn failed(&self, now: Instant) -> Stage {
        Stage::Lingering(now + self.program.linger)
    }

    /// Says farewell; rank 0 stays until all others have, or until then.
    fn leave(&self, until: Instant) -> Stage {
        let _ = self.notices.send(Notice::Leave);
        Stage::Leaving(until)
    }
}
