//! One run: a world, its faults, and the events one after the other.

use super::check;
use super::faults::Faults;
use super::log::Log;
use super::network::{Event, Net, Network};
use super::process::Process;
use super::program::Program;
use super::random::Random;
use super::strangers::{Caller, Impostor};
use phalanx_transport::Secret;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More than any run needs; one that does more goes round in circles.
const EVENTS_MAX: usize = 300_000;

/// What became of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) program: Arc<Program>,
    pub(super) faults: Faults,
    /// By rank; `None`: it never started.
    pub(super) processes: Vec<Option<Process>>,
    /// What must not happen, and did.
    pub(super) violations: Vec<String>,
    pub(super) log: Log,
    pub(super) start: Instant,
}

/// The processes and what the scheduler knows of them.
struct World {
    net: Net,
    secret: Secret,
    random: Random,
    run: Run,
    callers: Vec<Option<Caller>>,
    impostor: Impostor,
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
    let program = Arc::new(Program::draw(seed, &mut random.fork()));
    let faults = Faults::draw(&mut random.fork(), program.world_size, program.lines.len(), program.length());
    run_with(program, faults, start, random, Log::new(start, told))
}

fn run_with(program: Arc<Program>, faults: Faults, start: Instant, mut random: Random, log: Log) -> Run {
    let (ranks, strangers) = (program.world_size, faults.strangers.len());
    let processes = ranks + strangers + 1;
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
    drop(network);
    let mut world = World {
        secret: Secret::from_hex(&"c3".repeat(32)).expect("it is one"),
        random,
        callers: (0..strangers).map(|_| None).collect(),
        impostor: Impostor::new(processes - 1, &net),
        timers: vec![None; processes],
        due: vec![None; processes],
        dead: vec![false; processes],
        run: Run {
            program,
            faults,
            processes: (0..ranks).map(|_| None).collect(),
            violations: Vec::new(),
            log,
            start,
        },
        net,
    };
    world.events();
    let World { mut run, net, .. } = world;
    let mut network = net.lock();
    run.violations.append(&mut network.violations);
    run.log = network.log.clone();
    drop(network);
    run.violations.extend(check::violations(&run));
    run
}

impl World {
    fn events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = ({ self.net.lock().next_event() }) else { return };
            match event {
                Event::Wake(process) => self.wake(process),
                Event::Knock(_) => unreachable!("the network sees to that itself"),
                Event::Start(rank) if self.dead[rank] => {}
                Event::Start(rank) => {
                    let Run { program, faults, processes, .. } = &mut self.run;
                    let random = self.random.fork();
                    let process =
                        Process::start(rank, program.clone(), faults, self.secret.clone(), &self.net, random);
                    processes[rank] = Some(process);
                    self.wake(rank);
                }
                Event::Die(rank) => {
                    self.dead[rank] = true;
                    let mut network = self.net.lock();
                    network.say(rank as u64, || format!("{rank} dies"));
                    network.leave(rank);
                }
                Event::Reset(pair) => self.net.lock().reset(pair),
                Event::Stranger(i) => {
                    let world_size = self.run.program.world_size;
                    let stranger = self.run.faults.strangers[i];
                    let caller = Caller::arrive(
                        (world_size + i, world_size),
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

    fn wake(&mut self, process: usize) {
        let ranks = self.run.program.world_size;
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
    }
}
