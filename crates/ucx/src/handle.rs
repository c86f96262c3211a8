//! What groups have of the hub. The last of them ends it.

use crate::attendant::attend;
use crate::hub::Hub;
use crate::shared::Shared;
use phalanx_core::{Error, Result};
use phalanx_transport::{OwnerProcess, Wait};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the last handle waits for the worker to end. It takes less, unless a call of UCX does not return.
const END_TIME: Duration = Duration::from_secs(3);

/// A handle. When the last one is dropped, peers are told what they have not heard yet, and the worker ends.
pub(crate) struct Handle {
    owner_process: OwnerProcess,
    shared: Arc<Shared>,
    /// Says that the worker has ended.
    done: Mutex<Receiver<()>>,
}

impl Handle {
    /// Opens a hub on a thread that will look after it. Threads that UCX starts there are named as that one, so nobody takes them for the program's.
    ///
    /// # Errors
    /// Those of `open`, for which it waits no longer than `limit`: UCX looks at devices, which may not answer.
    pub(crate) fn start(
        limit: Duration,
        open: impl FnOnce() -> Result<Hub> + Send + 'static,
    ) -> Result<(Self, Vec<u8>)> {
        let failed = |error| Error::io("starting the thread that looks after UCX", error);
        let wait = Wait::new().map_err(failed)?;
        let attendant = wait.waker().clone();
        let ((says_open, opened), (says_done, done)) = (sync_channel(1), sync_channel(1));
        let run = move || {
            let hub = match open() {
                Ok(hub) => hub,
                Err(error) => return drop(says_open.try_send(Err(error))),
            };
            let address = hub.address().to_vec();
            let shared = Arc::new(Shared::new(hub, attendant));
            if says_open.try_send(Ok((shared.clone(), address))).is_err() {
                // It comes too late, and nobody has it.
                shared.end();
            }
            attend(&shared, wait, &says_done);
        };
        std::thread::Builder::new().name("phalanx-links".into()).spawn(run).map_err(failed)?;
        let opened = opened.recv_timeout(limit).map_err(|why| match why {
            RecvTimeoutError::Timeout => Error::Unavailable {
                what: "UCX, which PHALANX_BACKEND=ucx takes,".into(),
                tried: format!(
                    "it has opened no worker for {limit:?}; UCX_TLS and UCX_NET_DEVICES say what it may use"
                ),
            },
            RecvTimeoutError::Disconnected => failed(std::io::Error::other("it has panicked")),
        });
        let (shared, address) = opened??;
        Ok((Self { owner_process: OwnerProcess::here(), shared, done: Mutex::new(done) }, address))
    }

    /// Uses the hub, and sees to it that what this leaves undone is done.
    pub(crate) fn with<R>(&self, does: impl FnOnce(&mut Hub) -> R) -> R {
        self.shared.count_use();
        let mut slot = self.shared.lock();
        let hub = slot.as_deref_mut().expect("it ends after the last handle");
        let result = does(hub);
        if hub.is_sending() || hub.is_calling() {
            self.shared.wake_attendant();
        }
        result
    }

    /// Whether this process made it.
    pub(crate) fn is_here(&self) -> bool {
        self.owner_process.is_here()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A child that was forked has a copy of the memory and not the attendant. It ends nothing.
        if !self.is_here() {
            return;
        }
        self.shared.end();
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        if done.recv_timeout(END_TIME).is_err() {
            tracing::warn!("UCX has not ended its worker for {END_TIME:?}, and is left to itself");
        }
    }
}
