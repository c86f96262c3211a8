//! The thread that starts the ranks and stays until the last is gone: the hands of [`Supervisor`].

use crate::logs::{LogFiles, Logs, discard, stderr_log};
use crate::outcome::{ExitKind, Failure, Outcome, signal_name};
use crate::plan::{RankPlan, WORKER};
use crate::process::Process;
use crate::supervise::{Action, Asked, Event, SIGKILL, Spares, Supervisor, Verdict};
use crate::writer::Writers;
use phalanx_core::{Error, Result};
use phalanx_rendezvous::lifeline::Ended as WorkerEnded;
use phalanx_rendezvous::{LifelineServer, PrefixStore, TcpStore, Workers};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What to start, and how to treat it.
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
    /// When its time began.
    pub(crate) began: Instant,
    /// Where the processes' numbers stand for those who want to know, in rank order.
    pub(crate) pids: Arc<Mutex<Vec<u32>>>,
}

/// One start of all ranks: what is new each time.
pub(crate) struct Attempt<'j> {
    pub(crate) job: &'j Job,
    pub(crate) secret: OsString,
    /// The processes as they are started for the n-th time after the first.
    pub(crate) plan: &'j dyn Fn(usize) -> Vec<RankPlan>,
    pub(crate) number: usize,
    /// What its ranks and this process tell each other.
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

    fn cannot_start(&self, error: std::io::Error) -> Error {
        let program = self.job.program.display();
        if error.kind() == ErrorKind::NotFound {
            let by_path = self.job.program.to_string_lossy().contains(std::path::MAIN_SEPARATOR);
            let tried = if by_path { "that path" } else { "the folders of PATH" };
            return Error::Unavailable { what: format!("program {program}"), tried: tried.to_owned() };
        }
        Error::io(format!("starting {program}"), error)
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
    /// Where the end of its stderr is kept.
    tail: usize,
    started: Instant,
}

/// The end of an attempt.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// What signals asked for.
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
        Ok(Slot { process, plan, worker: rank as u64, restarts: 0, tail, started: Instant::now() })
    }

    fn start_process(
        &mut self,
        rank: usize,
        plan: &RankPlan,
        files: Option<LogFiles>,
    ) -> Result<(Process, usize)> {
        let started = Process::start(self.attempt.command(plan));
        let mut process = started.map_err(|error| self.attempt.cannot_start(error))?;
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
        let tail = self.logs.add(&prefix, output, &job.writers, files)?;
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
        let (worker, restarts) = (self.workers.started - 1, self.slots[rank].restarts + 1);
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
        let (mut announced, mut next) = (false, None);
        while !supervisor.is_over() {
            let event = match (next.take(), supervisor.deadline()) {
                (Some(event), _) => Ok(event),
                (None, None) => events.recv().map_err(RecvTimeoutError::from),
                (None, Some(due)) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let action = match event {
                Ok(event) => {
                    let action = supervisor.handle(event, Instant::now());
                    if let Event::Exited { rank, exit } = event {
                        self.ended(rank, exit, action);
                    }
                    action
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
                Some(Action::Replace { rank }) => {
                    if let Err(error) = self.replace(rank) {
                        job.log(move || tracing::error!(rank, %error, "it cannot be replaced"));
                        // It was told to be there, and has ended already.
                        self.slots[rank].worker = self.workers.started - 1;
                        next = Some(Event::Exited { rank, exit: ExitKind::Unknown });
                    }
                }
                None => {}
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
        // It takes a second if somebody still holds the output open.
        let outcome = self.outcome(verdict);
        // Who asked meanwhile, when no rank was left, can only have meant the output.
        let asked = if was_asked(events) { Asked::AtOnce } else { supervisor.asked() };
        Ok(Ended { outcome, asked, all_gone })
    }

    /// The process of this rank has ended; the ranks hear of it and of its replacement in one.
    fn ended(&mut self, rank: usize, exit: ExitKind, action: Option<Action>) {
        let slot = &mut self.slots[rank];
        slot.process.reap();
        self.workers.ended.push(slot.worker);
        self.attempt.lifelines.tell(WorkerEnded { worker: slot.worker, exit: exit.told() });
        self.workers.succeeded |= exit.is_success();
        if let Some(Action::Replace { .. }) = action {
            self.workers.started += 1;
            let pid = slot.process.id();
            self.attempt
                .job
                .log(move || tracing::warn!("rank {rank} (pid {pid}) has failed and is replaced"));
        }
        self.publish();
    }

    fn outcome(self, verdict: Verdict) -> Outcome {
        let mut tails = self.logs.drain(&self.attempt.job.writers);
        match verdict {
            Verdict::Success => Outcome::Success,
            Verdict::Interrupted { signal } => Outcome::Interrupted { signal },
            Verdict::TimedOut => Outcome::TimedOut { limit: self.attempt.job.timeout.unwrap_or_default() },
            Verdict::Failed { rank, exit, at } => {
                let slot = &self.slots[rank];
                Outcome::Failure(Failure {
                    rank,
                    world_size: self.slots.len(),
                    pid: slot.process.id(),
                    exit,
                    stderr_tail: tails.swap_remove(slot.tail),
                    stderr_log: slot.plan.logs.as_deref().map(stderr_log),
                    after: at.saturating_duration_since(slot.started),
                    interrupted: false,
                })
            }
        }
    }
}

/// Whether a signal is among what has happened since. Takes all of it.
pub(crate) fn was_asked(events: &Receiver<Event>) -> bool {
    events.try_iter().any(|event| matches!(event, Event::Signal(_)))
}

/// Says at once what the outcome will say in full when the other ranks are gone, which may take them a while.
fn announce(verdict: Verdict) {
    match verdict {
        Verdict::Success => {}
        Verdict::Failed { rank, exit, .. } => tracing::error!("rank {rank} {exit}; ending the others"),
        Verdict::Interrupted { signal } => tracing::warn!("passing {} on to all ranks", signal_name(signal)),
        Verdict::TimedOut => tracing::error!("time is up; ending all ranks"),
    }
}
