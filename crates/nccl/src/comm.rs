//! A communicator of NCCL: everything about it ends in time, if NCCL likes it or not.

use crate::abilities::Abilities;
use crate::blocking;
use crate::device::Device;
use crate::id::UniqueId;
use crate::load::Nccl;
use crate::sys::nccl::{Code, IN_PROGRESS, NO_COLOR, RawComm, RawConfig, RawId, SUCCESS};
use crate::wait::wait_until;
use phalanx_core::{Deadline, Error, OpKind, Result};
use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a communicator that is dropped is waited for.
pub(crate) const ABORT_TIME: Duration = Duration::from_secs(5);

/// One rank's end of a communicator. Usable from any thread.
///
/// Communicators never block inside NCCL: init, launches and finalize go on behind our back, are asked after, and given up when their time is over. Who
/// drops one without [`finalize`](Self::finalize) aborts it.
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
    /// The least compute capability of the devices, as far as it is known.
    capability: (u32, u32),
}

pub(crate) struct Shared {
    pub(crate) nccl: Nccl,
    pub(crate) device: Device,
    rank: usize,
    world_size: usize,
    functions: Functions,
    /// None when it has been finalized or aborted. One call at a time.
    raw: Mutex<Option<Handle>>,
    /// Whoever waits in a call is to stop.
    is_ending: AtomicBool,
}

/// Those without which nothing here ends in time: later than NCCL itself.
#[derive(Clone, Copy)]
struct Functions {
    init: unsafe extern "C" fn(*mut RawComm, c_int, RawId, c_int, *mut RawConfig) -> Code,
    async_error: unsafe extern "C" fn(RawComm, *mut Code) -> Code,
    finalize: unsafe extern "C" fn(RawComm) -> Code,
    abort: unsafe extern "C" fn(RawComm) -> Code,
}

#[derive(Clone, Copy)]
pub(crate) struct Handle(RawComm);

// SAFETY: a communicator may be used from any thread, by one at a time.
unsafe impl Send for Handle {}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { rank, world_size, device, .. } = &*self.shared;
        write!(f, "Communicator(rank {rank}/{world_size} on {device})")
    }
}

impl Functions {
    fn of(nccl: Nccl) -> Result<Self> {
        let table = nccl.table();
        Ok(Self {
            init: table.comm_init_rank_config.of(&nccl)?,
            async_error: table.comm_get_async_error.of(&nccl)?,
            finalize: table.comm_finalize.of(&nccl)?,
            abort: table.comm_abort.of(&nccl)?,
        })
    }
}

impl Communicator {
    /// Joins the communicator `id` as `rank` of `world_size`, with `device`. All ranks must come within `timeout`.
    ///
    /// # Errors
    /// [`Rendezvous`](Error::Rendezvous): they did not. [`Unavailable`](Error::Unavailable): this NCCL is older than 2.14, which can't be stopped
    /// waiting. [`Library`](Error::Library): NCCL refused, for one device that two ranks have, say. [`Config`](Error::Config): `NCCL_COMM_BLOCKING`
    /// says that NCCL is to wait for ever; where that stands in a file `nccl.conf`, this may be noticed only when all ranks have come.
    pub fn init(
        nccl: Nccl,
        device: &Device,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
        timeout: Duration,
    ) -> Result<Self> {
        Self::init_while(|| Ok(()), nccl, device, id, rank, world_size, timeout)
    }

    /// As [`init`](Self::init), until `is_wanted` returns an error.
    pub(crate) fn init_while(
        is_wanted: impl Fn() -> Result<()>,
        nccl: Nccl,
        device: &Device,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
        timeout: Duration,
    ) -> Result<Self> {
        let functions = Functions::of(nccl)?;
        let (c_rank, c_size) = match (c_int::try_from(rank), c_int::try_from(world_size)) {
            (Ok(c_rank), Ok(c_size)) if c_rank < c_size => (c_rank, c_size),
            _ => return Err(Error::misuse(OpKind::Init, format!("rank {rank} of {world_size}"))),
        };
        blocking::refuse()?;
        let deadline = Deadline::after(Instant::now(), timeout);
        let (mut raw, mut config) = (std::ptr::null_mut(), RawConfig::non_blocking());
        let code = {
            let _entered = device.enter()?;
            // SAFETY: `raw` and `config` are read and written before the call returns.
            unsafe { (functions.init)(&raw mut raw, c_size, id.0, c_rank, &raw mut config) }
        };
        if raw.is_null() {
            return Err(nccl.error("ncclCommInitRankConfig", code, None));
        }
        let comm = Self::around(raw, nccl, device, rank, world_size, functions);
        blocking::refuse()?;
        comm.shared.begun("ncclCommInitRankConfig", raw, code)?;
        comm.shared.come_about("ncclCommInitRankConfig", raw, &deadline, is_wanted)?;
        tracing::debug!(?comm, "communicator");
        Ok(comm)
    }

    fn around(
        raw: RawComm,
        nccl: Nccl,
        device: &Device,
        rank: usize,
        world_size: usize,
        functions: Functions,
    ) -> Self {
        let (device, raw) = (device.clone(), Mutex::new(Some(Handle(raw))));
        let (is_ending, capability) = (AtomicBool::new(false), device.compute_capability());
        let shared = Shared { nccl, device, rank, world_size, functions, raw, is_ending };
        Self { shared: Arc::new(shared), capability }
    }

    /// Among its devices the least compute capability is this one. Who has not heard of the others goes by its own.
    pub(crate) fn among(self, capability: (u32, u32)) -> Self {
        let mut known = self;
        known.capability = capability;
        known
    }

    pub(crate) fn abilities(&self) -> Abilities {
        let (version, is_alone) = (self.nccl().version(), self.world_size() == 1);
        Abilities { version, capability: self.capability, is_alone }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Ranks of the communicator.
    pub fn world_size(&self) -> usize {
        self.shared.world_size
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Whose communicator it is.
    pub fn nccl(&self) -> Nccl {
        self.shared.nccl
    }

    /// Whether NCCL has found, behind our back, that something is wrong with the communicator.
    ///
    /// # Errors
    /// [`Library`](Error::Library), with what NCCL says.
    pub fn async_error(&self) -> Result<()> {
        let shared = &*self.shared;
        // Who has the lock asks the same.
        let Ok(handle) = shared.raw.try_lock() else { return Ok(()) };
        let Some(Handle(raw)) = *handle else { return Ok(()) };
        shared.status(raw).map(|_| ())
    }

    /// Divides the communicator: ranks that give the same `color` get one, ordered by `key`, then by rank here. Ranks with `None` get none. Collective.
    ///
    /// # Errors
    /// As for [`init`](Self::init); [`Library`](Error::Library): an [abort](Self::abort) came meanwhile; [`Unavailable`](Error::Unavailable) before NCCL 2.18.
    pub fn split(&self, color: Option<u32>, key: i32, timeout: Duration) -> Result<Option<Self>> {
        let shared = &*self.shared;
        let split = shared.nccl.table().comm_split.of(&shared.nccl)?;
        let c_color = color.map_or(Ok(NO_COLOR), c_int::try_from);
        let Ok(c_color) = c_color else {
            return Err(Error::misuse(OpKind::Split, format!("color {color:?}: NCCL takes 31 bits")));
        };
        let deadline = Deadline::after(Instant::now(), timeout);
        let handle = shared.lock();
        let raw = shared.live(&handle)?;
        let is_wanted = || shared.live(&handle).map(drop);
        let _entered = shared.device.enter()?;
        // NCCL writes it when it is done, so if that is never, it must stay.
        let child = Box::into_raw(Box::new(std::ptr::null_mut()));
        let mut config = RawConfig::non_blocking();
        // SAFETY: the communicator lives while it is locked, and the others as long as they are needed.
        let code = unsafe { split(raw, c_color, key, child, &raw mut config) };
        shared.begun("ncclCommSplit", raw, code)?;
        shared.come_about("ncclCommSplit", raw, &deadline, is_wanted)?;
        // SAFETY: NCCL is done with it.
        let child = *unsafe { Box::from_raw(child) };
        if child.is_null() {
            return Ok(None);
        }
        let (mut rank, mut world_size) = (0, 0);
        let comm = |rank, world_size| {
            let functions = shared.functions;
            Self::around(child, shared.nccl, &shared.device, rank, world_size, functions)
                .among(self.capability)
        };
        let unknown = comm(0, 0);
        unknown.shared.come_about("ncclCommSplit", child, &deadline, is_wanted)?;
        // SAFETY: the child lives.
        let code = unsafe { (shared.nccl.table().comm_user_rank)(child, &raw mut rank) };
        shared.nccl.check("ncclCommUserRank", code, Some(child))?;
        // SAFETY: the child lives.
        let code = unsafe { (shared.nccl.table().comm_count)(child, &raw mut world_size) };
        shared.nccl.check("ncclCommCount", code, Some(child))?;
        unknown.shared.take();
        Ok(Some(comm(rank as usize, world_size as usize)))
    }

    /// Ends in order: waits until all that was launched is done on all ranks. Collective.
    ///
    /// # Errors
    /// [`Library`](Error::Library): NCCL failed, or that took longer than `timeout`; the communicator was aborted.
    pub fn finalize(&self, timeout: Duration) -> Result<()> {
        self.finish(timeout).inspect_err(|_| {
            if let Err(error) = self.abort(ABORT_TIME) {
                tracing::warn!(%error, "a communicator that could not be finalized could not be aborted either");
            }
        })
    }

    fn finish(&self, timeout: Duration) -> Result<()> {
        let deadline = Deadline::after(Instant::now(), timeout);
        let shared = &*self.shared;
        let handle = shared.lock();
        let raw = shared.live(&handle)?;
        let code = {
            let _entered = shared.device.enter()?;
            // SAFETY: the communicator lives while it is locked.
            unsafe { (shared.functions.finalize)(raw) }
        };
        shared.begun("ncclCommFinalize", raw, code)?;
        if !shared.settled(raw, &deadline)? {
            return Err(shared.late("ncclCommFinalize", timeout));
        }
        drop(handle);
        let left = deadline.remaining(Instant::now()).max(ABORT_TIME);
        self.end("ncclCommDestroy", shared.nccl.table().comm_destroy, left)
    }

    /// Ends at once: what is under way on this rank stops. Not collective. NCCL itself is known to hang in there sometimes, so it is called on a
    /// thread of its own.
    ///
    /// # Errors
    /// [`Library`](Error::Library): it was not over after `timeout`. That thread is left to its fate; end the process soon.
    pub fn abort(&self, timeout: Duration) -> Result<()> {
        self.end("ncclCommAbort", self.shared.functions.abort, timeout)
    }

    /// Gives the communicator to `function`, which frees it; once.
    fn end(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(RawComm) -> Code,
        timeout: Duration,
    ) -> Result<()> {
        self.shared.is_ending.store(true, Ordering::Release);
        let (shared, (tell, hear)) = (self.shared.clone(), mpsc::channel());
        let work = move || {
            // Who is in a call leaves it, for it is ending.
            let Some(Handle(raw)) = shared.take() else { return };
            let Ok(_entered) = shared.device.enter() else { return };
            // SAFETY: it was taken, so nobody uses it again.
            let code = unsafe { function(raw) };
            // Nobody listens after the deadline.
            let _ = tell.send(code);
        };
        let named = std::thread::Builder::new().name("phalanx-nccl-end".into());
        named.spawn(work).map_err(|e| Error::io("starting a thread that ends a communicator", e))?;
        match hear.recv_timeout(timeout) {
            // None was there to be ended.
            Ok(SUCCESS | IN_PROGRESS) | Err(mpsc::RecvTimeoutError::Disconnected) => Ok(()),
            Ok(code) => Err(self.shared.nccl.error(call, code, None)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.shared.device.is_stuck();
                Err(self.shared.late(call, timeout))
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.shared.lock().is_none() {
            return;
        }
        if let Err(error) = self.abort(ABORT_TIME) {
            tracing::warn!(%error, "a communicator that was dropped could not be aborted");
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Handle>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Handle> {
        self.lock().take()
    }

    pub(crate) fn live(&self, handle: &Option<Handle>) -> Result<RawComm> {
        match handle {
            Some(Handle(raw)) if !self.is_ending.load(Ordering::Acquire) => Ok(*raw),
            _ => Err(self.failed("ncclCommGetAsyncError", "the communicator was aborted")),
        }
    }

    /// What a call that does not block has said.
    pub(crate) fn begun(&self, call: &'static str, raw: RawComm, code: Code) -> Result<()> {
        if code == IN_PROGRESS { Ok(()) } else { self.nccl.check(call, code, Some(raw)) }
    }

    /// Whether nothing is in progress, or what NCCL says is wrong.
    fn status(&self, raw: RawComm) -> Result<bool> {
        let mut status = SUCCESS;
        // SAFETY: the communicator lives while it is locked.
        let code = unsafe { (self.functions.async_error)(raw, &raw mut status) };
        self.nccl.check("ncclCommGetAsyncError", code, Some(raw))?;
        self.begun("ncclCommGetAsyncError", raw, status)?;
        Ok(status == SUCCESS)
    }

    /// Waits until nothing is in progress; `false` when that took longer.
    pub(crate) fn settled(&self, raw: RawComm, deadline: &Deadline) -> Result<bool> {
        wait_until(deadline, || {
            if self.is_ending.load(Ordering::Acquire) {
                return Err(self.failed("ncclCommGetAsyncError", "the communicator was aborted"));
            }
            self.status(raw)
        })
    }

    /// Waits until all ranks of a new communicator have come.
    fn come_about(
        &self,
        call: &str,
        raw: RawComm,
        deadline: &Deadline,
        is_wanted: impl Fn() -> Result<()>,
    ) -> Result<()> {
        if wait_until(deadline, || is_wanted().and_then(|()| self.status(raw)))? {
            return Ok(());
        }
        let (rank, world_size) = (self.rank, self.world_size);
        let what = format!("{call} of {} is still in progress", self.nccl);
        Err(Error::Rendezvous { rank, world_size, what, waited: deadline.elapsed(Instant::now()) })
    }

    pub(crate) fn late(&self, call: &'static str, timeout: Duration) -> Error {
        self.failed(call, &format!("still in progress after {:.1} s", timeout.as_secs_f64()))
    }

    fn failed(&self, call: &'static str, what: &str) -> Error {
        Error::Library { library: self.nccl.to_string(), call: call.into(), what: what.into() }
    }
}
