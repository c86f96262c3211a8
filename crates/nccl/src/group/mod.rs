//! A process group's operations on device memory: NCCL moves the data, the group on the host knows who is there and what everybody means.

pub(crate) mod connect;
mod connection;
mod in_flight;
mod operations;
mod self_test;
mod watchdog;

pub use in_flight::Work;

use crate::batch::Batch;
use crate::device::Device;
use crate::fallback::Fallback;
use crate::joint_health::JointHealth;
use crate::load::{Cuda, Nccl};
use crate::stream::Stream;
use connection::Connection;
use in_flight::InFlight;
use phalanx_core::{CallSite, Deadline, Error, Result};
use phalanx_group::ProcessGroup;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use watchdog::Watchdog;

/// Collectives and messages between devices, one on each rank of a [`ProcessGroup`].
///
/// Cheap to clone; usable from any thread. The data stays on the devices. A call puts an operation on a stream and returns, if it is
/// not the [first of its kind](Self#first-calls); the host, or another stream, waits for it if it likes. Buffers are used in order whatever the streams: see [`DeviceBuffer`](crate::DeviceBuffer).
///
/// # Contract
/// That of a [`ProcessGroup`](ProcessGroup#contract), with the same errors on all ranks. NCCL itself checks nothing and waits for ever, so for each
/// collective the ranks agree over the host what they call, at the same time as the devices begin; [`Work::wait`] returns when both are done. If the ranks don't
/// agree, a rank is lost, or an operation is late, the communicator is aborted on all of them. What is read on a device before [`Work::wait`] has
/// returned `Ok` may come from ranks that did not mean the same. Time runs from the call, the stream's earlier work included.
///
/// Messages (`send`, `recv`) are not agreed on: NCCL has no tags, and takes them in order.
///
/// # Determinism
/// Same bits on all ranks. The arithmetic is NCCL's, in the element type, and differs from the host's:
/// - `Min` and `Max` of floats pass over a NaN, where the host gives NaN as soon as one rank has one: look for NaN in a sum.
/// - `Avg` of floats multiplies each rank's number with 1/n, rounded to the type, and then adds. In f16 small gradients become 0 before they are added (the host divides the
///   sum), and where n is no power of two, not even the average of equal numbers need be that number.
/// - f16 and bf16 are rounded after each addition (on the host once, at the end).
///
/// # First calls
/// NCCL connects ranks when they first need it, and a call waits for that, on the host: the first of each kind, again where NCCL takes another way for other
/// sizes, and the first message between two ranks, in each direction. Such a call returns when all ranks whom it concerns have made it, or the group fails; until
/// then no other call gets through here on this rank, from no thread. So nothing that another rank needs for its call may come after it: a rank that first
/// begins a collective on the device, and then sends what the others wait for on the host, waits for them, and they for it, until all of it is a
/// `Timeout`. A program that has its first calls behind it waits no more.
///
/// # Cost
/// The agreement costs a barrier on the host, on another thread; the call itself a few microseconds of the driver and of NCCL.
#[derive(Clone)]
pub struct NcclGroup {
    _handles: Arc<Handles>,
    shared: Arc<Shared>,
    stream: Stream,
    timeout: Duration,
}

/// How long operations that nobody waits for may still take when the last handle is dropped.
const LAST_OPERATIONS_TIME: Duration = Duration::from_secs(5);

/// The value that all handles of a program share. When the last is dropped, the thread that looks after operations lets go of the group: else the
/// process could end while that has it, and would not leave in order.
struct Handles(Arc<Shared>);

pub(crate) struct Shared {
    connection: Arc<Connection>,
    /// Collectives of the group on which the ranks agree, so far. Who has the lock gives a call its place, among those of NCCL and those of the host.
    seq: Mutex<u64>,
    watchdog: Watchdog,
}

impl fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NcclGroup").field(&self.shared.connection.comm).finish()
    }
}

impl NcclGroup {
    /// Gives each rank of `group` the device with its `ordinal`, and connects them, for which there is the [time](ProcessGroup::init_timeout) that ranks have to come
    /// together. Collective; `group` can be used
    /// as before afterwards.
    ///
    /// # Errors
    /// The same on all ranks: a rank without NCCL or without that device, or an NCCL that would send in the clear where `PHALANX_ENCRYPT` is `require`
    /// ([`Unavailable`](Error::Unavailable)), two ranks with one device, in one
    /// process (unless `NCCL_P2P_DIRECT_DISABLE=1`), or with different versions of NCCL, or a [reproducible](ProcessGroup::reproducible) `group` ([`Config`](Error::Config)), wrong sums ([`WrongSum`](Error::WrongSum)), those of the group's collectives.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::NcclGroup;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// phalanx_group::on_threads(2, |group| {
    ///     let devices = NcclGroup::new(&group, group.rank())?; // in processes, `group.local_rank()`
    ///     assert_eq!(devices.device().ordinal(), group.rank());
    ///     devices.finalize()
    /// })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(group: &ProcessGroup, ordinal: usize) -> Result<Self> {
        Self::over(group, Nccl::load(), Cuda::load().and_then(|cuda| Device::open(cuda, ordinal)))
    }

    /// As [`new`](Self::new), with a library and a device of one's choice, or with what went wrong with them, of which the other ranks hear then.
    ///
    /// # Errors
    /// As for `new`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device, Nccl, NcclGroup};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let group = &phalanx_group::threads(1)[0];
    /// let device = Cuda::load().and_then(|cuda| Device::open(cuda, 1));
    /// let devices = NcclGroup::over(group, Nccl::load(), device)?;
    /// assert_eq!(devices.device().ordinal(), 1);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn over(group: &ProcessGroup, nccl: Result<Nccl>, device: Result<Device>) -> Result<Self> {
        match connect::check(group, nccl, device, Fallback::Never)? {
            (Some(common), device) => Self::connect(group, common, &device),
            (None, _) => Err(Error::Internal { what: "a fallback that nobody wanted".into() }),
        }
    }

    /// As [`over`](Self::over), after the ranks have [compared](connect::check) what they have.
    pub(crate) fn connect(group: &ProcessGroup, common: connect::Common, device: &Device) -> Result<Self> {
        if group.is_reproducible() {
            let what = "NCCL adds up in orders of its own, which a reproducible group does not allow: make the group of device memory of a \
                        handle that is not reproducible, or reduce on the host";
            return Err(Error::config(what));
        }
        let (health, least) = (JointHealth::of(group)?, common.capability);
        let comm = connect::connect(&health.control, group, common, device)?.among(least);
        let stream = Stream::new(device)?;
        let connection = Arc::new(Connection::new(health, comm));
        let shared = Shared { connection, seq: Mutex::new(0), watchdog: Watchdog::default() };
        let shared = Arc::new(shared);
        let handles = Arc::new(Handles(shared.clone()));
        let group = Self { _handles: handles, shared, stream, timeout: group.timeout() };
        group.self_test()?;
        Ok(group)
    }

    /// This rank.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// assert_eq!(devices.rank(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.shared.connection.comm.rank()
    }

    /// Ranks of the group.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// assert_eq!(devices.world_size(), 1);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn world_size(&self) -> usize {
        self.shared.connection.comm.world_size()
    }

    /// The device of this rank.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// assert_eq!(devices.device().ordinal(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        self.shared.connection.comm.device()
    }

    /// On which operations are put: a stream of its own, unless [`on_stream`](Self::on_stream) has said otherwise.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// assert_eq!(devices.stream().device().ordinal(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The library that it is of.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// println!("{}", devices.library()); // NCCL 2.28.9 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn library(&self) -> Nccl {
        self.shared.connection.comm.nccl()
    }

    pub(crate) fn health(&self) -> &JointHealth {
        &self.shared.connection.health
    }

    /// Describes the group in one line for people.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// assert!(devices.describe().contains("NCCL"), "{}", devices.describe());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn describe(&self) -> String {
        let (comm, n) = (&self.shared.connection.comm, self.world_size());
        format!("nccl: {n} rank{}, here on {}, {}", if n == 1 { "" } else { "s" }, comm.device(), comm.nccl())
    }

    /// A handle on the same group, whose operations are put on `stream`.
    ///
    /// # Errors
    /// [`Config`](Error::Config): it is a stream of another device, or on each thread [another](Stream::from_raw).
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Stream;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// let compute = Stream::new(devices.device())?;
    /// let here = devices.on_stream(&compute)?; // its operations come behind what is on `compute`
    /// assert_eq!(here.stream().raw(), compute.raw());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn on_stream(&self, stream: &Stream) -> Result<Self> {
        stream.check(self.device())?;
        Ok(Self { stream: stream.clone(), ..self.clone() })
    }

    /// A handle on the same group with another time limit.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// devices.with_timeout(Duration::from_secs(5)).barrier()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[must_use = "this handle keeps its limit"]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// An empty batch for [`launch`](Self::launch).
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// assert!(devices.launch(&devices.batch()).is_ok()); // with nothing in it
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn batch<'a>(&self) -> Batch<'a> {
        self.shared.connection.comm.batch()
    }

    /// Begins everything in `batch` as one operation: what all ranks call alike of collectives, and messages between some.
    ///
    /// # Errors
    /// Those of the [contract](Self#contract), as far as they are known already, and of a launch that NCCL refuses or does not take in time;
    /// [`Misuse`](Error::Misuse), and [`Config`](Error::Config) for a stream that captures a graph: nothing was begun.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut sum = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut first = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut batch = devices.batch();
    /// batch.all_reduce(&mut sum, ReduceOp::Sum)?;
    /// batch.broadcast(&mut first, 0)?;
    /// devices.launch(&batch)?.wait()?; // as one
    /// assert_eq!((sum.to_host(stream, limit)?, first.to_host(stream, limit)?), (vec![1.0], vec![0.0]));
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn launch(&self, batch: &Batch<'_>) -> Result<Work> {
        self.launch_at(batch, CallSite::caller())
    }

    /// As [`launch`](Self::launch), called at `site`.
    pub(crate) fn launch_at(&self, batch: &Batch<'_>, site: CallSite) -> Result<Work> {
        let shared = &self.shared;
        shared.connection.comm.check(batch)?;
        // Before the others hear of it.
        self.stream.check_capture()?;
        let (collective, signature) = (batch.collective(&site), batch.signature(&site));
        let mut seq = shared.seq.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cause) = shared.connection.health.failure() {
            return Err(shared.connection.health.refused(&signature, cause));
        }
        let control = shared.connection.health.control.with_timeout(self.timeout);
        let agreement = collective.map(|call| control.agree_async(call)).transpose()?;
        *seq += u64::from(agreement.is_some());
        let number = if agreement.is_some() { *seq } else { 0 };
        let deadline = Deadline::after(Instant::now(), self.timeout);
        let call = (signature, number, batch.others());
        let flight = Arc::new(InFlight::new(shared.connection.clone(), call, deadline, agreement));
        shared.watchdog.add(flight.clone())?;
        // The locked sequence makes the order of NCCL that of the agreements.
        let launched = shared.connection.comm.launch(batch, &self.stream, self.timeout);
        let is_on_its_way = flight.launched(launched.and_then(|()| self.stream.record()));
        drop(seq);
        if !is_on_its_way {
            // Who drops the work would take what is in the buffers for the result. Why there is none, the host may know in a moment.
            Work::new(flight.clone()).wait()?;
        }
        Ok(Work::new(flight))
    }

    /// Divides the ranks: those that give the same `color` get a group with their devices, ordered by `key`, then by rank here. Collective.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let alone = devices.split(Some(rank as u32), 0)?.expect("a colour was given");
    /// assert_eq!(alone.world_size(), 1);
    /// # alone.finalize()?;
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let (shared, site) = (&self.shared, CallSite::caller());
        let group = {
            let mut seq = shared.seq.lock().unwrap_or_else(PoisonError::into_inner);
            *seq += 1;
            shared
                .connection
                .health
                .control
                .with_timeout(self.timeout)
                .with_call_site(site)
                .split(color, key)?
        };
        group.map(|group| self.again(&group)).transpose()
    }

    /// A new group of `ranks`, which are ranks of this group, with their devices. Only they need to call; a rank that is not among them gets `None` at once, and
    /// nobody waits for it. In the new group they count in their order here, in whatever order `ranks` names them: see [`ProcessGroup::new_group`].
    ///
    /// Groups that have a device in common must be called in one order on all ranks, and so they must be made, for each tries a sum when it is made. So ranks that
    /// are in two new groups ask for them one after the other, in the same order, and not on several threads at a time, nor while operations of this group are under way.
    ///
    /// # Cost
    /// On the members that of [`new`](Self::new), and none on the other ranks.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and those of [`ProcessGroup::new_group`]: [`Misuse`](Error::Misuse) for a rank that this group has not, or one that is named twice,
    /// and [`Timeout`](Error::Timeout), which names members that do not come. Whatever goes wrong fails the new group on all its members, and this one works on.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(3, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let rank = devices.rank();
    /// if rank != 1 {
    ///     let pair = devices.new_group(&[0, 2])?.expect("this rank is a member");
    ///     let mut sum = DeviceBuffer::from_host(pair.stream(), &[rank as f32])?;
    ///     pair.all_reduce(&mut sum, ReduceOp::Sum)?.wait()?;
    ///     assert_eq!((sum.to_host(pair.stream(), limit)?, pair.rank()), (vec![2.0], rank / 2));
    /// #   pair.finalize()?;
    /// }
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<Self>> {
        let control = self.shared.connection.health.control.with_timeout(self.timeout);
        let group = control.with_call_site(CallSite::caller()).new_group(ranks)?;
        group.map(|group| self.again(&group)).transpose()
    }

    /// A group of some of these ranks, with their devices.
    fn again(&self, group: &ProcessGroup) -> Result<Self> {
        Self::over(group, Ok(self.library()), Ok(self.device().clone()))
    }

    /// Ends in order, when all ranks have come and their devices are done.
    ///
    /// # Errors
    /// Those of the [contract](Self#contract); [`Library`](Error::Library): NCCL did not end.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// devices.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn finalize(self) -> Result<()> {
        self.barrier()?;
        self.shared.connection.comm.finalize(self.timeout)
    }

    /// Fails the operations of all ranks at once, from any thread.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let devices = phalanx_nccl::NcclGroup::new(group, 0)?;
    /// devices.abort("the loss is not a number");
    /// assert!(devices.barrier().unwrap_err().to_string().contains("the loss is not a number"));
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn abort(&self, reason: &str) {
        self.shared.connection.health.abort(reason);
        self.shared.connection.abort();
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.watchdog.settle(LAST_OPERATIONS_TIME);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.watchdog.close();
    }
}
