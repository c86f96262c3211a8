//! The thread that starts the ranks and stays until the last is gone: the hands of [`Supervisor`].

use crate::logs::{LogFiles, Logs, Sink, stderr_log};
use crate::outcome::{Failure, Outcome, signal_name};
use crate::plan::RankPlan;
use crate::process::Process;
use crate::supervise::{Event, SIGKILL, Supervisor, Verdict};
use phalanx_core::{Error, Result};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// What to start, and how to treat it.
pub(crate) struct Job {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Variables of all ranks: the user's, then the secret.
    pub(crate) env: Vec<(String, OsString)>,
    pub(crate) ranks: Vec<RankPlan>,
    pub(crate) prefix: bool,
    pub(crate) out: Sink,
    pub(crate) err: Sink,
    pub(crate) grace: Duration,
    pub(crate) timeout: Option<Duration>,
}

impl Job {
    /// Starts every rank, or none: when one cannot be started, those that were are killed.
    pub(crate) fn start(self, events: &Sender<Event>) -> Result<RunningJob> {
        let mut job =
            RunningJob { processes: Vec::new(), logs: Logs::new(), started: Instant::now(), job: self };
        let started = (0..job.job.ranks.len()).try_for_each(|rank| job.start_rank(rank, events.clone()));
        if let Err(error) = started {
            job.processes.iter().for_each(|process| process.signal(SIGKILL));
            job.processes.iter_mut().for_each(Process::reap);
            return Err(error);
        }
        Ok(job)
    }

    fn command(&self, rank: &RankPlan) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .envs(&rank.env)
            .env_remove("PHALANX_SECRET_FILE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn cannot_start(&self, error: std::io::Error) -> Error {
        let program = self.program.display();
        if error.kind() == ErrorKind::NotFound {
            let by_path = self.program.to_string_lossy().contains(std::path::MAIN_SEPARATOR);
            let tried = if by_path { "that path" } else { "the folders of PATH" };
            return Error::Unavailable { what: format!("program {program}"), tried: tried.to_owned() };
        }
        Error::io(format!("starting {program}"), error)
    }
}

/// The ranks of a job, all started.
pub(crate) struct RunningJob {
    /// In rank order.
    processes: Vec<Process>,
    logs: Logs,
    started: Instant,
    job: Job,
}

impl RunningJob {
    fn start_rank(&mut self, rank: usize, events: Sender<Event>) -> Result<()> {
        let plan = &self.job.ranks[rank];
        let files = plan.logs.as_deref().map(LogFiles::create).transpose()?;
        let process = Process::start(self.job.command(plan)).map_err(|error| self.job.cannot_start(error))?;
        self.processes.push(process);
        let process = &mut self.processes[rank];
        let output =
            process.take_output().ok_or_else(|| Error::Internal { what: "output is not piped".into() })?;
        let prefix = if self.job.prefix { format!("[{rank}] ") } else { String::new() };
        self.logs.add(&prefix, output, (&self.job.out, &self.job.err), files)?;
        let ended = move |exit| {
            // The receiver is gone only when the job was given up.
            let _ = events.send(Event::Exited { rank, exit });
        };
        process.watch(ended).map_err(|error| Error::io("starting a thread that waits for a rank", error))
    }

    /// In rank order.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::id).collect()
    }

    /// Stays until the job is over: no rank is left, and their output is written.
    pub(crate) fn supervise(mut self, events: &Receiver<Event>) -> Result<Outcome> {
        let Job { grace, timeout, .. } = self.job;
        let mut supervisor = Supervisor::new(self.processes.len(), grace, timeout, self.started);
        let mut announced = false;
        while !supervisor.is_over() {
            let event = match supervisor.deadline() {
                None => events.recv().map_err(RecvTimeoutError::from),
                Some(due) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let signal = match event {
                Ok(event) => {
                    if let Event::Exited { rank, .. } = event {
                        self.processes[rank].reap();
                    }
                    supervisor.handle(event, Instant::now())
                }
                Err(RecvTimeoutError::Timeout) => supervisor.poll(Instant::now()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal { what: "nobody watches the ranks any more".into() });
                }
            };
            if !announced
                && !supervisor.is_over()
                && let Some(verdict) = supervisor.verdict()
            {
                announce(verdict);
                announced = true;
            }
            if let Some(signal) = signal {
                supervisor.living().for_each(|rank| self.processes[rank].signal(signal));
            }
        }
        for rank in supervisor.living() {
            tracing::error!(
                rank,
                pid = self.processes[rank].id(),
                "does not end even after SIGKILL; it is left behind"
            );
        }
        let verdict =
            supervisor.verdict().ok_or_else(|| Error::Internal { what: "over without a reason".into() })?;
        Ok(self.outcome(verdict))
    }

    fn outcome(self, verdict: Verdict) -> Outcome {
        let mut tails = self.logs.drain();
        match verdict {
            Verdict::Success => Outcome::Success,
            Verdict::Interrupted { signal } => Outcome::Interrupted { signal },
            Verdict::TimedOut => Outcome::TimedOut { limit: self.job.timeout.unwrap_or_default() },
            Verdict::Failed { rank, exit, at } => Outcome::Failure(Failure {
                rank,
                world_size: self.processes.len(),
                pid: self.processes[rank].id(),
                exit,
                stderr_tail: tails.swap_remove(rank),
                stderr_log: self.job.ranks[rank].logs.as_deref().map(stderr_log),
                after: at.saturating_duration_since(self.started),
            }),
        }
    }
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
