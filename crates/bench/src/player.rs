//! One of several libraries that are measured in turns.

use crate::job::{JOB_SECONDS, Job, is_interrupt, stuck};
use crate::library::Library;
use crate::listener::Listener;
use crate::report::Report;
use crate::setting::Setting;
use crate::task::Task;
use crate::turns::Turns;
use phalanx::{Error, Result};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// A library that takes turns with others.
pub(crate) struct Player<'l> {
    turns: Turns,
    /// `None` once it has failed.
    job: Option<Job>,
    listener: Listener<'l>,
    /// What its rank 0 has said. It is not read before the end, which would disturb those who measure.
    lines: Vec<String>,
}

impl<'l> Player<'l> {
    /// Starts its ranks.
    ///
    /// # Errors
    /// `Io`: they can't be started.
    pub(crate) fn start(library: &'l Library, setting: Setting, task: &Task) -> Result<Self> {
        let turns = Turns::new()?;
        let own_task = Task { turns: Some(turns.port()?), ..task.clone() };
        let job = library.start(setting.backend, setting.ranks, &own_task)?;
        let listener = Listener::new(library, setting, task.dtype);
        Ok(Self { turns, job: Some(job), listener, lines: Vec::new() })
    }

    pub(crate) fn library(&self) -> &'l Library {
        self.listener.library
    }

    /// Waits for its ranks.
    ///
    /// # Errors
    /// Why ours have not come; a peer is left out then.
    pub(crate) fn meet(&mut self) -> Result<()> {
        let ranks = self.listener.setting.ranks;
        let Self { turns, job: Some(job), lines, .. } = self else { return Ok(()) };
        match turns.meet(ranks, JOB_SECONDS, || !job.collect(lines)) {
            Ok(()) => Ok(()),
            Err(error) => self.fail(&error, JOB_SECONDS),
        }
    }

    /// Gives it a turn, which may take as long as `patience`.
    ///
    /// # Errors
    /// Why ours have not taken it; a peer is left out then.
    pub(crate) fn play(&mut self, patience: Duration) -> Result<()> {
        let Self { turns, job: Some(job), lines, .. } = self else { return Ok(()) };
        let given = turns.give(patience);
        job.collect(lines);
        given.or_else(|error| self.fail(&error, patience))
    }

    /// Leaves it out from now on, since it has ended or is stuck.
    fn fail(&mut self, error: &io::Error, patience: Duration) -> Result<()> {
        if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) {
            self.job = None;
            return self.said(Err(stuck(patience)));
        }
        let early = || Err(Error::Internal { what: "ranks ended before their last turn".into() });
        let end = self.finish().and_then(|()| early());
        self.said(end)
    }

    /// Waits for its end.
    fn finish(&mut self) -> Result<()> {
        let Some(job) = self.job.take() else { return Ok(()) };
        while let Some(line) = job.line(JOB_SECONDS)? {
            self.lines.push(line);
        }
        job.end()
    }

    /// Waits for its end, and reports what it has measured.
    ///
    /// # Errors
    /// Why ours failed. `Config`: their data was carried by something else than was asked for.
    pub(crate) fn end(mut self, report: &mut Report) -> Result<()> {
        let end = self.finish();
        for line in std::mem::take(&mut self.lines) {
            self.listener.hear(&line, report);
        }
        self.said(end)?;
        self.listener.check()
    }

    /// A peer's failure is no error.
    fn said(&self, end: Result<()>) -> Result<()> {
        let Listener { library, setting: Setting { op, ranks, .. }, .. } = self.listener;
        match end {
            Err(error) if matches!(library, Library::Peer(_)) && !is_interrupt(&error) => {
                tracing::warn!("{} with {op} of {ranks} ranks: {error}", library.name());
                Ok(())
            }
            said => said,
        }
    }
}
