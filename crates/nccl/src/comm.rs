//! A communicator of NCCL: everything about it ends in time, if NCCL likes it or not.

use crate::abilities::Abilities;
use crate::blocking;
use crate::call::out_of_range;
use crate::device::Device;
use crate::id::UniqueId;
use crate::last_error::LAST_ERRORS;
use crate::load::Nccl;
use crate::nccl_thread::{Answer, NcclThread};
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

/// How long a call may be inside NCCL until an abort no longer waits for it to come out.
const INSIDE_TIME: Duration = Duration::from_millis(200);

/// One rank's end of a communicator. Usable from any thread.
///
/// Communicators never block inside NCCL: init, launches and finalize go on behind our back, are asked after, and given up when their time is over. Who
/// drops one without [`finalize`](Self::finalize) aborts it. Each has a thread on which NCCL is called, so callers' threads may end whenever they like.
///
/// Ranks are processes. Those that are threads of one process, on several devices, want `NCCL_P2P_DIRECT_DISABLE=1`: else NCCL lets devices use each other's
/// buffers directly, and [`DeviceBuffer`](crate::DeviceBuffer)s are memory that only their own device reaches. An
/// [`NcclGroup`](crate::NcclGroup) refuses such ranks; here nothing does.
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
    pub(crate) nccl_thread: NcclThread,
    /// The turn to call: one call at a time, until NCCL is ready for the next. Ending the communicator does not wait for it.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// The communicator as errors tell it from others: not to be used.
    whose: Handle,
    /// Whether threads that wait in a call are to stop.
    is_ending: AtomicBool,
}

/// Locked for as long as NCCL is asked something, and not while it does something.
struct State {
    /// The raw communicator; `None` when it has been finalized or aborted.
    handle: Option<Handle>,
    /// Since when the thread that calls NCCL is in a call.
    inside_since: Option<Instant>,
}

/// The functions without which nothing here ends in time. They came later than NCCL itself.
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
// SAFETY: what is shared is its address.
unsafe impl Sync for Handle {}

/// The place where NCCL writes a communicator that a split makes.
#[derive(Clone, Copy)]
struct Child(*mut RawComm);

// SAFETY: NCCL alone writes it, and it is read when NCCL is done.
unsafe impl Send for Child {}

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
    /// [`Rendezvous`](Error::Rendezvous): they did not. [`Library`](Error::Library): NCCL refused, for one device that two ranks have, say. [`Config`](Error::Config): `NCCL_COMM_BLOCKING`
    /// says that NCCL is to wait for ever; where that stands in a file `nccl.conf`, this may be noticed only when all ranks have come.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Communicator, Cuda, Device, Nccl, UniqueId};
    /// use std::time::Duration;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let (nccl, limit) = (Nccl::load()?, Duration::from_secs(60));
    /// let id = UniqueId::new(nccl)?; // on one rank, which tells it the others
    /// let comm = Communicator::init(nccl, &Device::open(Cuda::load()?, 0)?, &id, 0, 1, limit)?;
    /// assert_eq!((comm.rank(), comm.world_size()), (0, 1));
    /// comm.finalize(limit)?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
            _ => return Err(Error::misuse(OpKind::Init, out_of_range(rank, world_size))),
        };
        blocking::refuse()?;
        let deadline = Deadline::after(Instant::now(), timeout);
        let (nccl_thread, raw_id) = (NcclThread::start(device.context())?, id.0);
        nccl.all_is_well(None);
        let begin = move || {
            let (mut raw, mut config) = (std::ptr::null_mut(), RawConfig::non_blocking());
            // SAFETY: `raw` and `config` are read and written before the call returns.
            let code = unsafe { (functions.init)(&raw mut raw, c_size, raw_id, c_rank, &raw mut config) };
            (Handle(raw), code)
        };
        let begun = nccl_thread.ask(begin).wait(deadline.remaining(Instant::now()), || false);
        let Ok((Handle(raw), code)) = begun else {
            return Err(not_together(nccl, "ncclCommInitRankConfig", (rank, world_size), &deadline));
        };
        if raw.is_null() {
            return Err(nccl.error("ncclCommInitRankConfig", code, None));
        }
        // What is said from now on may be about this one.
        LAST_ERRORS.forget(raw);
        let comm = Self::around(raw, nccl_thread, nccl, device, (rank, world_size), functions);
        blocking::refuse()?;
        comm.shared.begun("ncclCommInitRankConfig", code)?;
        comm.shared.come_about("ncclCommInitRankConfig", &deadline, is_wanted)?;
        comm.shared.all_is_well();
        tracing::debug!(?comm, "communicator");
        Ok(comm)
    }

    fn around(
        raw: RawComm,
        nccl_thread: NcclThread,
        nccl: Nccl,
        device: &Device,
        (rank, world_size): (usize, usize),
        functions: Functions,
    ) -> Self {
        let state = Mutex::new(State { handle: Some(Handle(raw)), inside_since: None });
        let (device, turn) = (device.clone(), Mutex::default());
        let (is_ending, capability) = (AtomicBool::new(false), device.compute_capability());
        let whose = Handle(raw);
        let shared =
            Shared { nccl, device, rank, world_size, functions, nccl_thread, turn, state, whose, is_ending };
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
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// assert_eq!(comm.rank(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Ranks of the communicator.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// assert_eq!(comm.world_size(), 1);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn world_size(&self) -> usize {
        self.shared.world_size
    }

    /// The device of this rank.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// assert_eq!(comm.device().ordinal(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The library that the communicator belongs to.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// assert_eq!(comm.nccl().version(), nccl.version());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn nccl(&self) -> Nccl {
        self.shared.nccl
    }

    /// Whether NCCL has found, behind our back, that something is wrong with the communicator.
    ///
    /// # Errors
    /// [`Library`](Error::Library), with what NCCL says.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// comm.async_error()?; // all is well
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn async_error(&self) -> Result<()> {
        let shared = &*self.shared;
        let state = shared.lock();
        match state.handle {
            // Who is in a call looks himself what comes of it.
            Some(Handle(raw)) if state.inside_since.is_none() => shared.ask(raw).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Divides the communicator: ranks that give the same `color` get one, ordered by `key`, then by rank here. Ranks with `None` get none. Collective.
    ///
    /// # Errors
    /// As for [`init`](Self::init); [`Library`](Error::Library): an [abort](Self::abort) came meanwhile.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// let half = comm.split(Some(0), 0, limit)?.expect("a colour was given");
    /// assert_eq!(half.world_size(), 1);
    /// assert!(comm.split(None, 0, limit)?.is_none());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn split(&self, color: Option<u32>, key: i32, timeout: Duration) -> Result<Option<Self>> {
        let shared = &*self.shared;
        let split = shared.nccl.table().comm_split.of(&shared.nccl)?;
        let c_color = color.map_or(Ok(NO_COLOR), c_int::try_from);
        let Ok(c_color) = c_color else {
            return Err(Error::misuse(
                OpKind::Split,
                format!("the color is {color:?}, expected at most {}", i32::MAX),
            ));
        };
        let deadline = Deadline::after(Instant::now(), timeout);
        let _turn = shared.turn();
        shared.idle()?;
        // NCCL writes it when it is done, so if that is never, it must stay.
        let child = Child(Box::into_raw(Box::new(std::ptr::null_mut())));
        let begin = move |raw| {
            let (child, mut config) = (child, RawConfig::non_blocking());
            // SAFETY: the communicator lives while a call is in it, and the others as long as they are needed.
            unsafe { split(raw, c_color, key, child.0, &raw mut config) }
        };
        let late =
            |_| not_together(shared.nccl, "ncclCommSplit", (shared.rank, shared.world_size), &deadline);
        let code = self.hand_over(begin).wait(deadline.remaining(Instant::now()), || shared.is_ending());
        shared.begun("ncclCommSplit", code.map_err(late)??)?;
        shared.come_about("ncclCommSplit", &deadline, || Ok(()))?;
        // SAFETY: NCCL is done with it.
        let child = *unsafe { Box::from_raw(child.0) };
        if child.is_null() {
            return Ok(None);
        }
        let nccl_thread = NcclThread::start(shared.device.context())?;
        let comm = Self::around(child, nccl_thread, shared.nccl, &shared.device, (0, 0), shared.functions);
        let mut comm = comm.among(self.capability);
        comm.shared.come_about("ncclCommSplit", &deadline, || shared.live(&shared.lock()).map(drop))?;
        let (mut rank, mut world_size) = (0, 0);
        // SAFETY: the child lives.
        let code = unsafe { (shared.nccl.table().comm_user_rank)(child, &raw mut rank) };
        shared.nccl.check("ncclCommUserRank", code, Some(child))?;
        // SAFETY: the child lives.
        let code = unsafe { (shared.nccl.table().comm_count)(child, &raw mut world_size) };
        shared.nccl.check("ncclCommCount", code, Some(child))?;
        let Some(known) = Arc::get_mut(&mut comm.shared) else {
            return Err(Error::Internal { what: "somebody has a communicator that is not made yet".into() });
        };
        (known.rank, known.world_size) = (rank as usize, world_size as usize);
        known.all_is_well();
        Ok(Some(comm))
    }

    /// Calls NCCL on the thread for that, while nobody ends the communicator.
    pub(crate) fn hand_over<R: Send + 'static>(
        &self,
        call: impl FnOnce(RawComm) -> R + Send + 'static,
    ) -> Answer<Result<R>> {
        let shared = self.shared.clone();
        self.shared.nccl_thread.ask(move || shared.inside(call))
    }

    /// Ends in order: waits until all that was launched is done on all ranks. Collective.
    ///
    /// # Errors
    /// [`Library`](Error::Library): NCCL failed, or that took longer than `timeout`; the communicator was aborted.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// comm.finalize(limit)?; // what was launched is done
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn finalize(&self, timeout: Duration) -> Result<()> {
        self.finish(timeout).inspect_err(|_| {
            if let Err(error) = self.abort(ABORT_TIME) {
                tracing::warn!(%error, "a communicator that could not be finalized could not be aborted either");
            }
        })
    }

    fn finish(&self, timeout: Duration) -> Result<()> {
        const CALL: &str = "ncclCommFinalize";
        let deadline = Deadline::after(Instant::now(), timeout);
        let shared = &*self.shared;
        let turn = shared.turn();
        shared.idle()?;
        let finalize = shared.functions.finalize;
        // SAFETY: the communicator lives while a call is in it.
        let answer = self.hand_over(move |raw| unsafe { finalize(raw) });
        let code = answer.wait(deadline.remaining(Instant::now()), || shared.is_ending());
        shared.begun(CALL, code.map_err(|_| shared.late(CALL, timeout))??)?;
        if !shared.settled(&deadline)? {
            return Err(shared.late(CALL, timeout));
        }
        drop(turn);
        let left = deadline.remaining(Instant::now()).max(ABORT_TIME);
        self.end("ncclCommDestroy", shared.nccl.table().comm_destroy, left)
    }

    /// Ends at once: what is under way on this rank stops, also a call that is inside NCCL. Not collective. NCCL itself is known to hang in there sometimes, so no
    /// thread of the program is in it.
    ///
    /// # Errors
    /// [`Library`](Error::Library): it was not over after `timeout`. Its thread is left running; end the process soon.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let nccl = phalanx_nccl::Nccl::load()?;
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let id = phalanx_nccl::UniqueId::new(nccl)?;
    /// # let comm = phalanx_nccl::Communicator::init(nccl, &device, &id, 0, 1, limit)?;
    /// comm.abort(limit)?; // whatever was launched is given up
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
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
        let shared = &self.shared;
        shared.is_ending.store(true, Ordering::Release);
        if shared.lock().handle.is_none() {
            return Ok(());
        }
        let (deadline, nccl_thread) = (Deadline::after(Instant::now(), timeout), shared.clone());
        // SAFETY: who has taken it is the only one to use it.
        let answer =
            shared.nccl_thread.ask(move || nccl_thread.take().map(|Handle(raw)| unsafe { function(raw) }));
        let code = loop {
            let left = deadline.remaining(Instant::now());
            if let Some(code) = answer.within(left.min(INSIDE_TIME / 4)) {
                break code;
            }
            if left.is_zero() {
                shared.device.is_stuck();
                return Err(shared.late(call, timeout));
            }
            // Only the abort ends the call in which that thread is.
            if let Some(handle) = shared.take_from_inside() {
                let ended = self.abort_beside(handle)?.recv_timeout(left);
                break Some(ended.map_err(|_| {
                    shared.device.is_stuck();
                    shared.late("ncclCommAbort", timeout)
                })?);
            }
        };
        match code {
            // None was there to be ended.
            Some(SUCCESS | IN_PROGRESS) | None => Ok(()),
            Some(code) => Err(shared.nccl.error(call, code, Some(shared.whose.0))),
        }
    }

    /// Aborts on another thread than the one that calls NCCL, as NCCL wants it where a call blocks.
    fn abort_beside(&self, handle: Handle) -> Result<mpsc::Receiver<Code>> {
        let (abort, (tell, hear)) = (self.shared.functions.abort, mpsc::channel());
        let context = self.shared.device.context().clone();
        let work = move || {
            let Handle(raw) = { handle };
            // NCCL takes the context by itself, if this does not succeed.
            let _entered = context.enter();
            // SAFETY: it was taken, so nobody uses it again but who is in a call.
            let code = unsafe { abort(raw) };
            // Nobody listens after the deadline.
            let _ = tell.send(code);
        };
        let named = std::thread::Builder::new().name("phalanx-nccl-abort".into());
        named.spawn(work).map_err(|e| Error::io("starting a thread that aborts a communicator", e))?;
        Ok(hear)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.shared.lock().handle.is_none() {
            return;
        }
        if let Err(error) = self.abort(ABORT_TIME) {
            tracing::warn!(%error, "a communicator that was dropped could not be aborted");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        LAST_ERRORS.forget(self.whose.0);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    fn take(&self) -> Option<Handle> {
        self.lock().handle.take()
    }

    /// The communicator, if a call has been in it for too long.
    fn take_from_inside(&self) -> Option<Handle> {
        let mut state = self.lock();
        state.inside_since.filter(|since| since.elapsed() > INSIDE_TIME)?;
        state.handle.take()
    }

    fn live(&self, state: &State) -> Result<RawComm> {
        match state.handle {
            Some(Handle(raw)) if !self.is_ending() => Ok(raw),
            _ => Err(self.failed("ncclCommGetAsyncError", "the communicator was aborted")),
        }
    }

    /// Makes a call, on the thread that calls NCCL.
    fn inside<R>(&self, call: impl FnOnce(RawComm) -> R) -> Result<R> {
        let raw = {
            let mut state = self.lock();
            let raw = self.live(&state)?;
            state.inside_since = Some(Instant::now());
            raw
        };
        let outcome = call(raw);
        self.lock().inside_since = None;
        Ok(outcome)
    }

    /// Does something with the communicator that NCCL does at once, if it is there.
    pub(crate) fn at_once(&self, call: impl FnOnce(RawComm)) {
        let state = self.lock();
        if let (Some(Handle(raw)), None) = (state.handle, state.inside_since) {
            call(raw);
        }
    }

    /// Judges the code of a call that does not block.
    pub(crate) fn begun(&self, call: &'static str, code: Code) -> Result<()> {
        if code == IN_PROGRESS { Ok(()) } else { self.nccl.check(call, code, Some(self.whose.0)) }
    }

    /// Notes that NCCL's last error so far is not about this communicator.
    pub(crate) fn all_is_well(&self) {
        self.nccl.all_is_well(Some(self.whose.0));
    }

    /// Whether nothing is in progress, or what NCCL says is wrong.
    fn status(&self) -> Result<bool> {
        let state = self.lock();
        self.live(&state).and_then(|raw| self.ask(raw))
    }

    /// As [`status`](Self::status), of a communicator that is locked, and so lives.
    fn ask(&self, raw: RawComm) -> Result<bool> {
        let mut status = SUCCESS;
        // SAFETY: see above.
        let code = unsafe { (self.functions.async_error)(raw, &raw mut status) };
        self.nccl.check("ncclCommGetAsyncError", code, Some(raw))?;
        self.begun("ncclCommGetAsyncError", status)?;
        Ok(status == SUCCESS)
    }

    /// Refuses to begin something while something else, that was given up, goes on: NCCL would lose its way in both.
    pub(crate) fn idle(&self) -> Result<()> {
        if self.status()? {
            return Ok(());
        }
        Err(self.failed("ncclCommGetAsyncError", "still busy with an operation that was given up; abort it"))
    }

    /// Waits until nothing is in progress; `false` when that took longer.
    pub(crate) fn settled(&self, deadline: &Deadline) -> Result<bool> {
        wait_until(deadline, || self.status())
    }

    /// Waits until all ranks of a new communicator have come.
    fn come_about(&self, call: &str, deadline: &Deadline, is_wanted: impl Fn() -> Result<()>) -> Result<()> {
        if wait_until(deadline, || is_wanted().and_then(|()| self.status()))? {
            return Ok(());
        }
        Err(not_together(self.nccl, call, (self.rank, self.world_size), deadline))
    }

    pub(crate) fn late(&self, call: &'static str, timeout: Duration) -> Error {
        self.failed(call, &format!("still in progress after {:.1} s", timeout.as_secs_f64()))
    }

    fn failed(&self, call: &'static str, what: &str) -> Error {
        Error::Library { library: self.nccl.to_string(), call: call.into(), what: what.into() }
    }
}

/// The ranks of a new communicator have not come in time.
fn not_together(nccl: Nccl, call: &str, (rank, world_size): (usize, usize), deadline: &Deadline) -> Error {
    let what = format!("{call} of {nccl} is still in progress");
    Error::Rendezvous { rank, world_size, what, waited: deadline.elapsed(Instant::now()) }
}
