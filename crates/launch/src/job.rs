//! The thread that starts the ranks and stays until the last is gone: the hands of [`Supervisor`].

use crate::event::{Event, HostEvent};
use crate::exit_kind::{ExitKind, SIGKILL, signal_name};
use crate::headline::{NamedBy, ReportedCause, Stage};
use crate::hosts::leader::Hosts;
use crate::inbox::Inbox;
use crate::label::Label;
use crate::lines::Quote;
use crate::logs::{LogFiles, Logs, discard, stderr_log};
use crate::outcome::{Failure, Outcome, Replacements};
use crate::placement::{Host, Place, next, places};
use crate::plan::{RankPlan, WORKER};
use crate::process::Ends;
use crate::program::{Program, pairs};
use crate::rank_process::RankProcess;
use crate::replacing::Spares;
use crate::stdin::RankInput;
use crate::supervise::{Action, Asked, Supervisor, Verdict, is_message};
use crate::writer::Writers;
use phalanx_core::{Error, Result};
use phalanx_rendezvous::lifeline::{Ended as WorkerEnded, Exit, FirstCause, Heard};
use phalanx_rendezvous::{LifelineServer, PrefixStore, TcpStore, Workers};
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long what ranks have said is waited for when one of them has ended. It has come, and takes microseconds to be read.
const CATCH_UP: Duration = Duration::from_millis(500);

/// The program to start, and how to treat its processes.
pub(crate) struct Job {
    pub(crate) program: Program,
    /// Whether lines are shown with the rank that wrote them.
    pub(crate) prefix: bool,
    /// Whether they are shown with the time.
    pub(crate) timestamps: bool,
    pub(crate) input: RankInput,
    pub(crate) writers: Writers,
    pub(crate) grace: Duration,
    pub(crate) timeout: Option<Duration>,
    /// How many processes of an elastic job may be replaced.
    pub(crate) replacements: usize,
    /// When its time began.
    pub(crate) began: Instant,
    /// The numbers of the processes, in rank order, for readers outside.
    pub(crate) pids: Arc<Mutex<Vec<u32>>>,
    /// How often it was started again, or how many processes were replaced.
    pub(crate) restarts: Arc<AtomicUsize>,
}

/// Plans a process for the n-th start after the first, of a rank, at a place on a host.
pub(crate) type Plan<'p> = dyn Fn(usize, usize, (&Host, Place)) -> RankPlan + 'p;

/// One start of all ranks: the parts that are new each time.
pub(crate) struct Attempt<'j> {
    pub(crate) job: &'j Job,
    pub(crate) secret: OsString,
    /// What the secret was made of, for those who know that of the job: see [`Secret::of_start`](phalanx_transport::Secret).
    pub(crate) start: u64,
    pub(crate) plan: &'j Plan<'j>,
    pub(crate) ranks: usize,
    pub(crate) number: usize,
    pub(crate) hosts: &'j mut Hosts,
    /// The connections between its ranks and this process.
    pub(crate) lifelines: &'j LifelineServer,
    /// The job's store, to tell an elastic job's ranks of each other, and what is known of its spares.
    pub(crate) elastic: Option<(PrefixStore<TcpStore>, Spares)>,
}

impl Job {
    /// Logs something, on a thread that may have to wait for who reads it: the one that supervises may not.
    pub(crate) fn log(&self, log: impl FnOnce() + Send + 'static) {
        self.writers.err.later(log);
    }
}

impl<'j> Attempt<'j> {
    /// Starts every rank, or none: when one cannot be started, those that were are killed.
    pub(crate) fn start(self, events: &'j Sender<Event>) -> Result<RunningJob<'j>> {
        let (ranks, hosts) = (self.ranks, self.hosts.present());
        let places = places(&hosts, ranks).ok_or_else(|| {
            let here: usize = hosts.iter().map(|(_, host)| host.places).sum();
            Error::config(format!(
                "the job has {ranks} ranks, and its hosts have room for {here} (-n on each)"
            ))
        })?;
        let workers = Workers { started: ranks as u64, ..Workers::default() };
        let (logs, ends) = (Logs::start(&self.job.writers)?, Ends::start()?);
        let mut job = RunningJob { slots: Vec::new(), logs, ends, workers, attempt: self, events };
        job.publish();
        for (rank, place) in places.into_iter().enumerate() {
            match job.start_rank(rank, rank as u64, 0, place) {
                Ok(slot) => job.slots.push(slot),
                Err(error) => {
                    job.slots.iter().for_each(|slot| slot.process.signal(SIGKILL));
                    job.slots.iter_mut().for_each(|slot| slot.process.reap());
                    job.slots.iter().filter_map(|slot| slot.plan.logs.as_deref()).for_each(discard);
                    return Err(error);
                }
            }
        }
        job.tell_pids();
        Ok(job)
    }
}

/// A rank's place, and the process that is there now.
struct Slot {
    process: RankProcess,
    plan: RankPlan,
    /// Its number among all that the job ever had.
    worker: u64,
    /// How often the process was replaced.
    restarts: usize,
    /// Where it is, or is to be when it is replaced; `None`: the job goes on without it.
    place: Option<Place>,
    /// The name of its host.
    host: String,
    /// The process that called `init`, where it is another one than the launcher has started.
    behind: Option<u32>,
    /// The index under which the end of its stderr is kept.
    tail: usize,
    started: Instant,
}

/// The end of an attempt.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// The request of the signals that came.
    pub(crate) asked: Asked,
    /// Whether no process is left behind.
    pub(crate) all_gone: bool,
}

/// The ranks of a job, all started.
pub(crate) struct RunningJob<'j> {
    /// In rank order.
    slots: Vec<Slot>,
    logs: Logs,
    ends: Ends,
    workers: Workers,
    attempt: Attempt<'j>,
    events: &'j Sender<Event>,
}

impl RunningJob<'_> {
    /// Starts a rank's process, or leaves nothing of it.
    fn start_rank(&mut self, rank: usize, worker: u64, restarts: usize, place: Place) -> Result<Slot> {
        let host = self.attempt.hosts.host(place.node);
        let host = host.ok_or_else(|| Error::config(format!("node {} is not here any more", place.node)))?;
        let attempt = self.attempt.number + restarts;
        let mut plan = (self.attempt.plan)(attempt, rank, (&host, place));
        if restarts > 0 {
            plan.env.insert(WORKER, worker.to_string());
        }
        let files = plan.logs.as_deref().map(LogFiles::create).transpose()?;
        let started = self.start_process(rank, &plan, (&host, place), files);
        let (process, tail) = started.inspect_err(|_| plan.logs.as_deref().into_iter().for_each(discard))?;
        Ok(Slot {
            process,
            plan,
            worker,
            restarts,
            place: Some(place),
            host: host.name,
            behind: None,
            tail,
            started: Instant::now(),
        })
    }

    fn start_process(
        &mut self,
        rank: usize,
        plan: &RankPlan,
        (host, place): (&Host, Place),
        files: Option<LogFiles>,
    ) -> Result<(RankProcess, usize)> {
        let Attempt { job, secret, start, hosts, .. } = &mut self.attempt;
        let mut process = if place.node == 0 {
            let input = job.input.of(rank)?;
            RankProcess::Here(job.program.start(secret, pairs(&plan.env), input)?)
        } else {
            let env = pairs(&plan.env).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let started = hosts.start(place, *start, env);
            RankProcess::There(started.ok_or_else(|| Error::Internal { what: "a host too many".into() })?)
        };
        match self.watch(rank, &host.name, &mut process, files) {
            Ok(tail) => Ok((process, tail)),
            Err(error) => {
                process.signal(SIGKILL);
                process.reap();
                Err(error)
            }
        }
    }

    /// Begins to read what the process writes, and to wait for its end. Returns where the end of its stderr is kept.
    fn watch(
        &mut self,
        rank: usize,
        host: &str,
        process: &mut RankProcess,
        files: Option<LogFiles>,
    ) -> Result<usize> {
        let job = self.attempt.job;
        let who = match (job.prefix, self.attempt.hosts.are_several()) {
            (false, _) => String::new(),
            (true, false) => rank.to_string(),
            (true, true) => format!("{rank} {host}"),
        };
        let label = Label { who, time: job.timestamps };
        let output = process.take_output().map_err(|error| Error::io("taking a rank's output", error))?;
        let tail = self.logs.add(rank, label, output, &job.writers, files);
        let events = self.events.clone();
        let ended = move |exit| {
            // The receiver is gone only when the job was given up.
            let _ = events.send(Event::Exited { rank, exit });
        };
        process.watch(&self.ends, ended).map_err(|error| Error::io("waiting for a rank's end", error))?;
        Ok(tail)
    }

    /// Starts a process in the place of the one that was this rank and has ended.
    fn replace(&mut self, rank: usize) -> Result<()> {
        let slot = &mut self.slots[rank];
        slot.restarts += 1;
        let (worker, restarts, place) = (slot.worker, slot.restarts, slot.place);
        let place = place.ok_or_else(|| Error::Internal { what: "no place for a rank".into() })?;
        self.slots[rank] = self.start_rank(rank, worker, restarts, place)?;
        self.attempt.job.restarts.fetch_add(1, Ordering::Relaxed);
        self.tell_pids();
        Ok(())
    }

    /// Where a process could be started that takes the place of this rank's, which has ended.
    fn next_place(&self, rank: usize) -> Option<Place> {
        let others = self.slots.iter().enumerate().filter(move |(other, _)| *other != rank);
        let taken = others.filter_map(|(_, slot)| slot.place);
        next(&self.attempt.hosts.present(), self.slots[rank].place?, taken)
    }

    fn tell_pids(&self) {
        let pids = self.slots.iter().map(|slot| slot.process.id()).collect();
        *self.attempt.job.pids.lock().unwrap_or_else(PoisonError::into_inner) = pids;
    }

    /// Tells the ranks of an elastic job which processes there are.
    fn publish(&self) {
        if let Some((store, _)) = &self.attempt.elastic
            && let Err(error) = self.workers.publish(store)
        {
            let what = "the ranks are not told which processes have ended";
            self.attempt.job.log(move || tracing::error!(%error, "{what}"));
        }
    }

    /// Stays until the job is over: no rank is left, and their output is read.
    pub(crate) fn supervise(mut self, events: &Receiver<Event>) -> Result<Ended> {
        let job = self.attempt.job;
        let Job { grace, timeout, began, .. } = *job;
        let spares = self.attempt.elastic.as_ref().map(|(_, spares)| *spares);
        let mut supervisor = Supervisor::new(self.slots.len(), grace, timeout, spares, began);
        let (mut announced, mut inbox) = (false, Inbox::default());
        while !supervisor.is_over() {
            let event = match (inbox.pop(), supervisor.deadline()) {
                (Some(event), _) => Ok(event),
                (None, None) => events.recv().map_err(RecvTimeoutError::from),
                (None, Some(due)) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let action = match event {
                Ok(Event::Exited { rank, exit }) => {
                    // What it has said comes on another thread, and came first.
                    for heard in inbox.catch_up(events, || self.attempt.lifelines.catch_up(CATCH_UP)) {
                        self.hear(heard, &mut supervisor);
                    }
                    let place = self.next_place(rank);
                    let action = supervisor.exited(rank, exit, place.is_some(), Instant::now());
                    self.slots[rank].place =
                        place.filter(|_| matches!(action, Some(Action::WillReplace { .. })));
                    self.ended(rank, exit, action);
                    action
                }
                Ok(Event::Signal(signal)) => supervisor.signalled(signal, Instant::now()),
                Ok(event @ Event::Heard { .. }) => {
                    self.hear(event, &mut supervisor);
                    None
                }
                Ok(Event::Host(event)) => {
                    match &event {
                        HostEvent::Came { .. } | HostEvent::ShellEnded { .. } => {
                            job.log(move || tracing::info!("{event}"));
                        }
                        HostEvent::Lost { .. } | HostEvent::Deaf { .. } => {
                            job.log(move || tracing::warn!("{event}"));
                        }
                    }
                    None
                }
                Ok(Event::Order(_) | Event::LeaderLost(_) | Event::TaskExited { .. }) => None,
                Err(RecvTimeoutError::Timeout) => supervisor.poll(Instant::now()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal { what: "nobody watches the ranks any more".into() });
                }
            };
            match action {
                Some(Action::Signal(signal)) => {
                    supervisor.living().for_each(|rank| self.slots[rank].process.signal(signal));
                }
                Some(Action::PassOn(signal)) => {
                    let deaf: Vec<usize> = supervisor
                        .living()
                        .filter(|&rank| {
                            let slot = &self.slots[rank];
                            !slot.process.tell(signal, slot.behind)
                        })
                        .collect();
                    let name = signal_name(signal);
                    job.log(move || match deaf.as_slice() {
                        [] => tracing::info!("{name} was passed on to all ranks"),
                        deaf => tracing::warn!(
                            "{name} was not passed on to ranks {deaf:?}, which have no handler for it and would die of it"
                        ),
                    });
                }
                Some(Action::Replace { rank }) => {
                    if let Err(error) = self.replace(rank) {
                        job.log(move || tracing::error!(rank, %error, "it cannot be replaced"));
                        // It was told to be there, and has ended already.
                        inbox.push(Event::Exited { rank, exit: ExitKind::Unknown });
                    }
                }
                Some(Action::WillReplace { .. }) | None => {}
            }
            if !announced
                && !supervisor.is_over()
                && let Some(verdict) = supervisor.verdict()
            {
                let on = self.named(verdict).filter(|_| self.attempt.hosts.are_several());
                let on = on.map(|slot| format!(" on {}", slot.host)).unwrap_or_default();
                job.log(move || announce(verdict, &on));
                announced = true;
            }
        }
        for rank in supervisor.living() {
            let pid = self.slots[rank].process.id();
            job.log(move || tracing::error!(rank, pid, "does not end even after SIGKILL; it is left behind"));
        }
        let all_gone = supervisor.living().next().is_none();
        let verdict =
            supervisor.verdict().ok_or_else(|| Error::Internal { what: "over without a reason".into() })?;
        let words = supervisor.headline().words().map(String::from);
        let spares = supervisor.spares();
        // It takes a second if somebody still holds the output open.
        let outcome = self.outcome(verdict, words, spares);
        // Who asked meanwhile, when no rank was left, can only have meant the output.
        let was_asked = inbox.iter().any(is_request) || was_asked(events);
        let asked = if was_asked { Asked::AtOnce } else { supervisor.asked() };
        Ok(Ended { outcome, asked, all_gone })
    }

    /// The slot of the rank that a verdict names.
    fn named(&self, verdict: Verdict) -> Option<&Slot> {
        if let Verdict::Failed { rank, .. } = verdict { self.slots.get(rank) } else { None }
    }

    /// A process has said something.
    fn hear(&mut self, event: Event, supervisor: &mut Supervisor) {
        let Event::Heard { attempt, heard } = event else { return };
        if attempt != self.attempt.number {
            return;
        }
        let (Heard::Here { worker, .. }
        | Heard::Formed { worker, .. }
        | Heard::Failed { worker, .. }
        | Heard::GaveUp { worker, .. }) = heard;
        let Some(rank) = self.rank_of(worker) else { return };
        let headline = supervisor.headline();
        match heard {
            Heard::Here { pid, .. } => {
                let slot = &mut self.slots[rank];
                slot.behind = Some(pid).filter(|&pid| pid != slot.process.id());
                headline.here(rank);
            }
            Heard::Formed { generation, .. } => headline.formed(generation),
            Heard::Failed { generation, first, .. } => {
                if let Some(told) = self.told(first) {
                    headline.told(rank, Stage::Generation(generation), told, Instant::now());
                }
            }
            Heard::GaveUp { first, .. } => {
                if let Some(told) = self.told(first) {
                    headline.told(rank, Stage::Init, told, Instant::now());
                }
            }
        }
    }

    /// The same with ranks instead of workers; `None` if the worker at fault was replaced.
    fn told(&self, first: FirstCause) -> Option<ReportedCause> {
        let culprit = match first.culprit {
            None => None,
            Some(worker) => Some(self.rank_of(worker)?),
        };
        Some(ReportedCause { culprit, words: first.words })
    }

    fn rank_of(&self, worker: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.worker == worker)
    }

    /// The process of this rank has ended; the ranks hear of it and of its replacement in one.
    fn ended(&mut self, rank: usize, exit: ExitKind, action: Option<Action>) {
        let slot = &mut self.slots[rank];
        slot.process.reap();
        self.workers.ended.push(slot.worker);
        if exit == ExitKind::HostLost {
            // Nobody there can end what a wrapper has started.
            self.attempt.lifelines.end(slot.worker);
        }
        // How a wrapper ended says nothing of the rank.
        let told = if slot.behind.is_some() { Exit::Unknown } else { exit.told() };
        self.attempt.lifelines.tell(WorkerEnded { worker: slot.worker, exit: told });
        self.workers.succeeded |= exit.is_success();
        if let Some(Action::WillReplace { after, .. }) = action {
            slot.worker = self.workers.started;
            self.workers.started += 1;
            let (pid, after) = (slot.process.id(), after.as_secs_f64());
            let on =
                if self.attempt.hosts.are_several() { format!(" on {}", slot.host) } else { String::new() };
            self.attempt.job.log(move || {
                tracing::warn!("rank {rank} (pid {pid}{on}) {exit}; it is replaced in {after:.1} s");
            });
        }
        self.publish();
    }

    fn outcome(self, verdict: Verdict, words: Option<String>, spares: Option<(Spares, usize)>) -> Outcome {
        let mut tails = self.logs.drain(&self.attempt.job.writers);
        match verdict {
            Verdict::Success => Outcome::Success,
            Verdict::Interrupted { signal } => Outcome::Interrupted { signal },
            Verdict::TimedOut => Outcome::TimedOut { limit: self.attempt.job.timeout.unwrap_or_default() },
            Verdict::Failed { rank, exit, at, by, code } => {
                let slot = &self.slots[rank];
                let Quote { lines, panic } = tails.swap_remove(slot.tail);
                Outcome::Failure(Box::new(Failure {
                    rank,
                    world_size: self.slots.len(),
                    pid: slot.process.id(),
                    host: self.attempt.hosts.are_several().then(|| slot.host.clone()),
                    host_fault: slot.process.host_fault().filter(|_| exit == ExitKind::HostLost),
                    exit,
                    named_by: by,
                    first_cause: words.filter(|_| by != NamedBy::Exit),
                    exit_code: code,
                    panic,
                    stderr_tail: lines,
                    stderr_log: slot.plan.logs.as_deref().map(stderr_log),
                    after: at.saturating_duration_since(slot.started),
                    spares: spares.map(|(spares, sound)| Replacements {
                        used: self.attempt.job.replacements - spares.left,
                        most: self.attempt.job.replacements,
                        sound,
                        min: spares.min,
                    }),
                    interrupted: false,
                }))
            }
        }
    }
}

/// Whether a request to end is among what has happened since. Takes all of it.
pub(crate) fn was_asked(events: &Receiver<Event>) -> bool {
    events.try_iter().any(|event| is_request(&event))
}

/// Whether it asks for the end of the job.
fn is_request(event: &Event) -> bool {
    matches!(event, Event::Signal(signal) if !is_message(*signal))
}

/// Says at once what the outcome will say in full when the other ranks are gone, which may take them a while.
fn announce(verdict: Verdict, on: &str) {
    match verdict {
        Verdict::Success => {}
        Verdict::Failed { by: NamedBy::Nobody, .. } => tracing::error!("the ranks disagree; ending them"),
        Verdict::Failed { rank, exit, .. } => tracing::error!("rank {rank}{on} {exit}; ending the others"),
        Verdict::Interrupted { signal } => tracing::warn!("passing {} on to all ranks", signal_name(signal)),
        Verdict::TimedOut => tracing::error!("time is up; ending all ranks"),
    }
}
