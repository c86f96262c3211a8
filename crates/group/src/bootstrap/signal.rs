//! SIGUSR1: all ranks write what they did lately. Only where the environment asks for it, for a signal belongs to the program.

use crate::bootstrap::tcp_job::TcpJob;
use crate::control::job_context::JobContext;
use crate::control::notice::Notice;
use phalanx_core::{Error, Result};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The jobs of this process that listen. `None` before the first does.
static JOBS: Mutex<Option<Vec<Weak<TcpJob>>>> = Mutex::new(None);

/// Makes the signal have all ranks of the job write, from now on.
///
/// # Errors
/// [`Error::Io`] if the system does not let us listen.
pub(crate) fn listen(job: &Arc<TcpJob>) -> Result<()> {
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    if jobs.is_none() {
        let failed = |error| Error::io("listening for SIGUSR1", error);
        let mut signals = Signals::new([SIGUSR1]).map_err(failed)?;
        let answer = move || signals.forever().for_each(|_| ask_all());
        std::thread::Builder::new().name("phalanx-signals".into()).spawn(answer).map_err(failed)?;
    }
    let jobs = jobs.get_or_insert_default();
    jobs.retain(|job| job.strong_count() > 0);
    jobs.push(Arc::downgrade(job));
    Ok(())
}

fn ask_all() {
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    for job in jobs.iter().filter_map(Weak::upgrade) {
        if job.control().send(Notice::Trace).is_err() {
            // The arbiter is gone: this rank at least.
            job.membership().write_trace("SIGUSR1".to_owned());
        }
    }
}
