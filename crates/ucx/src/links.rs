//! One rank's side of all its links, as groups have it.

use crate::attendant::attend;
use crate::hub::{Hub, Membership};
use crate::load::Ucp;
use crate::transport::UcxTransport;
use phalanx_core::{Error, GroupId, Result};
use phalanx_group::{JobLinks, LinkPeer};
use phalanx_transport::{OwnerProcess, Transport, Wait, Waker};
use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the last handle waits for the worker to end. It takes less, unless a call of UCX does not return.
const END_TIME: Duration = Duration::from_secs(3);

/// What the handles and the attendant share.
pub(crate) struct Shared {
    /// There until the attendant ends it.
    hub: Mutex<Option<Box<Hub>>>,
    /// How often a thread of the program has used the hub.
    uses: AtomicU64,
    is_over: AtomicBool,
    is_attendant_asleep: AtomicBool,
    attendant: Waker,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Box<Hub>>> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often threads of the program have used the hub so far.
    pub(crate) fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Called with the hub locked: whoever has it next knows.
    pub(crate) fn attendant_sleeps(&self) {
        self.is_attendant_asleep.store(true, Ordering::Relaxed);
    }

    pub(crate) fn attendant_is_awake(&self) {
        self.is_attendant_asleep.store(false, Ordering::Relaxed);
    }
}

/// A handle. When the last one is dropped, peers are told what they have not heard yet, and the worker ends.
pub(crate) struct Handle {
    owner_process: OwnerProcess,
    shared: Arc<Shared>,
    /// Says that the worker has ended.
    done: Mutex<Receiver<()>>,
}

impl Handle {
    /// Opens a hub on a thread that will look after it. Threads that UCX starts there are named as that one, so nobody takes them for the program's.
    fn start(open: impl FnOnce() -> Result<Hub> + Send + 'static) -> Result<(Self, Vec<u8>)> {
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
            let shared = Arc::new(Shared {
                hub: Mutex::new(Some(Box::new(hub))),
                uses: AtomicU64::new(0),
                is_over: AtomicBool::new(false),
                is_attendant_asleep: AtomicBool::new(false),
                attendant,
            });
            let _ = says_open.try_send(Ok((shared.clone(), address)));
            attend(&shared, wait, &says_done);
        };
        std::thread::Builder::new().name("phalanx-links".into()).spawn(run).map_err(failed)?;
        let (shared, address) = opened.recv().map_err(|_| failed(std::io::ErrorKind::Other.into()))??;
        Ok((Self { owner_process: OwnerProcess::here(), shared, done: Mutex::new(done) }, address))
    }

    /// Uses the hub, and sees to it that what this leaves undone is done.
    pub(crate) fn with<R>(&self, does: impl FnOnce(&mut Hub) -> R) -> R {
        self.shared.uses.fetch_add(1, Ordering::Relaxed);
        let mut slot = self.shared.lock();
        let hub = slot.as_deref_mut().expect("it ends after the last handle");
        let result = does(hub);
        if self.shared.is_attendant_asleep.load(Ordering::Relaxed) && (hub.is_sending() || hub.is_calling()) {
            self.shared.attendant_is_awake();
            self.shared.attendant.wake();
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
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.attendant.wake();
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        if done.recv_timeout(END_TIME).is_err() {
            tracing::warn!("UCX has not ended its worker for {END_TIME:?}, and is left to itself");
        }
    }
}

/// One rank's side of all its links over UCX.
pub(crate) struct UcxLinks {
    handle: Arc<Handle>,
    address: Vec<u8>,
    rank: usize,
}

impl fmt::Debug for UcxLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UcxLinks").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl UcxLinks {
    /// Opens what UCX finds of devices, among `transports` if that says which.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): there is no UCX, or it finds no device among those that it may use. [`Io`](Error::Io): the system refuses a thread or descriptors.
    pub(crate) fn open(transports: Option<&CStr>, me: Membership) -> Result<Self> {
        let (ucp, rank) = (Ucp::load()?, me.rank);
        let transports = transports.map(CStr::to_owned);
        let (handle, address) = Handle::start(move || {
            Hub::open(ucp, transports.as_deref(), me).map_err(|why| {
                let what = format!("a UCX worker of rank {rank}");
                let tried = format!("{ucp}: {why}; UCX_TLS and UCX_NET_DEVICES say what it may use");
                Error::Unavailable { what, tried }
            })
        })?;
        Ok(Self { handle: Arc::new(handle), address, rank })
    }
}

impl JobLinks for UcxLinks {
    fn address(&self) -> Option<Vec<u8>> {
        Some(self.address.clone())
    }

    fn open(&self, group: GroupId, peers: &[LinkPeer<'_>]) -> Box<dyn Transport> {
        self.handle.with(|hub| peers.iter().for_each(|peer| hub.learn(peer.rank, peer.address)));
        let members: Vec<_> = peers.iter().map(|peer| peer.rank as u32).collect();
        let rank = peers.iter().position(|peer| peer.rank == self.rank).expect("this rank is a member");
        Box::new(UcxTransport::new(self.handle.clone(), group, rank, members))
    }
}
