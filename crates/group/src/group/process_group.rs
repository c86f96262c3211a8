//! What users hold.

use crate::group::backend::{Address, Backend, BackendFactory};
use crate::group::encryption::Encryption;
use crate::group::handles::{Handles, InFlight, KeptAlive};
use crate::group::owner_process::{QuickOwnerProcess, refusal};
use crate::trace::writer as trace;
use phalanx_core::{CallSite, Cause, DType, Error, GroupId, OpKind, Result, Signature};
use std::collections::HashMap;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How the group of all ranks is made anew after a loss.
pub(crate) trait Regroup: KeptAlive {
    /// How long coming together may take.
    fn init_timeout(&self) -> Duration;

    /// How often the group has been made anew.
    fn number(&self) -> u64;

    /// What the group encrypts with, if it does.
    fn encryption(&self) -> Option<Encryption>;

    /// How many replacements wait to be let in.
    ///
    /// # Errors
    /// Those of the store.
    fn waiting(&self, limit: Duration) -> Result<usize>;

    /// The group of those who go on. Those who live have so much time to come.
    ///
    /// # Errors
    /// See [`ProcessGroup::shrink`] and [`ProcessGroup::rejoin`].
    fn next(&self, op: OpKind, limit: Duration, site: CallSite) -> Result<ProcessGroup>;
}

/// Some ranks that work together: this rank's handle on them.
///
/// Cheap to clone, and can be used from any thread. The collectives of a group are performed one after the other, in
/// the order of the calls, which must be the same on all ranks; point-to-point messages go on beside them.
///
/// # Contract
/// Every call ends, at the latest when its deadline passes. Ranks that call different things at the same place get
/// [`Mismatch`](Error::Mismatch) with both call sites, and no data is mixed. When a rank dies, all others get
/// [`PeerLost`](Error::PeerLost) naming it. After such an error the group is poisoned: buffers of the failed call hold unspecified values, and later
/// calls return [`Poisoned`](Error::Poisoned) with the first cause. After [`Misuse`](Error::Misuse) nothing was sent and
/// the group is fine. A rank whose part in an operation is only to send may learn of another's trouble at its next call.
///
/// All ranks end a reduction with the same bits. It rounds to nearest even and keeps subnormals whatever the state of the calling
/// thread's floats is (libraries built with `-ffast-math` turn subnormals off, `fesetround` sets another rounding), and that state is
/// afterwards what it was. So on x86-64 and aarch64; elsewhere the threads must be in the default state.
///
/// # Reproducibility
/// Rounding depends on the order in which numbers are added. Over the shared memory of one host that is the order of the ranks, so a reduction has the
/// same bits from run to run with the same world size. Elsewhere it is up to the algorithm, and over several hosts also up to which ranks share
/// a host. The algorithm is chosen by operation, length, world size and what messages cost: rank 0 goes by its processor's cores and by the prices that
/// `phalanx tune` has measured on its host, if any. So the same job may have other bits on other machines, or after a `phalanx tune`.
/// `PHALANX_ALGO` fixes the algorithms: with the same ones, and the same world size, bits are the same from run to run. A
/// [reproducible](Self::reproducible) handle has the same bits wherever it runs.
///
/// # Examples
/// Four ranks in this process:
/// ```
/// use phalanx_group::{ReduceOp, threads};
/// std::thread::scope(|ranks| {
///     for group in threads(4) {
///         ranks.spawn(move || -> phalanx_core::Result<()> {
///             let mut buffer = [group.rank() as f32, 1.0];
///             group.all_reduce(&mut buffer, ReduceOp::Sum)?;
///             assert_eq!(buffer, [6.0, 4.0]); // 0 + 1 + 2 + 3, and 1 from each
///             group.finalize()
///         });
///     }
/// });
/// ```
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    /// First: the last of them may have to say why it is dropped.
    _handles: Arc<Handles>,
    pub(crate) backend: Arc<dyn Backend>,
    /// As the backend says: every call asks for them, some several times.
    rank: usize,
    world_size: usize,
    /// Makes the backends of groups that are split off this one.
    pub(crate) factory: Option<Arc<dyn BackendFactory>>,
    /// Splits made so far, the same on all members: part of the names of the next ones.
    pub(crate) splits: Arc<std::sync::Mutex<u64>>,
    /// How often this rank has asked for the group of these ranks: part of the names of the next ones.
    pub(crate) new_groups: Arc<std::sync::Mutex<HashMap<Vec<usize>, u64>>>,
    /// How long an operation that is called on this handle may take.
    timeout: Duration,
    /// How long coming together may take, where that is another time.
    init_timeout: Option<Duration>,
    /// How the ranks came together and may again: known to the group of all of them only.
    pub(crate) generation: Option<Arc<dyn Regroup>>,
    encryption: Option<Encryption>,
    /// Whether reductions that are called on this handle add up in the order of the ranks.
    is_reproducible: bool,
    /// Where calls are made, if not where they are.
    site: Option<CallSite>,
    pub(crate) owner_process: QuickOwnerProcess,
}

impl ProcessGroup {
    /// A group on any backend. It can't be [split](Self::split).
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{Backend, ProcessGroup};
    /// use std::sync::Arc;
    ///
    /// fn group_over(backend: impl Backend + 'static) -> ProcessGroup {
    ///     ProcessGroup::new(Arc::new(backend))
    /// }
    /// ```
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let timeout = backend.timeout();
        let owner_process = QuickOwnerProcess::here();
        Self {
            _handles: Arc::new(Handles::new(backend.clone(), owner_process)),
            rank: backend.rank(),
            world_size: backend.members().len(),
            backend,
            factory: None,
            splits: Arc::default(),
            new_groups: Arc::default(),
            timeout,
            init_timeout: None,
            generation: None,
            encryption: None,
            is_reproducible: false,
            site: None,
            owner_process,
        }
    }

    /// As [`new`](Self::new), with what makes the backends of the groups that are [split](Self::split) off it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{Backend, BackendFactory, ProcessGroup};
    /// use std::sync::Arc;
    ///
    /// fn group_over(backend: Arc<dyn Backend>, makes_more: impl BackendFactory + 'static) -> ProcessGroup {
    ///     ProcessGroup::with_factory(backend, Arc::new(makes_more))
    /// }
    /// ```
    pub fn with_factory(backend: Arc<dyn Backend>, factory: Arc<dyn BackendFactory>) -> Self {
        Self { factory: Some(factory), ..Self::new(backend) }
    }

    pub(crate) fn of_all_ranks(
        backend: Arc<dyn Backend>,
        factory: Arc<dyn BackendFactory>,
        generation: Arc<dyn Regroup>,
    ) -> Self {
        let (encryption, init_timeout) = (generation.encryption(), Some(generation.init_timeout()));
        let group = Self::with_factory(backend, factory);
        Self { generation: Some(generation), encryption, init_timeout, ..group }
    }

    /// A group of some of these ranks.
    pub(crate) fn of_some(&self, backend: Arc<dyn Backend>) -> Self {
        let (encryption, init_timeout) = (self.encryption.clone(), self.init_timeout);
        let (factory, is_reproducible) = (self.factory.clone(), self.is_reproducible);
        Self { encryption, init_timeout, factory, is_reproducible, ..Self::new(backend) }
            .with_timeout(self.timeout)
    }

    /// What an operation of this group needs until it is over.
    pub(crate) fn in_flight(&self, op: OpKind) -> InFlight {
        InFlight {
            backend: self.backend.clone(),
            _generation: self.generation.clone().map(|generation| generation as Arc<dyn KeptAlive>),
            owner_process: self.owner_process,
            op,
        }
    }

    /// Refuses in a process that was forked from the one that made the group.
    #[inline]
    pub(crate) fn check_process(&self, op: OpKind) -> Result<()> {
        if self.owner_process.is_here() { Ok(()) } else { Err(refusal(op, self.rank(), self.owner_process)) }
    }

    /// This group with another time limit: of each operation that is called on the returned handle, or on groups that
    /// are [split](Self::split) from it. Everything else is shared with this handle, the order of the calls too. Not
    /// collective: ranks may have different limits. The first whose time is over fails the group for all, and all hear from
    /// [`Timeout`](Error::Timeout) which rank that was, and who had not come.
    ///
    /// The limit of all operations is `PHALANX_TIMEOUT_S`, 10 minutes unless set, until a program says otherwise. An asynchronous
    /// operation's time runs from when those before it are done. It is for ranks that are late: those that die, or fall silent, are
    /// found within the heartbeat's time whatever the limit. A rank that has waited for 30 s warns, and again after twice that, and
    /// so on, and says for whom: `still waiting for rank 2 (node7:4211) in all_reduce #7 of world (train.rs:41), for 30 s`. The warning
    /// goes to `tracing`, or to stderr in a program that has no subscriber.
    ///
    /// # Cost
    /// Of a clone.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{ReduceOp, threads};
    /// use std::time::Duration;
    /// # std::thread::scope(|s| { for group in threads(2) { s.spawn(move || -> phalanx_core::Result<()> {
    /// // One operation for which others may be late, as after writing a checkpoint …
    /// group.with_timeout(Duration::from_secs(3600)).barrier()?;
    /// // … or a group that is to be quick.
    /// let group = group.with_timeout(Duration::from_secs(5));
    /// group.all_reduce(&mut [1.0f32], ReduceOp::Sum)?;
    /// # Ok(()) }); } });
    /// ```
    #[must_use = "this handle keeps its limit"]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// This group with reductions whose bits depend on nothing but the contributions and their order: of each reduction that is called on the
    /// returned handle, or on groups that are [split](Self::split) from it. `all_reduce`, `reduce` and `reduce_scatter` then add
    /// `((x0 + x1) + x2) + …` in the order of the group's ranks, half types in `f32` and rounded once, and `Avg` divides at the end. So for one
    /// world size the bits are the same whatever carries the data, whichever algorithm does, wherever the ranks are, and however a program cuts
    /// its data into calls: also those of a training whose gradients go through this handle.
    ///
    /// Not collective, but all ranks must do it alike: a rank that calls on such a handle what others call on another gets
    /// [`Mismatch`](Error::Mismatch). `PHALANX_REPRODUCIBLE=1` makes the handles of a whole job such.
    ///
    /// # Cost
    /// Clones the handle. In shared memory reductions cost what they did, for they add in rank order anyway. By messages no partial sum may travel:
    /// large reductions send as many bytes as the ring does, in P(P − 1) messages of each phase at once, and keep n bytes beside a buffer of
    /// n bytes until all contributions are there; few bytes go to all ranks, P times as many. Over several hosts all ranks send
    /// messages to all, and a host's ranks do not add up first: (P − 1)/P of each rank's buffer goes over the network instead of each host's sum.
    ///
    /// # Errors
    /// None here. A reduction for which `PHALANX_ALGO` forces a way with another order returns [`Config`](Error::Config), which names
    /// the ways that keep it. NCCL keeps no order: no group of device memory is made of such a handle, unless its data go over the host.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{ReduceOp, threads};
    /// # std::thread::scope(|s| { for group in threads(3) { s.spawn(move || -> phalanx_core::Result<()> {
    /// let group = group.reproducible();
    /// let mut x = [[1e8f32, 1.0, -1e8][group.rank()]];
    /// group.all_reduce(&mut x, ReduceOp::Sum)?;
    /// assert_eq!(x, [0.0]); // (1e8 + 1) - 1e8; in another order it may be 1
    /// # Ok(()) }); } });
    /// ```
    #[must_use = "this handle keeps its order"]
    pub fn reproducible(&self) -> Self {
        Self { is_reproducible: true, ..self.clone() }
    }

    /// Whether reductions on this handle are [reproducible](Self::reproducible).
    ///
    /// # Examples
    /// ```
    /// let group = &phalanx_group::threads(1)[0];
    /// assert!(group.reproducible().is_reproducible() && !group.is_reproducible());
    /// ```
    pub fn is_reproducible(&self) -> bool {
        self.is_reproducible
    }

    /// The same group, whose calls count as made at `site`: for code that makes them on behalf of its own caller, where
    /// `#[track_caller]` does not reach, as in a closure. Errors and traces then name the line of the program.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, Result};
    /// # use phalanx_group::{ProcessGroup, ReduceOp};
    /// #[track_caller]
    /// fn sum(group: &ProcessGroup, parts: &mut [Vec<f32>]) -> Result<()> {
    ///     let group = group.with_call_site(CallSite::caller());
    ///     parts.iter_mut().try_for_each(|part| group.all_reduce(part, ReduceOp::Sum))
    /// }
    /// # sum(&phalanx_group::threads(1)[0], &mut [vec![1.0]]).unwrap();
    /// ```
    #[must_use]
    pub fn with_call_site(&self, site: CallSite) -> Self {
        Self { site: Some(site), ..self.clone() }
    }

    /// Where the program calls: what [`with_call_site`](Self::with_call_site) has said, or the caller.
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(1, |group| {
    /// let (site, here) = (group.site(), phalanx_core::CallSite::caller());
    /// assert_eq!(site.to_string(), here.to_string()); // the file and the line
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[inline]
    #[track_caller]
    pub fn site(&self) -> CallSite {
        self.site_of(Location::caller())
    }

    /// The site of a call that was made at `caller`.
    #[inline]
    fn site_of(&self, caller: &Location<'static>) -> CallSite {
        match &self.site {
            Some(site) => site.clone(),
            None => CallSite::from(caller),
        }
    }

    /// This rank within the group: below [`world_size`](Self::world_size).
    ///
    /// # Examples
    /// ```
    /// let groups = phalanx_group::threads(2);
    /// assert_eq!((groups[0].rank(), groups[1].rank()), (0, 1));
    /// ```
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in the group.
    ///
    /// # Examples
    /// ```
    /// let groups = phalanx_group::threads(2);
    /// assert_eq!(groups[0].world_size(), 2);
    /// ```
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// This process among those of the job on its host.
    ///
    /// # Examples
    /// ```
    /// let groups = phalanx_group::threads(2);
    /// let device = groups[1].local_rank(); // the second process of a host takes its second GPU
    /// assert_eq!(device, 1);
    /// ```
    pub fn local_rank(&self) -> usize {
        self.backend.local().0
    }

    /// Processes of the job on this host.
    ///
    /// # Examples
    /// ```
    /// let groups = phalanx_group::threads(2);
    /// let threads = 16 / groups[0].local_world_size(); // this process's share of its host's 16 cores
    /// assert_eq!(threads, 8);
    /// ```
    pub fn local_world_size(&self) -> usize {
        self.backend.local().1
    }

    /// The members as ranks of the job, in group order.
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(3, |group| {
    /// let without_0 = group.split((group.rank() > 0).then_some(0), 0)?;
    /// if let Some(others) = without_0 {
    ///     assert_eq!(others.members(), [1, 2]);
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn members(&self) -> &[usize] {
        self.backend.members()
    }

    /// The group's name within the job.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_group::threads(1)[0].id().to_string(), "world");
    /// ```
    pub fn id(&self) -> GroupId {
        self.backend.id()
    }

    /// The name of the backend that performs the operations: `tcp`, `shm`, `two-level`, `thread`, …
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_group::threads(2)[0].backend_name(), "thread");
    /// ```
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// One line for people: who performs the operations, and for how many ranks where; and which algorithms that `PHALANX_ALGO` forces can't be
    /// taken here.
    ///
    /// # Examples
    /// `two-level: 2 hosts x 4 ranks: shm inside, tcp across`, or `shm: 4 ranks on this host`, or
    /// ```
    /// # use phalanx_group::threads;
    /// let groups = threads(2);
    /// assert_eq!(groups[0].describe(), "thread: 2 ranks");
    /// let forced = phalanx_group::threads_with(2, std::time::Duration::from_secs(60), "all_reduce=shm/push")?;
    /// assert!(forced[0].describe().ends_with("; PHALANX_ALGO: all_reduce=shm/push is not taken: the ranks do not all share memory"));
    /// assert_eq!(threads(1)[0].describe(), "alone: 1 rank, nothing is sent");
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// For libraries that send something on behalf of the ranks: that the job encrypts, if it does. A process alone sends nothing.
    ///
    /// # Examples
    /// ```
    /// let group = &phalanx_group::threads(1)[0];
    /// assert!(group.encryption().is_none()); // threads send nothing over a network
    /// ```
    pub fn encryption(&self) -> Option<&Encryption> {
        self.encryption.as_ref()
    }

    /// How long an operation that is called on this handle may take.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// let group = &phalanx_group::threads(1)[0];
    /// assert_eq!(group.timeout(), Duration::from_secs(600));
    /// assert_eq!(group.with_timeout(Duration::from_secs(5)).timeout(), Duration::from_secs(5));
    /// ```
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long its ranks may take to come together, as for devices that are connected: `PHALANX_INIT_TIMEOUT_S` in a job, also for
    /// groups that are [split](Self::split) from that of all ranks, and whatever the [limit](Self::with_timeout) of operations.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// let group = &phalanx_group::threads(1)[0];
    /// assert_eq!(group.with_timeout(Duration::from_secs(5)).init_timeout(), Duration::from_secs(600));
    /// ```
    pub fn init_timeout(&self) -> Duration {
        self.init_timeout.unwrap_or(self.timeout)
    }

    /// Ends in order: waits until all ranks are here, so that nobody misses anything, and leaves. Use it at the end of a program.
    ///
    /// A group that is only dropped leaves in order too, when the last of its handles and of its [`Work`](crate::Work)s is gone, and
    /// without waiting for ranks that are late. Before the drop returns, the other ranks have been told: operations that nobody waits
    /// for are given five seconds to end, the arbiter one to confirm, and rank 0, where that is, stays up to two more for the others.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// // … train …
    /// group.finalize()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn finalize(self) -> Result<()> {
        self.barrier_at(OpKind::Finalize, self.timeout(), self.site())?;
        self.backend.leave();
        Ok(())
    }

    /// Fails the group on all its ranks at once, from any thread: running operations end with [`Aborted`](Error::Aborted).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// if group.rank() == 0 {
    ///     group.abort("the data are not those of the last run");
    /// }
    /// let error = group.barrier().unwrap_err(); // on both ranks
    /// assert!(error.to_string().contains("the data are not those of the last run"));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn abort(&self, reason: &str) {
        self.fail(Cause::Aborted { peer: self.peer(self.rank()), reason: reason.into() });
    }

    /// Writes what this rank did lately, in all its groups, to a file that `phalanx trace` reads: the latest operations, when
    /// they began and ended, and where the program called them. Not collective, and from any thread, also while an operation
    /// runs.
    ///
    /// # Errors
    /// [`Io`](Error::Io) where it can't be written, [`Unavailable`](Error::Unavailable) from a backend that keeps no record.
    ///
    /// # Examples
    /// ```
    /// let group = &phalanx_group::threads(1)[0];
    /// group.barrier()?;
    /// let file = std::env::temp_dir().join(format!("phalanx-example-{}.trace", std::process::id()));
    /// group.dump_trace(&file)?;
    /// assert!(std::fs::metadata(&file).is_ok_and(|written| written.len() > 0));
    /// # std::fs::remove_file(&file).unwrap();
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn dump_trace(&self, file: impl AsRef<Path>) -> Result<()> {
        let what = || Error::Unavailable { what: "a record of operations".into(), tried: self.describe() };
        trace::write(file.as_ref(), &self.backend.trace().ok_or_else(what)?)
    }

    /// What is agreed on for a call that is no collective.
    #[inline]
    pub(crate) fn signature(
        &self,
        op: OpKind,
        dtype: DType,
        count: usize,
        site: CallSite,
    ) -> Result<Signature> {
        self.check_process(op)?;
        let dtype = Some(dtype);
        Ok(Signature { dtype, count: count as u64, ..Signature::bare(op, site) })
    }

    /// The other end of a message of `count` elements, which the caller sends or receives.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn address(
        &self,
        op: OpKind,
        dtype: DType,
        count: usize,
        peer: usize,
        tag: u64,
    ) -> Result<Address> {
        let caller = Location::caller();
        self.address_at(op, dtype, count, peer, tag, || self.site_of(caller))
    }

    /// As [`address`](Self::address), for a call at `site`. That is asked for where it stays: copying it would cost more than all the rest.
    #[inline(always)]
    pub(crate) fn address_at(
        &self,
        op: OpKind,
        dtype: DType,
        count: usize,
        peer: usize,
        tag: u64,
        site: impl FnOnce() -> CallSite,
    ) -> Result<Address> {
        if peer >= self.world_size || peer == self.rank {
            return Err(self.no_peer(op, peer, &site()));
        }
        self.check_process(op)?;
        Ok(Address::new(op, dtype, count, peer, tag, site()))
    }

    /// Why a message can't go there, or come from there.
    #[cold]
    fn no_peer(&self, op: OpKind, peer: usize, site: &CallSite) -> Error {
        let what = match op {
            _ if peer != self.rank => {
                format!("rank {peer} is out of range: the ranks of this group are 0..{}", self.world_size)
            }
            OpKind::Recv => "the source is this rank; a rank cannot receive from itself".to_owned(),
            _ => "the destination is this rank; self-sends are not supported".to_owned(),
        };
        Error::misuse(op, format!("{what}, at {site}"))
    }
}
