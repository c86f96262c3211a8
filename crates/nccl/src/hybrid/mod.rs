//! Host memory and device memory in one group.

mod operations;
mod place;

pub use place::Place;

use crate::batch::Batch;
use crate::device::Device;
use crate::fallback::Fallback;
use crate::group::{NcclGroup, Work, connect};
use crate::joint_health::JointHealth;
use crate::load::{Cuda, Nccl};
use crate::staging::Staging;
use crate::stream::Stream;
use phalanx_core::{CallSite, Error, OpKind, Result};
use phalanx_group::ProcessGroup;
use std::fmt;
use std::time::Duration;

/// One group for data in memory of the host and of a device: each call goes by where its data is.
///
/// Host memory, and messages between hosts, go over the [`ProcessGroup`]; device memory goes over [NCCL](NcclGroup), or, where there is none and
/// a [`Fallback`] is allowed, through pinned memory over the host. Cheap to clone; usable from any thread.
///
/// # Contract
/// That of a [`ProcessGroup`](ProcessGroup#contract), for both halves, and fail together: when one fails, both have failed, on all ranks. The calls of each half
/// come in the same order on all ranks; between the halves there is no order, but that of [`barrier`](Self::barrier). Calls of the group that this was
/// made from are calls of the host's half.
///
/// Over NCCL a call on device memory returns before it is over, as [there](NcclGroup#contract), and the [first of a kind](NcclGroup#first-calls) when all
/// ranks have come to it. Over the host it returns when it is over.
///
/// # Cost
/// Over the host: a barrier, and for each chunk of 4 MiB a collective of the group. Three chunks are under way at a time: one comes from the device, one is worked
/// on, one goes back. Pinned memory for them is kept as long as the device is open. Each use is a warning in the log.
///
/// # Determinism
/// Same bits on all ranks. Over the host they are those of the group's collective on each chunk; over NCCL those of [its arithmetic](NcclGroup#determinism), so
/// a minimum with NaN, and an average, may be others than on the host.
///
/// # Examples
/// ```
/// use phalanx_core::{Error, Result};
/// use phalanx_group::{ProcessGroup, ReduceOp};
/// use phalanx_nccl::{DeviceBuffer, HybridGroup};
///
/// fn train(group: &ProcessGroup) -> Result<()> {
///     let all = HybridGroup::new(group, group.local_rank())?;
///     let mut losses = [0.5f32; 2];
///     all.all_reduce(&mut losses[..], ReduceOp::Avg)?.wait()?; // over the process group
///     let mut grads = DeviceBuffer::from_host(all.stream(), &[1.0f32; 1000])?;
///     all.all_reduce(&mut grads, ReduceOp::Avg)?.wait()?; // over NCCL
///     all.finalize()
/// }
/// // Without a GPU this says what was tried, on every rank.
/// match train(&phalanx_group::init()?) {
///     Ok(()) => {}
///     Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error}"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct HybridGroup {
    host: ProcessGroup,
    devices: Devices,
}

/// By what way device memory goes.
#[derive(Clone)]
enum Devices {
    Nccl(NcclGroup),
    OverHost(Staging),
}

impl fmt::Debug for HybridGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HybridGroup").field(&self.describe()).finish()
    }
}

impl HybridGroup {
    /// Gives each rank of `group` the device with its `ordinal`. Without NCCL that is an error, unless `PHALANX_ENABLE_GPU_FALLBACK` is 1. Collective, within the
    /// group's time limit.
    ///
    /// # Errors
    /// Those of [`NcclGroup::new`]; [`Unavailable`](Error::Unavailable) says how to do without NCCL. Two ranks may have one device where data goes
    /// over the host.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::HybridGroup;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// phalanx_group::on_threads(2, |group| {
    ///     let all = HybridGroup::new(&group, group.rank())?; // in processes, `group.local_rank()`
    ///     let mut losses = [group.rank() as f32];
    ///     all.all_reduce(&mut losses[..], ReduceOp::Avg)?.wait()?;
    ///     assert_eq!(losses, [0.5]);
    ///     all.finalize()
    /// })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(group: &ProcessGroup, ordinal: usize) -> Result<Self> {
        let fallback = Fallback::from_environment();
        // Of what is wrong with it the others hear as of a device that is not there.
        let device = fallback.clone().and_then(|_| open(ordinal));
        Self::over(group, Nccl::load(), device, fallback.unwrap_or_default())
    }

    /// As [`new`](Self::new), whatever the environment says of a fallback.
    ///
    /// # Errors
    /// As for `new`; [`Config`](Error::Config) where the ranks give different fallbacks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Fallback, HybridGroup};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let group = &phalanx_group::threads(1)[0];
    /// let all = HybridGroup::with_fallback(group, 0, Fallback::Always)?;
    /// assert!(all.nccl().is_none()); // device memory goes over the host
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn with_fallback(group: &ProcessGroup, ordinal: usize, fallback: Fallback) -> Result<Self> {
        Self::over(group, Nccl::load(), open(ordinal), fallback)
    }

    /// As [`with_fallback`](Self::with_fallback), with a library and a device of one's choice, or with what went wrong with them.
    ///
    /// # Errors
    /// As for `with_fallback`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Error;
    /// use phalanx_nccl::{Cuda, Device, Fallback, HybridGroup};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let group = &phalanx_group::threads(1)[0];
    /// let device = Cuda::load().and_then(|cuda| Device::open(cuda, 0));
    /// let nccl = Err(Error::config("this program does without NCCL"));
    /// let all = HybridGroup::over(group, nccl, device, Fallback::WithoutNccl)?;
    /// assert!(all.nccl().is_none());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn over(
        group: &ProcessGroup,
        nccl: Result<Nccl>,
        device: Result<Device>,
        fallback: Fallback,
    ) -> Result<Self> {
        let devices = match connect::check(group, nccl, device, fallback)? {
            (Some(common), device) => Devices::Nccl(NcclGroup::connect(group, common, &device)?),
            (None, device) => Devices::OverHost(Staging::new(group, &device)?),
        };
        let hybrid = Self { host: group.clone(), devices };
        hybrid.health().share(group);
        tracing::info!(group = hybrid.describe(), "made");
        Ok(hybrid)
    }

    /// The half for memory of the host, with all operations that it has, and messages with tags.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// all.host().barrier()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn host(&self) -> &ProcessGroup {
        &self.host
    }

    /// The half for memory of devices; `None` where that goes over the host.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert!(all.nccl().is_some());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn nccl(&self) -> Option<&NcclGroup> {
        match &self.devices {
            Devices::Nccl(nccl) => Some(nccl),
            Devices::OverHost(_) => None,
        }
    }

    /// This rank.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert_eq!(all.rank(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.host.rank()
    }

    /// Ranks of the group.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert_eq!(all.world_size(), 1);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn world_size(&self) -> usize {
        self.host.world_size()
    }

    /// The device of this rank.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert_eq!(all.device().ordinal(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.device(),
            Devices::OverHost(staging) => staging.device(),
        }
    }

    /// Behind whose work operations on device memory begin, and which waits for them.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert_eq!(all.stream().device().ordinal(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn stream(&self) -> &Stream {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.stream(),
            Devices::OverHost(staging) => staging.stream(),
        }
    }

    /// One line for people.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert!(all.describe().starts_with("hybrid: "), "{}", all.describe());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn describe(&self) -> String {
        let host = self.host.describe();
        match &self.devices {
            Devices::Nccl(nccl) => format!("hybrid: {host}; {}", nccl.describe()),
            Devices::OverHost(staging) => format!("hybrid: {host}; over that from {}", staging.device()),
        }
    }

    /// The same group, whose operations on device memory use `stream`.
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
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// let compute = Stream::new(all.device())?;
    /// let here = all.on_stream(&compute)?; // its operations come behind what is on `compute`
    /// assert_eq!(here.stream().raw(), compute.raw());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn on_stream(&self, stream: &Stream) -> Result<Self> {
        let devices = match &self.devices {
            Devices::Nccl(nccl) => Devices::Nccl(nccl.on_stream(stream)?),
            Devices::OverHost(staging) => Devices::OverHost(staging.on_stream(stream)?),
        };
        Ok(Self { devices, ..self.clone() })
    }

    /// The same group with another time limit, for both halves.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert_eq!(all.with_timeout(Duration::from_secs(5)).host().timeout(), Duration::from_secs(5));
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[must_use = "this handle keeps its limit"]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let devices = match &self.devices {
            Devices::Nccl(nccl) => Devices::Nccl(nccl.with_timeout(timeout)),
            Devices::OverHost(staging) => Devices::OverHost(staging.with_timeout(timeout)),
        };
        Self { host: self.host.with_timeout(timeout), devices }
    }

    /// An empty batch for [`launch`](Self::launch).
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// assert!(all.launch(&all.batch()).is_ok()); // with nothing in it
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn batch<'a>(&self) -> Batch<'a> {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.batch(),
            Devices::OverHost(staging) => staging.batch(),
        }
    }

    /// Begins everything in `batch` as one operation: see [`NcclGroup::launch`].
    ///
    /// # Errors
    /// Those of the [contract](Self#contract); [`Misuse`](Error::Misuse): nothing was begun.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let mut sum = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut first = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut batch = all.batch();
    /// batch.all_reduce(&mut sum, ReduceOp::Sum)?;
    /// batch.broadcast(&mut first, 0)?;
    /// all.launch(&batch)?.wait()?; // as one
    /// assert_eq!((sum.to_host(stream, limit)?, first.to_host(stream, limit)?), (vec![1.0], vec![0.0]));
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn launch(&self, batch: &Batch<'_>) -> Result<Work> {
        self.launch_at(batch, CallSite::caller())
    }

    /// As [`launch`](Self::launch), called at `site`: for libraries, in whose errors the program's call is to stand.
    ///
    /// # Errors
    /// As for `launch`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{CallSite, ReduceOp, Result};
    /// use phalanx_nccl::{DeviceBuffer, HybridGroup};
    ///
    /// /// Of a library: an error names the line of the program that calls it.
    /// #[track_caller]
    /// fn total(all: &HybridGroup, part: &mut DeviceBuffer<f32>) -> Result<()> {
    ///     let mut batch = all.batch();
    ///     batch.all_reduce(part, ReduceOp::Sum)?;
    ///     all.launch_at(&batch, CallSite::caller())?.wait()
    /// }
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let mut one = DeviceBuffer::from_host(all.stream(), &[1.0f32])?;
    /// # total(&all, &mut one)?;
    /// # assert_eq!(one.to_host(all.stream(), limit)?, [1.0]);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn launch_at(&self, batch: &Batch<'_>, site: CallSite) -> Result<Work> {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.launch_at(batch, site),
            Devices::OverHost(staging) => staging.launch_at(batch, &site),
        }
    }

    /// Waits on the host until this rank's device has done what was put on the [stream](Self::stream), operations on device memory among it. Not collective.
    ///
    /// # Errors
    /// [`Poisoned`](Error::Poisoned): the group has failed. [`Unavailable`](Error::Unavailable): the device was not done within the time limit.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// all.synchronize()?; // this rank's device is done
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn synchronize(&self) -> Result<()> {
        let timeout = self.host.timeout();
        let is_done = self.stream().synchronize(timeout)?;
        match self.health().failure() {
            Some(cause) => Err(Error::Poisoned { op: OpKind::Barrier, cause: Box::new(cause) }),
            None if is_done => Ok(()),
            None => {
                let what = format!("the end of the stream's work within {:.1} s", timeout.as_secs_f64());
                Err(Error::Unavailable { what, tried: format!("{:?}", self.stream()) })
            }
        }
    }

    /// Waits on the host until all ranks have come, and their devices have done what they were given on these streams before.
    ///
    /// # Errors
    /// Those of the [contract](Self#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// all.barrier()?; // all ranks' devices are done
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.barrier(),
            Devices::OverHost(staging) => staging.barrier_at(&CallSite::caller()),
        }
    }

    /// Divides both halves: those that give the same `color` get a group, ordered by `key`, then by rank here. Its device memory goes by the same way as here.
    /// Collective.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let alone = all.split(Some(rank as u32), 0)?.expect("a colour was given");
    /// assert_eq!(alone.world_size(), 1);
    /// # alone.finalize()?;
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let group = self.host.split(color, key)?;
        group.map(|group| self.again(&group)).transpose()
    }

    /// A new group of `ranks`, which are ranks of this group, with both halves. Only they need to call; a rank that is not among them gets `None` at once, and
    /// nobody waits for it. In the new group they count in their order here, in whatever order `ranks` names them: see [`ProcessGroup::new_group`]. Its device memory goes by
    /// the same way as here; over NCCL what is said of the [order of groups](NcclGroup::new_group) holds.
    ///
    /// # Cost
    /// On the members that of [`new`](Self::new), and none on the other ranks.
    ///
    /// # Errors
    /// As of [`NcclGroup::new_group`].
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::ReduceOp;
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(3, |group| {
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// if all.rank() != 1 {
    ///     let pair = all.new_group(&[0, 2])?.expect("this rank is a member");
    ///     let mut sum = [all.rank() as f32];
    ///     pair.all_reduce(&mut sum[..], ReduceOp::Sum)?.wait()?;
    ///     assert_eq!((sum, pair.rank()), ([2.0], all.rank() / 2));
    /// #   pair.finalize()?;
    /// }
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<Self>> {
        let group = self.host.new_group(ranks)?;
        group.map(|group| self.again(&group)).transpose()
    }

    /// A group of some of these ranks, whose device memory goes by the same way.
    fn again(&self, group: &ProcessGroup) -> Result<Self> {
        let (nccl, fallback) = match self.nccl() {
            Some(nccl) => (Ok(nccl.library()), Fallback::Never),
            None => {
                let why = "the group that this one was made of works without NCCL";
                (Err(Error::config(why)), Fallback::Always)
            }
        };
        Self::over(group, nccl, Ok(self.device().clone()), fallback)
    }

    /// Ends both halves in order, when all ranks have come and their devices are done.
    ///
    /// # Errors
    /// Those of the [contract](Self#contract); [`Library`](Error::Library): NCCL did not end.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// all.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn finalize(self) -> Result<()> {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.clone().finalize(),
            Devices::OverHost(staging) => staging.barrier_at(&CallSite::caller()),
        }
        // The others wait for this rank on the host, and hear why it does not come.
        .inspect_err(|error| drop(self.health().give_up(error)))?;
        self.host.finalize()
    }

    /// Fails the operations of both halves on all ranks at once, from any thread.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let group = &phalanx_group::threads(1)[0];
    /// # let all = phalanx_nccl::HybridGroup::new(group, 0)?;
    /// all.abort("the loss is not a number");
    /// assert!(all.barrier().unwrap_err().to_string().contains("the loss is not a number"));
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn abort(&self, reason: &str) {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.abort(reason),
            Devices::OverHost(staging) => drop(staging.health().abort(reason)),
        }
    }

    fn health(&self) -> &JointHealth {
        match &self.devices {
            Devices::Nccl(nccl) => nccl.health(),
            Devices::OverHost(staging) => staging.health(),
        }
    }
}

fn open(ordinal: usize) -> Result<Device> {
    Cuda::load().and_then(|cuda| Device::open(cuda, ordinal))
}
