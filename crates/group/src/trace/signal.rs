//! SIGUSR1: all ranks write what they did lately. Only where the environment asks for it, for a signal belongs to the program.

use crate::control::notice::Notice;
use crate::realm::{Realm, TcpRealm};
use phalanx_core::{Error, Result};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The jobs of this process that listen. `None` before the first does.
static JOBS: Mutex<Option<Vec<Weak<TcpRealm>>>> = Mutex::new(None);

/// From now on the signal makes all ranks of the job write.
///
/// # Errors
/// [`Error::Io`] if the system does not let us listen.
pub(crate) fn listen(realm: &Arc<TcpRealm>) -> Result<()> {
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    if jobs.is_none() {
        let failed = |error| Error::io("listening for SIGUSR1", error);
        let mut signals = Signals::new([SIGUSR1]).map_err(failed)?;
        let answer = move || signals.forever().for_each(|_| ask_all());
        std::thread::Builder::new().name("phalanx-signals".into()).spawn(answer).map_err(failed)?;
    }
    let jobs = jobs.get_or_insert_default();
    jobs.retain(|job| job.strong_count() > 0);
    jobs.push(Arc::downgrade(realm));
    Ok(())
}

fn ask_all() {
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    for realm in jobs.iter().filter_map(Weak::upgrade) {
        if realm.control().send(Notice::Trace).is_err() {
            // The arbiter is gone: this rank at least.
            realm.watch().write_trace("SIGUSR1".to_owned());
        }
    }
}
