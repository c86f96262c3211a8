//! One run: a world, its faults, and the events one after the other.

use super::check;
use super::check_generations;
use super::era::{self, Era};
use super::faults::{Faults, Stop};
use super::launcher::Launcher;
use super::log::Log;
use super::network::{Event, Net, Network};
use super::process::Process;
use super::program::{Program, Script};
use super::random::Random;
use super::strangers::{Caller, Impostor};
use phalanx_rendezvous::MemoryStore;
use phalanx_transport::Secret;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More than any run needs; one that does more goes round in circles.
const EVENTS_MAX: usize = 300_000;

/// What became of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) script: Arc<Script>,
    pub(super) faults: Faults,
    /// `None`: it never started.
    pub(super) processes: Vec<Option<Process>>,
    /// Its generations, when it is over.
    pub(super) eras: Vec<Era>,
    /// What must not happen, and did.
    pub(super) violations: Vec<String>,
    pub(super) log: Log,
    pub(super) start: Instant,
    /// What stands in the store, when it is over.
    pub(super) table: MemoryStore,
}

/// The processes and what the scheduler knows of them.
struct World {
    net: Net,
    secret: Secret,
    random: Random,
    run: Run,
    callers: Vec<Option<Caller>>,
    impostor: Impostor,
    launcher: Option<Launcher>,
    /// When each process looks again by itself.
    timers: Vec<Option<Instant>>,
    /// When each slow process gets to it.
    due: Vec<Option<Instant>>,
    dead: Vec<bool>,
}

/// Runs one seed. `told`: the log keeps lines.
pub(super) fn run(seed: u64, told: bool) -> Run {
    let mut random = Random::new(seed);
    let start = Instant::now();
    let program = Program::draw(seed, &mut random.fork());
    let (world_size, length) = (program.world_size, program.length());
    let mut faults = Faults::draw(&mut random.fork(), world_size, program.lines.len(), length);
    if program.goes_on.is_some() {
        faults.draw_later(&mut random.fork(), world_size, length, program.elastic().is_some());
    }
    run_with(Script::new(program), faults, start, random, Log::new(start, told))
}

fn run_with(script: Script, faults: Faults, start: Instant, mut random: Random, log: Log) -> Run {
    let (ranks, strangers) = (script.first.world_size, faults.strangers.len());
    let all = ranks + faults.spares.len();
    let processes = all + strangers + 1;
    let net = Net::new(Network::new(start, faults.clone(), processes, random.fork(), log.clone()));
    let mut network = net.lock();
    for rank in 0..ranks {
        let late = faults.late.iter().filter(|(r, _)| *r == rank).map(|(_, by)| *by).max();
        let at = late.unwrap_or(random.millis(0..30));
        if at < Duration::MAX {
            network.plan(at, Event::Start(rank));
        }
    }
    faults.deaths.iter().for_each(|&(at, rank)| network.plan(at, Event::Die(rank)));
    faults.resets.iter().for_each(|&(at, pair)| network.plan(at, Event::Reset(pair)));
    faults.strangers.iter().enumerate().for_each(|(i, s)| network.plan(s.at, Event::Stranger(i)));
    let table = network.store().table.clone();
    drop(network);
    let is_elastic = script.first.elastic().is_some();
    let mut world = World {
        launcher: is_elastic.then(|| Launcher::start(ranks, &faults.spares, &net)),
        secret: Secret::from_hex(&"c3".repeat(32)).expect("it is one"),
        random,
        callers: (0..strangers).map(|_| None).collect(),
        impostor: Impostor::new(processes - 1, &net),
        timers: vec![None; processes],
        due: vec![None; processes],
        dead: vec![false; processes],
        run: Run {
            script: Arc::new(script),
            faults,
            processes: (0..all).map(|_| None).collect(),
            eras: Vec::new(),
            violations: Vec::new(),
            log,
            start,
            table,
        },
        net,
    };
    world.events();
    let World { mut run, net, .. } = world;
    let mut network = net.lock();
    run.violations.append(&mut network.violations);
    run.log = network.log.clone();
    drop(network);
    run.processes.iter_mut().flatten().for_each(Process::close);
    run.eras = era::of_run(&run.script, &run.faults, &mut run.processes, &mut run.violations);
    let broken = run.eras.iter().flat_map(|era| {
        let generation = era.generation;
        check::violations(era).into_iter().map(move |what| format!("generation {generation}: {what}"))
    });
    run.violations.extend(broken);
    run.violations.extend(check_generations::violations(&run));
    run
}

impl World {
    fn events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = ({ self.net.lock().next_event() }) else { return };
            match event {
                Event::Wake(process) => self.wake(process),
                Event::Knock(_) | Event::Ask(_) => unreachable!("the network sees to that itself"),
                Event::Start(rank) if self.dead[rank] => {}
                Event::Start(rank) => {
                    let Run { script, faults, processes, .. } = &mut self.run;
                    let random = self.random.fork();
                    processes[rank] =
                        Some(Process::start(rank, script, faults, &self.secret, &self.net, random));
                    self.wake(rank);
                }
                Event::Die(rank) => self.die(rank),
                Event::Hurt(number) => {
                    let harm = self.run.faults.harms[number];
                    let at = self.net.lock().elapsed();
                    match harm.stops {
                        None => {
                            self.run.faults.deaths.push((at, harm.process));
                            self.die(harm.process);
                        }
                        Some(long) => {
                            let stop = Stop { rank: harm.process, at, until: at + long };
                            self.run.faults.stops.push(stop);
                        }
                    }
                }
                Event::Ended(rank) => {
                    let succeeded = self.run.processes[rank].as_ref().is_some_and(Process::has_succeeded);
                    let succeeded = succeeded && !self.dead[rank];
                    if let Some(launcher) = &mut self.launcher {
                        launcher.ended(rank, succeeded, &self.net);
                    }
                }
                Event::Reset(pair) => self.net.lock().reset(pair),
                Event::Stranger(i) => {
                    let world_size = self.run.script.first.world_size;
                    let stranger = self.run.faults.strangers[i];
                    let caller = Caller::arrive(
                        (self.run.processes.len() + i, world_size),
                        stranger,
                        &self.secret,
                        &self.net,
                        &mut self.random,
                    );
                    self.callers[i] = Some(caller);
                }
            }
        }
        self.run.violations.push("the run does not come to an end".into());
    }

    fn die(&mut self, rank: usize) {
        let is_over = self.run.processes[rank].as_ref().is_some_and(Process::is_over);
        if is_over || std::mem::replace(&mut self.dead[rank], true) {
            return;
        }
        let mut network = self.net.lock();
        network.say(rank as u64, || format!("{rank} dies"));
        network.leave(rank);
        drop(network);
        self.end(rank);
    }

    /// The launcher sees that a process has ended.
    fn end(&mut self, rank: usize) {
        let mut network = self.net.lock();
        let at = network.now + self.random.millis(1..100);
        network.at(at, Event::Ended(rank));
    }

    fn wake(&mut self, process: usize) {
        let ranks = self.run.processes.len();
        if process >= ranks + self.callers.len() {
            return self.impostor.look(&self.net, &mut self.random);
        }
        if process >= ranks {
            if let Some(caller) = &mut self.callers[process - ranks] {
                caller.look(&self.net);
            }
            return;
        }
        let Some(rank) = &mut self.run.processes[process] else { return };
        if self.dead[process] || rank.is_over() {
            return;
        }
        let (now, elapsed) = {
            let network = self.net.lock();
            (network.now, network.elapsed())
        };
        let stop =
            self.run.faults.stops.iter().find(|s| s.rank == process && s.at <= elapsed && elapsed < s.until);
        if let Some(stop) = stop {
            if stop.until < Duration::MAX && self.timers[process] != Some(self.run.start + stop.until) {
                self.timers[process] = Some(self.run.start + stop.until);
                self.net.lock().plan(stop.until, Event::Wake(process));
            }
            return;
        }
        let lag = self.run.faults.lag(process);
        if !lag.is_zero() {
            match self.due[process] {
                None => {
                    self.due[process] = Some(now + lag);
                    return self.net.lock().at(now + lag, Event::Wake(process));
                }
                Some(due) if now < due => return,
                Some(_) => self.due[process] = None,
            }
        }
        if self.timers[process].is_some_and(|at| at <= now) {
            self.timers[process] = None;
        }
        if let Some(again) = rank.look() {
            let again = again.max(now);
            if self.timers[process].is_none_or(|at| again < at) {
                self.timers[process] = Some(again);
                self.net.lock().at(again, Event::Wake(process));
            }
        }
        if rank.is_over() {
            self.end(process);
        }
    }
}
