//! The thread that starts the ranks and stays until the last is gone: the hands of [`Supervisor`].

use crate::event::Event;
use crate::exit_kind::{ExitKind, SIGKILL, signal_name};
use crate::headline::{NamedBy, ReportedCause, Stage};
use crate::lines::Quote;
use crate::logs::{LogFiles, Logs, discard, stderr_log};
use crate::outcome::{Failure, Outcome, Replacements};
use crate::plan::{RankPlan, WORKER};
use crate::process::Process;
use crate::replacing::Spares;
use crate::start_error::why_not_started;
use crate::supervise::{Action, Asked, Supervisor, Verdict, is_message};
use crate::writer::Writers;
use phalanx_core::{Error, Result};
use phalanx_rendezvous::lifeline::{Ended as WorkerEnded, Exit, FirstCause, Heard};
use phalanx_rendezvous::{LifelineServer, PrefixStore, TcpStore, Workers};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long what ranks have said is waited for when one of them has ended. It has come, and takes microseconds to be read.
const CATCH_UP: Duration = Duration::from_millis(500);

/// The program to start, and how to treat its processes.
pub(crate) struct Job {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Variables that the user sets in all ranks.
    pub(crate) env: Vec<(String, OsString)>,
    /// Variables of this process that the ranks don't get.
    pub(crate) not_inherited: Vec<&'static str>,
    pub(crate) prefix: bool,
    pub(crate) writers: Writers,
    pub(crate) grace: Duration,
    pub(crate) timeout: Option<Duration>,
    /// How many processes of an elastic job may be replaced.
    pub(crate) replacements: usize,
    /// When its time began.
    pub(crate) began: Instant,
    /// The numbers of the processes, in rank order, for readers outside.
    pub(crate) pids: Arc<Mutex<Vec<u32>>>,
}

/// One start of all ranks: the parts that are new each time.
pub(crate) struct Attempt<'j> {
    pub(crate) job: &'j Job,
    pub(crate) secret: OsString,
    /// The processes as they are started for the n-th time after the first.
    pub(crate) plan: &'j dyn Fn(usize) -> Vec<RankPlan>,
    pub(crate) number: usize,
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
        let plans = (self.plan)(self.number);
        let workers = Workers { started: plans.len() as u64, ..Workers::default() };
        let mut job = RunningJob { slots: Vec::new(), logs: Logs::new(), workers, attempt: self, events };
        job.publish();
        for (rank, plan) in plans.into_iter().enumerate() {
            match job.start_rank(rank, plan) {
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

    fn command(&self, plan: &RankPlan) -> Command {
        let mut command = Command::new(&self.job.program);
        command.args(&self.job.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in &self.job.not_inherited {
            command.env_remove(name);
        }
        command
            .envs(self.job.env.iter().map(|(name, value)| (name, value)))
            .env("PHALANX_SECRET", &self.secret)
            .envs(&plan.env);
        command
    }
}

/// A rank's place, and the process that is there now.
struct Slot {
    process: Process,
    plan: RankPlan,
    /// Its number among all that the job ever had.
    worker: u64,
    /// How often the process was replaced.
    restarts: usize,
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
    workers: Workers,
    attempt: Attempt<'j>,
    events: &'j Sender<Event>,
}

impl RunningJob<'_> {
    /// Starts a rank's process, or leaves nothing of it.
    fn start_rank(&mut self, rank: usize, plan: RankPlan) -> Result<Slot> {
        let files = plan.logs.as_deref().map(LogFiles::create).transpose()?;
        let started = self.start_process(rank, &plan, files);
        let (process, tail) = started.inspect_err(|_| plan.logs.as_deref().into_iter().for_each(discard))?;
        Ok(Slot {
            process,
            plan,
            worker: rank as u64,
            restarts: 0,
            behind: None,
            tail,
            started: Instant::now(),
        })
    }

    fn start_process(
        &mut self,
        rank: usize,
        plan: &RankPlan,
        files: Option<LogFiles>,
    ) -> Result<(Process, usize)> {
        let started = Process::start(self.attempt.command(plan));
        let mut process = started.map_err(|error| why_not_started(&self.attempt.job.program, error))?;
        match self.watch(rank, &mut process, files) {
            Ok(tail) => Ok((process, tail)),
            Err(error) => {
                process.signal(SIGKILL);
                process.reap();
                Err(error)
            }
        }
    }

    /// Begins to read what the process writes, and to wait for its end. Returns where the end of its stderr is kept.
    fn watch(&mut self, rank: usize, process: &mut Process, files: Option<LogFiles>) -> Result<usize> {
        let job = self.attempt.job;
        let prefix = if job.prefix { format!("[{rank}] ") } else { String::new() };
        let output = process.take_output();
        let output = output.ok_or_else(|| Error::Internal { what: "output is not piped".into() })?;
        let tail = self.logs.add(rank, &prefix, output, &job.writers, files)?;
        let events = self.events.clone();
        let ended = move |exit| {
            // The receiver is gone only when the job was given up.
            let _ = events.send(Event::Exited { rank, exit });
        };
        let failed = |error| Error::io("starting a thread that waits for a rank", error);
        process.watch(ended).map_err(failed)?;
        Ok(tail)
    }

    /// Starts a process in the place of the one that was this rank and has ended.
    fn replace(&mut self, rank: usize) -> Result<()> {
        let (worker, restarts) = (self.slots[rank].worker, self.slots[rank].restarts + 1);
        self.slots[rank].restarts = restarts;
        let mut plan = (self.attempt.plan)(restarts).swap_remove(rank);
        plan.env.insert(WORKER, worker.to_string());
        let slot = self.start_rank(rank, plan)?;
        self.slots[rank] = Slot { worker, restarts, ..slot };
        self.tell_pids();
        Ok(())
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
        let (mut announced, mut inbox) = (false, VecDeque::new());
        while !supervisor.is_over() {
            let event = match (inbox.pop_front(), supervisor.deadline()) {
                (Some(event), _) => Ok(event),
                (None, None) => events.recv().map_err(RecvTimeoutError::from),
                (None, Some(due)) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let action = match event {
                Ok(Event::Exited { rank, exit }) => {
                    // What it has said comes on another thread, and came first.
                    self.attempt.lifelines.catch_up(CATCH_UP);
                    let (heard, others): (Vec<_>, Vec<_>) = inbox
                        .drain(..)
                        .chain(events.try_iter())
                        .partition(|e| matches!(e, Event::Heard { .. }));
                    heard.into_iter().for_each(|event| self.hear(event, &mut supervisor));
                    inbox.extend(others);
                    let action = supervisor.exited(rank, exit, Instant::now());
                    self.ended(rank, exit, action);
                    action
                }
                Ok(Event::Signal(signal)) => supervisor.signalled(signal, Instant::now()),
                Ok(event @ Event::Heard { .. }) => {
                    self.hear(event, &mut supervisor);
                    None
                }
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
                        inbox.push_back(Event::Exited { rank, exit: ExitKind::Unknown });
                    }
                }
                Some(Action::WillReplace { .. }) | None => {}
            }
            if !announced
                && !supervisor.is_over()
                && let Some(verdict) = supervisor.verdict()
            {
                job.log(move || announce(verdict));
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
        // How a wrapper ended says nothing of the rank.
        let told = if slot.behind.is_some() { Exit::Unknown } else { exit.told() };
        self.attempt.lifelines.tell(WorkerEnded { worker: slot.worker, exit: told });
        self.workers.succeeded |= exit.is_success();
        if let Some(Action::WillReplace { after, .. }) = action {
            slot.worker = self.workers.started;
            self.workers.started += 1;
            let (pid, after) = (slot.process.id(), after.as_secs_f64());
            self.attempt.job.log(move || {
                tracing::warn!("rank {rank} (pid {pid}) {exit}; it is replaced in {after:.1} s");
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
fn announce(verdict: Verdict) {
    match verdict {
        Verdict::Success => {}
        Verdict::Failed { by: NamedBy::Nobody, .. } => tracing::error!("the ranks disagree; ending them"),
        Verdict::Failed { rank, exit, .. } => tracing::error!("rank {rank} {exit}; ending the others"),
        Verdict::Interrupted { signal } => tracing::warn!("passing {} on to all ranks", signal_name(signal)),
        Verdict::TimedOut => tracing::error!("time is up; ending all ranks"),
    }
}
