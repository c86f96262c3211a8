//! One simulated process: its life in a generation, and its way to the next.

use super::account::{Account, Passage};
use super::beats::Beats;
use super::faults::Faults;
use super::job::Seat;
use super::life::Life;
use super::network::Net;
use super::program::{GoesOn, Script};
use super::random::Random;
use super::store::Ticket;
use crate::bootstrap::regroup::Assignment;
use crate::bootstrap::regroup::ask::{Answer, Ask};
use crate::bootstrap::regroup::farewell::Farewell;
use crate::bootstrap::regroup::forming::{Forming, Step};
use crate::bootstrap::regroup::roster::{Party, WaitLimits};
use crate::bootstrap::regroup::view::{Admission, Candidate, Lost};
use crate::bootstrap::regroup::watch::Watch;
use crate::bootstrap::rendezvous::ASK_INTERVAL;
use crate::control::job_context::JobContext;
use phalanx_core::{CallSite, Deadline, Error, OpKind, Result, Signature};
use phalanx_rendezvous::Workers;
use phalanx_transport::Secret;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a program goes on, at most.
const PASSAGES_MAX: usize = 4;

/// One simulated process.
#[derive(Debug)]
pub(super) struct Process {
    me: usize,
    script: Arc<Script>,
    faults: Faults,
    secret: Secret,
    net: Net,
    random: Random,
    /// Its generations: the last one counts, or the one before while that forms; others say their last words.
    lives: Vec<Life>,
    passing: Option<Passing>,
    beats: Option<Beats>,
    /// When it came to its end.
    pub(super) ended: Option<Instant>,
    /// Its lives that are over.
    pub(super) accounts: Vec<Account>,
    pub(super) passages: Vec<Passage>,
}

/// Where a process is between two generations.
#[derive(Debug)]
enum Passing {
    /// Computes until then, before it calls.
    Computing(Instant),
    /// Leaves its groups, and then goes on so.
    Leaving(Farewell, Box<Party<'static>>, u64),
    Asking(Box<Forming<'static>>, Ticket),
    /// Comes together with others, and looks now and then whether they still live.
    Meeting(Box<Forming<'static>>, Assignment, Look),
}

#[derive(Debug)]
enum Look {
    At(Instant),
    Asked(Ticket),
}

impl Process {
    /// A process of the first generation, or of one that its members decide.
    pub(super) fn start(
        me: usize,
        script: &Arc<Script>,
        faults: &Faults,
        secret: &Secret,
        net: &Net,
        random: Random,
    ) -> Self {
        let now = net.lock().now;
        let mut process = Self {
            me,
            script: script.clone(),
            faults: faults.clone(),
            secret: secret.clone(),
            net: net.clone(),
            random,
            lives: Vec::new(),
            passing: None,
            beats: None,
            ended: None,
            accounts: Vec::new(),
            passages: Vec::new(),
        };
        let program = &script.first;
        if let Some(size) = program.elastic() {
            process.beats = process.new_beats(now);
            process.beats.iter_mut().for_each(|beats| beats.begin(now));
            let party = Party {
                me: Candidate { worker: me as u64, rank: None, call: None },
                admission: Admission::Elastic(size),
                before: Vec::new(),
                names: BTreeMap::new(),
                lost: Box::new(Lost::default),
                watch: process.watch(),
                limits: WaitLimits::new(program.init_limit, program.limit),
                say: Box::new(|_| {}),
            };
            process.passages.push(Passage { op: OpKind::Init, from: None, called: now, ended: None });
            process.form(party, 0, now);
        } else {
            let roster = (0..program.world_size as u64).collect();
            let deadline = Deadline::after(now, program.init_limit);
            process.live(Seat { me, generation: 0, rank: me, roster }, deadline);
            process.beats = process.new_beats(now);
        }
        process
    }

    pub(super) fn is_over(&self) -> bool {
        self.lives.is_empty() && self.passing.is_none()
    }

    /// Its program has come to its end.
    pub(super) fn has_succeeded(&self) -> bool {
        self.accounts.iter().max_by_key(|account| account.seat.generation).is_some_and(|last| last.is_done)
    }

    /// Ends here and now; what was under way stays unfinished.
    pub(super) fn close(&mut self) {
        self.accounts.extend(self.lives.drain(..).map(Life::close));
    }

    /// Each thread of the process may look around. Returns when to do so again, though nothing has come.
    pub(super) fn look(&mut self) -> Option<Instant> {
        let now = self.net.lock().now;
        let mut again: Vec<_> = self.lives.iter_mut().filter_map(Life::look).collect();
        if let Some(beats) = &mut self.beats {
            if self.passing.is_none() && self.lives.last().is_some_and(Life::has_failed) {
                beats.begin(now);
            }
            again.extend(beats.look(&self.net, now));
        }
        while self.pass(now) {}
        while let Some(over) = self.lives.iter().position(Life::is_over) {
            self.accounts.push(self.lives.remove(over).close());
        }
        if self.is_over() {
            self.beats = None;
            self.ended.get_or_insert(now);
            return None;
        }
        again.extend(self.pass_until());
        again.into_iter().min()
    }

    fn watch(&self) -> Option<Arc<Watch>> {
        self.beats.as_ref().map(|beats| beats.watch.clone())
    }

    fn new_beats(&self, now: Instant) -> Option<Beats> {
        let limit = self.script.first.heartbeat?;
        Some(Beats::new(Watch::new(self.me as u64, limit, now)))
    }

    fn live(&mut self, seat: Seat, deadline: Deadline) {
        let random = self.random.fork();
        self.lives.push(Life::start(
            seat,
            &self.script,
            &self.faults,
            &self.secret,
            &self.net,
            random,
            deadline,
        ));
    }

    /// When its way to the next generation goes on by itself.
    fn pass_until(&self) -> Option<Instant> {
        match self.passing.as_ref()? {
            Passing::Computing(at) | Passing::Meeting(_, _, Look::At(at)) => Some(*at),
            Passing::Leaving(farewell, ..) => farewell.poll(self.net.lock().now).err(),
            Passing::Asking(_, ticket) | Passing::Meeting(_, _, Look::Asked(ticket)) => Some(ticket.gives_up),
        }
    }

    /// Goes on towards the next generation; whether there is more to do at once.
    fn pass(&mut self, now: Instant) -> bool {
        match self.passing.take() {
            None if self.lives.last().is_some_and(Life::stands) => {
                if self.passages.len() >= PASSAGES_MAX {
                    self.lives.iter_mut().filter(|life| life.stands()).for_each(|life| life.end(true, now));
                    return false;
                }
                let dawdles = self.faults.dawdles.iter().filter(|(who, _)| *who == self.me);
                let pause = self.random.millis(0..50) + dawdles.map(|(_, by)| *by).sum::<Duration>();
                self.passing = Some(Passing::Computing(now + pause));
            }
            None => return false,
            Some(Passing::Computing(until)) if now < until => {
                self.passing = Some(Passing::Computing(until));
                return false;
            }
            Some(Passing::Computing(_)) => self.call(now),
            Some(Passing::Leaving(farewell, party, generation)) => {
                if farewell.poll(now).is_err() {
                    self.passing = Some(Passing::Leaving(farewell, party, generation));
                    return false;
                }
                self.form(*party, generation, now);
            }
            Some(Passing::Asking(mut forming, ticket)) => {
                let Some(answer) = self.answer(ticket) else {
                    self.passing = Some(Passing::Asking(forming, ticket));
                    return false;
                };
                let step = answer.and_then(|answer| forming.answered(answer, now));
                self.step(forming, step, now);
            }
            Some(Passing::Meeting(forming, assignment, look)) => {
                return self.meet(forming, assignment, look, now);
            }
        }
        true
    }

    fn answer(&self, ticket: Ticket) -> Option<Result<Answer>> {
        self.net.lock().answer(ticket)
    }

    fn ask(&self, ask: Ask) -> Ticket {
        self.net.lock().ask(self.me, ask)
    }

    /// Calls `shrink` or `rejoin`.
    fn call(&mut self, now: Instant) {
        let life = self.lives.last().expect("it has failed there");
        let (job, membership, seat) =
            (life.job().expect("it was made"), life.membership(), &life.account.seat);
        let program = &self.script.first;
        let is_contrary =
            self.faults.contrary == Some(self.me) && self.passages.iter().all(|p| p.op == OpKind::Init);
        let (op, admission) = match program.goes_on {
            Some(GoesOn::Rejoins(size)) if !is_contrary => (OpKind::Rejoin, Admission::Elastic(size)),
            _ => (OpKind::Shrink, Admission::Survivors),
        };
        let site = CallSite { file: format!("rank{}.rs", self.me).into(), line: 0 };
        let call = Signature::bare(op, site);
        let (rank, worker, roster) = (seat.rank, self.me as u64, seat.roster.clone());
        self.beats.iter_mut().for_each(|beats| beats.begin(now));
        let farewell = Farewell::say(&**job, &call, now);
        let name = |(rank, &worker): (usize, &u64)| (worker, job.peer(rank).to_string());
        let party = Party {
            me: Candidate { worker, rank: Some(rank), call: Some((job.peer(rank), call)) },
            admission,
            before: roster.to_vec(),
            names: roster.iter().enumerate().map(name).collect(),
            lost: {
                let membership = membership.clone();
                Box::new(move || Lost::of(&membership, &roster))
            },
            watch: self.watch(),
            limits: WaitLimits::new(program.init_limit, program.limit),
            say: Box::new(|_| {}),
        };
        let generation = seat.generation;
        self.net.lock().say(worker, || format!("{worker} calls {op}"));
        self.passages.push(Passage { op, from: Some(generation), called: now, ended: None });
        self.passing = Some(Passing::Leaving(farewell, Box::new(party), generation + 1));
    }

    fn form(&mut self, party: Party<'static>, generation: u64, now: Instant) {
        let (forming, step) = Forming::begin(party, generation, now);
        self.step(Box::new(forming), Ok(step), now);
    }

    fn step(&mut self, forming: Box<Forming<'static>>, step: Result<Step>, now: Instant) {
        match step {
            Ok(Step::Ask(ask)) => self.passing = Some(Passing::Asking(forming, self.ask(ask))),
            Ok(Step::Meet(assignment, deadline)) => {
                let Assignment { generation, rank, ref roster, .. } = assignment;
                let me = self.me as u64;
                self.net.lock().say(me, || format!("{me} meets {roster:?} in generation {generation}"));
                self.live(Seat { me: self.me, generation, rank, roster: roster[..].into() }, deadline);
                self.passing = Some(Passing::Meeting(forming, assignment, Look::At(now + ASK_INTERVAL)));
            }
            Err(error) => self.passed(Err(error), now),
        }
    }

    /// Whether there is more to do at once.
    fn meet(
        &mut self,
        mut forming: Box<Forming<'static>>,
        assignment: Assignment,
        look: Look,
        now: Instant,
    ) -> bool {
        let is_new = |life: &Life| life.account.seat.generation == assignment.generation;
        let new = self.lives.iter().position(is_new);
        let met = new.and_then(|new| self.lives[new].account.met.clone());
        let look = match (met, look) {
            (Some((_, Ok(()))), _) => {
                self.passed(Ok(assignment.generation), now);
                return true;
            }
            (Some((_, Err(error))), _) => {
                let step = forming.failed(error, now);
                self.step(forming, step, now);
                return true;
            }
            (_, Look::At(at)) if at <= now => Look::Asked(self.ask(Ask::TryGet(Workers::KEY.into()))),
            (_, Look::At(at)) => Look::At(at),
            (_, Look::Asked(ticket)) => match self.answer(ticket) {
                None => Look::Asked(ticket),
                Some(answer) => {
                    let life = &mut self.lives[new.expect("it is not over before it has come together")];
                    if let Err(error) = check(&assignment, answer, now - life.account.started) {
                        life.give_up(error, now);
                        let look = Look::At(now + ASK_INTERVAL);
                        self.passing = Some(Passing::Meeting(forming, assignment, look));
                        return true;
                    }
                    Look::At(now + ASK_INTERVAL)
                }
            },
        };
        self.passing = Some(Passing::Meeting(forming, assignment, look));
        false
    }

    /// It is in the next generation, or in none.
    fn passed(&mut self, end: Result<u64>, now: Instant) {
        self.net.lock().say(self.me as u64, || format!("{} goes on: {end:?}", self.me));
        let (formed, may_try_again) = (end.clone().ok(), matches!(end, Err(Error::Mismatch { .. })));
        let passage = self.passages.last_mut().expect("it was called");
        passage.ended = Some((now, end));
        let may_try_again = may_try_again && self.passages.len() < PASSAGES_MAX;
        for life in &mut self.lives {
            match formed {
                Some(generation) if life.account.seat.generation == generation => {}
                None if may_try_again => {}
                _ if life.stands() => life.end(true, now),
                _ => {}
            }
        }
        if formed.is_some() {
            self.beats = self.new_beats(now);
        }
    }
}

/// Whether those who are to come still live.
fn check(assignment: &Assignment, answer: Result<Answer>, waited: Duration) -> Result<()> {
    let launcher = answer?.value()?.map(|value| Workers::parse(&value)).transpose()?;
    assignment.check(launcher.as_ref(), waited)
}
