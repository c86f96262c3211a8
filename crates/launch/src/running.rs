//! A job that runs, for who has started it.

use crate::event::Event;
use crate::exit_kind::SIGKILL;
use crate::outcome::Outcome;
use phalanx_core::{Error, Result};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A job whose ranks have been started.
///
/// Dropping it kills the ranks and waits until they are gone.
#[derive(Debug)]
#[must_use = "dropping a running job kills it"]
pub struct Running {
    pub(crate) job_id: String,
    pub(crate) pids: Arc<Mutex<Vec<u32>>>,
    /// How often the job was started again, or how many of its processes were replaced.
    pub(crate) restarts: Arc<AtomicUsize>,
    pub(crate) events: Sender<Event>,
    pub(crate) supervisor: Option<JoinHandle<Result<Outcome>>>,
}

impl Running {
    /// The job's name.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let running = Launch::new("true").spawn()?;
    /// assert_eq!(running.job_id().len(), 8); // none was given: random digits
    /// # assert!(running.wait()?.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn job_id(&self) -> &str {
        &self.job_id
    }

    /// The ranks' processes, in rank order: the latest of each, if they were restarted or replaced. On Unix each leads a process group. Of ranks on
    /// [other hosts](crate::Launch::node) it is the number there, and 0 where that was not known yet.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let running = Launch::new("sleep").args(["60"]).ranks(2).spawn()?;
    /// assert_eq!(running.pids().len(), 2);
    /// drop(running); // kills them
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn pids(&self) -> Vec<u32> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does what the launcher does when it receives `signal`: passes it on to all ranks, grants them the grace period,
    /// then kills them. A second signal, or SIGKILL, kills at once. SIGUSR1 and SIGUSR2 end nothing.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::{Launch, Outcome};
    /// # if cfg!(unix) {
    /// let running = Launch::new("sleep").args(["60"]).ranks(2).spawn()?;
    /// running.signal(15); // SIGTERM
    /// assert_eq!(running.wait()?, Outcome::Interrupted { signal: 15 });
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn signal(&self, signal: i32) {
        // A job that is over needs no signal.
        let _ = self.events.send(Event::Signal(signal));
    }

    /// Waits until no rank is left and all their output is written.
    ///
    /// # Errors
    /// `Internal`; those of [`spawn`](crate::Launch::spawn) when the job is to be started again and can't be. A job that fails is not an error but an [`Outcome`].
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let running = Launch::new("sh").args(["-c", "exit 3"]).spawn()?;
    /// assert_eq!(running.wait()?.exit_code(), 3);
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn wait(mut self) -> Result<Outcome> {
        self.supervisor.take().map_or_else(|| Err(Error::Internal { what: "waited twice".into() }), join)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            self.signal(SIGKILL);
            // Nobody is left to hear how the job ended.
            let _ = join(supervisor);
        }
    }
}

pub(crate) fn join(supervisor: JoinHandle<Result<Outcome>>) -> Result<Outcome> {
    supervisor
        .join()
        .unwrap_or_else(|_| Err(Error::Internal { what: "the launcher's thread panicked".into() }))
}
