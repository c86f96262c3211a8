//! The backend for ranks of one host: they share memory.
//!
//! Collectives are those of [`phalanx_shm::Team`], performed on the caller's thread. Point-to-point messages go through a
//! [`ScheduledBackend`] over pipes in shared memory ([`phalanx_shm::ShmTransport`]); so do collectives for which an algorithm of messages is
//! forced, each with its number among all.

mod fault;
mod wait_check;

use crate::control::group_health::{GroupHealth, ParentCall};
use crate::engine::eager::EAGER_LIMIT;
use crate::group::backend::{Address, Backend, BufferMemory, HostMessage, OnTimeout, counted};
use crate::group::call::{HostCall, HostRequest, OwnedCall, element};
use crate::group::derived::derived;
use crate::group::pending::{Bytes, Pending};
use crate::group::request::{BlockExchange, Buffers, Request};
use crate::host::BackendChoice;
use crate::host::call_thread::{self, CallThread, Performer};
use crate::host::forced::warn_not_taken;
use crate::host::host_context::HostContext;
use crate::host::scheduled::ScheduledBackend;
use crate::quick_mutex::{QuickGuard, QuickMutex};
use crate::trace::{Trace, clock};
use phalanx_algo::{Kind, Selector, Way};
use phalanx_core::{Cause, DType, Deadline, Error, GroupId, OpKind, Peer, ReduceOp, Result, Signature};
use phalanx_kernels::{Kernel, copy_slice};
use phalanx_shm::{Call, Fault, Givers, Own, Reduction, ShmTransport, Team, Transfer};
use phalanx_trace::is_precise;
use phalanx_transport::Wire;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wait_check::GroupCheck;

// A short message may go on from a copy, when its sender has gone on.
const _: () = assert!(EAGER_LIMIT < phalanx_shm::LEND_BYTES);

/// One group on one rank, all of whose members are on this host.
#[derive(Debug)]
pub(crate) struct ShmBackend {
    shared: Arc<Shared>,
}

/// What the progress thread works on too.
#[derive(Debug)]
struct Shared {
    team: ShmTeam,
    messages: ScheduledBackend,
    call_thread: CallThread,
}

/// The members of a group that are on this host, all or some of its members.
#[derive(Debug)]
pub(crate) struct ShmTeam {
    job: Arc<dyn HostContext>,
    pub(crate) health: Arc<GroupHealth>,
    /// Held for a whole call. That another thread of this rank is in a call of the same group is rare.
    state: QuickMutex<State>,
}

#[derive(Debug)]
struct State {
    team: Team,
    /// The number of the last collective.
    seq: u64,
}

/// The backend of a group whose members are on this host. Collective among them.
pub(crate) fn backend(
    job: &Arc<dyn HostContext>,
    health: Arc<GroupHealth>,
    call: &Signature,
    choice: BackendChoice,
    selector: Arc<Selector>,
    deadline: &Deadline,
) -> Result<Arc<dyn Backend>> {
    let forced = selector.clone();
    let messages = messages(job, health.clone(), call, choice, selector, deadline)?;
    let backend = ShmBackend::join(job, health, call, messages, deadline)?;
    backend.shared.team.force(&forced);
    Ok(Arc::new(backend))
}

/// What carries messages between those whose health this is, and performs forced algorithms: an engine over pipes in shared
/// memory. Collective among them.
pub(crate) fn messages(
    job: &Arc<dyn HostContext>,
    health: Arc<GroupHealth>,
    call: &Signature,
    choice: BackendChoice,
    selector: Arc<Selector>,
    deadline: &Deadline,
) -> Result<ScheduledBackend> {
    let world_size = health.members().len();
    let pipes = share(job, &health, call, deadline, phalanx_shm::pipes_len(world_size))?;
    let pipes = health.alone(ShmTransport::join(pipes, health.rank, world_size))?;
    Ok(ScheduledBackend::over(Wire::new(Box::new(pipes)), health, choice, selector))
}

impl ShmBackend {
    /// Joins the team. Collective among those whose health this is.
    fn join(
        job: &Arc<dyn HostContext>,
        health: Arc<GroupHealth>,
        call: &Signature,
        messages: ScheduledBackend,
        deadline: &Deadline,
    ) -> Result<Self> {
        health.latch.takes_messages.store(false, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            team: ShmTeam::join(job, health, call, deadline)?,
            messages,
            call_thread: CallThread::default(),
        });
        Ok(Self { shared })
    }

    /// One whose rank plans otherwise than a build does.
    #[cfg(test)]
    pub(crate) fn planning_otherwise(
        job: &Arc<dyn HostContext>,
        health: Arc<GroupHealth>,
        deadline: &Deadline,
        reaches_memory: bool,
        slice_bytes: usize,
    ) -> Result<Self> {
        let (call, choice) = (
            Signature::bare(phalanx_core::OpKind::Init, phalanx_core::CallSite::caller()),
            BackendChoice::Shm,
        );
        let messages = messages(job, health.clone(), &call, choice, Arc::default(), deadline)?;
        let backend = Self::join(job, health, &call, messages, deadline)?;
        backend.shared.team.lock().team.plan_otherwise(reaches_memory, slice_bytes);
        Ok(backend)
    }

    fn health(&self) -> &GroupHealth {
        &self.shared.team.health
    }
}

impl ShmTeam {
    /// Joins the team of those whose health this is. Collective among them.
    pub(crate) fn join(
        job: &Arc<dyn HostContext>,
        health: Arc<GroupHealth>,
        call: &Signature,
        deadline: &Deadline,
    ) -> Result<Self> {
        let world_size = health.members().len();
        let file = share(job, &health, call, deadline, phalanx_shm::segment_len(world_size))?;
        let mut look = GroupCheck::new(&health, call, 0, deadline.remaining(Instant::now()));
        let mut shm_call = Call { seq: 0, signature: call, wait_check: &mut look };
        let team = Team::join(file, health.rank, world_size, health.job.ranks_share_cores(), &mut shm_call)
            .map_err(|fault| look.error(fault))?;
        let processes = team.processes();
        health.know(move |rank| processes.has_ended(rank));
        Ok(Self { job: job.clone(), health, state: QuickMutex::new(State { team, seq: 0 }) })
    }

    /// Takes the ways of shared memory that are forced.
    fn force(&self, selector: &Selector) {
        let team = &mut self.lock().team;
        for way in selector.forced.values() {
            if let Way::Memory(op, way) = way {
                team.force(*op, *way);
            }
        }
    }

    /// Performs a part of a call of the group. All that this team performs are such parts, in the order of their numbers.
    pub(crate) fn perform_part(&self, whole: ParentCall<'_>, part: HostCall<'_>) -> Result<()> {
        let (signature, mut request) = part.into_parts();
        let mut values = Values::of(signature);
        values.combined_by(request.reduce(), signature.op)?;
        self.health.remember(whole.seq, whole.signature, clock::now);
        let mut look = GroupCheck::of_part(&self.health, whole);
        let shm_call = &mut Call { seq: whole.seq, signature: whole.signature, wait_check: &mut look };
        let team = &mut self.lock().team;
        let place = (self.health.rank, self.health.members().len());
        run(team, shm_call, &mut request, &values, place).map_err(|fault| look.error(fault))
    }

    /// Memory of which each rank has `len` bytes of its own, a length for which there is a [`window_len`]. Collective.
    pub(crate) fn alloc(
        &self,
        signature: &Signature,
        len: usize,
        deadline: &Deadline,
    ) -> Result<BufferMemory> {
        let all = window_len(self.health.members().len(), signature, len)?;
        let file = share(&self.job, &self.health, signature, deadline, all)?;
        let window = self.lock().team.window(file, len);
        self.health.alone(window).map(BufferMemory::Shared)
    }

    /// Whether there can be memory of which each rank has `len` bytes of its own; the same on all ranks.
    pub(crate) fn can_share(&self, len: usize, signature: &Signature) -> bool {
        let (members, job) = (self.health.members(), &self.health.job);
        window_len(members.len(), signature, len)
            .is_ok_and(|needed| needed as u64 <= job.longest_memory(members[0]))
    }

    /// Ends what this team does: its part in a call will not come.
    pub(crate) fn close(&self) {
        self.lock().team.close();
    }

    fn lock(&self) -> QuickGuard<'_, State> {
        self.state.lock()
    }
}

/// Bytes of memory of which each of so many ranks has `len` of its own.
pub(crate) fn window_len(ranks: usize, signature: &Signature, len: usize) -> Result<usize> {
    phalanx_shm::window_len(ranks, len).ok_or_else(|| {
        Error::misuse(signature.op, format!("{len} bytes for each rank, at {}", signature.site))
    })
}

/// `len` bytes that all members have in common.
fn share(
    job: &Arc<dyn HostContext>,
    health: &GroupHealth,
    signature: &Signature,
    deadline: &Deadline,
    len: usize,
) -> Result<OwnedFd> {
    job.share(health, signature, deadline, &|| phalanx_shm::create(len))
}

impl Performer for Shared {
    fn call_thread(&self) -> &CallThread {
        &self.call_thread
    }

    fn health(&self) -> &GroupHealth {
        &self.team.health
    }

    fn perform(&self, mut call: HostCall<'_>, limit: Duration) -> Result<()> {
        self.perform_in_place(&mut call, limit)
    }
}

impl Shared {
    /// Performs a collective on the calling thread. The request is of no use afterwards: to move it here would take longer than some requests do.
    #[inline(always)]
    fn perform_in_place(&self, call: &mut HostCall<'_>, limit: Duration) -> Result<()> {
        let health = &self.team.health;
        let place = (health.rank, health.members().len());
        call.check_place(place.0, place.1)?;
        let (signature, request) = call.parts_mut();
        health.check(signature, || self.team.lock().seq + 1)?;
        self.messages.check_order(signature)?;
        let mut values = Values::of(signature);
        values.combined_by(request.reduce(), signature.op)?;
        let mut state = self.team.lock();
        let State { team, seq } = &mut *state;
        *seq += 1;
        if self.messages.is_forced(signature.op) {
            let outcome = self.perform_by_messages(*seq, signature, call.take_request(), limit);
            if outcome.is_err() {
                // Who waits in the team for this rank hears of it at once.
                team.close();
            }
            return outcome;
        }
        let mut look = GroupCheck::new(health, signature, *seq, limit);
        if is_precise(signature) {
            health.remember(*seq, signature, clock::now);
        } else {
            look.log_on_the_way();
        }
        let shm_call = &mut Call { seq: *seq, signature, wait_check: &mut look };
        if let Err(fault) = run(team, shm_call, request, &values, place) {
            return Err(look.error(fault));
        }
        if let Some(not_taken) = team.not_taken() {
            warn_not_taken(health, Way::Memory(not_taken.op, not_taken.way), not_taken.why);
        }
        if look.has_waited() {
            health.latch.collectives.end(*seq, signature, clock::now);
        } else {
            health.latch.collectives.end_at_once(*seq, signature, clock::now);
        }
        Ok(())
    }

    /// As collective number `seq`, whose turn it is.
    fn perform_by_messages(
        &self,
        seq: u64,
        called: &Signature,
        request: HostRequest<'_>,
        limit: Duration,
    ) -> Result<()> {
        let health = &self.team.health;
        let (rank, world_size) = (health.rank, health.members().len());
        let part = HostCall::new(called, request, rank, world_size)?;
        let signature = &Signature { method: called.method.then(&BY_MESSAGES.into()), ..called.clone() };
        let whole = ParentCall { signature, seq, called: Instant::now(), limit };
        let _takes_messages = TakesMessages::begin(health);
        let outcome = self.messages.perform_part(whole, part, world_size, None);
        outcome.inspect(|()| health.ended(seq, signature, clock::now))
    }
}

/// As long as it lives, a rank that waits for this one waits for its messages, and not for its flag.
struct TakesMessages<'h>(&'h GroupHealth);

impl<'h> TakesMessages<'h> {
    fn begin(health: &'h GroupHealth) -> Self {
        health.latch.takes_messages.store(true, Ordering::Relaxed);
        Self(health)
    }
}

impl Drop for TakesMessages<'_> {
    fn drop(&mut self) {
        self.0.latch.takes_messages.store(false, Ordering::Relaxed);
    }
}

/// How a call is performed for which an algorithm of messages is forced.
const BY_MESSAGES: &str = "messages";

/// What elements are, and how they are combined.
struct Values {
    dtype: Option<DType>,
    element: usize,
    /// For the operator and the type of a reduction.
    kernel: Option<Kernel>,
}

impl Values {
    /// Those of a call that does not combine anything.
    #[inline(always)]
    fn of(signature: &Signature) -> Self {
        let dtype = signature.carries();
        Self { dtype, element: element(dtype), kernel: None }
    }

    /// Finds the kernel of a call that combines.
    #[inline(always)]
    fn combined_by(&mut self, reduce: Option<&ReduceOp>, op: OpKind) -> Result<()> {
        let (Some(reduce), Some(dtype)) = (reduce, self.dtype) else { return Ok(()) };
        self.kernel = Kernel::new(*reduce, dtype);
        match self.kernel {
            Some(_) => Ok(()),
            None => Err(Error::misuse(op, format!("{reduce} is not defined for {dtype}"))),
        }
    }

    fn reduction(&self, root: Option<usize>) -> Reduction<'_> {
        let kernel = self.kernel.as_ref().expect("reductions have a kernel");
        Reduction { kernel, element: self.element, root }
    }
}

/// Has the team perform a request, which is of no use afterwards.
fn run(
    team: &mut Team,
    shm: &mut Call<'_>,
    request: &mut HostRequest<'_>,
    values: &Values,
    (rank, world_size): (usize, usize),
) -> Result<(), Fault> {
    let element = values.element;
    // Nothing to move, but ranks that disagree must still find out, those that would only give too.
    if request.is_empty(element) {
        return team.barrier(shm);
    }
    let bytes = |elements: Range<usize>| elements.start * element..elements.end * element;
    match request {
        Request::AllReduce { buffers, .. } => team.all_reduce(shm, buffers.whole(), values.reduction(None)),
        Request::Reduce { buffer, root, .. } => team.all_reduce(shm, buffer, values.reduction(Some(*root))),
        Request::Broadcast { buffer, root } => team.broadcast(shm, buffer, *root),
        Request::AllGather { buffers, blocks } => {
            let block = |rank| bytes(blocks.block(rank));
            let buffer = buffers.with_own(block(rank));
            let transfer = Transfer {
                same: true,
                givers: Givers::All,
                largest: blocks.longest() * element,
                part: &|_| block(rank),
                place: Some(&block),
                own: None,
                layout: Some(blocks),
            };
            team.pull(shm, phalanx_shm::Buffers::InPlace(buffer), transfer)
        }
        Request::ReduceScatter { buffers, blocks, .. } => {
            let buffers = match buffers {
                Buffers::InPlace(buffer) => phalanx_shm::Buffers::InPlace(buffer),
                Buffers::Separate(input, output) => phalanx_shm::Buffers::Separate(input, output),
            };
            team.reduce_scatter(shm, buffers, blocks, values.reduction(None))
        }
        Request::Gather { input, output, blocks, root } => {
            let block = |rank| bytes(blocks.block(rank));
            let takes = output.is_some();
            let output = output.as_deref_mut().unwrap_or_default();
            let own = input.filter(|_| takes).map(|input| Own { from: 0..input.len(), to: block(rank) });
            let input = input.unwrap_or_default();
            let whole = |_| 0..input.len();
            let transfer = Transfer {
                same: true,
                givers: Givers::AllBut(*root),
                largest: blocks.longest() * element,
                part: &whole,
                place: if takes { Some(&block) } else { None },
                own: own.as_ref(),
                layout: Some(blocks),
            };
            team.pull(shm, phalanx_shm::Buffers::Separate(input, output), transfer)
        }
        Request::Scatter { input, output, blocks, root } => {
            let block = |rank| bytes(blocks.block(rank));
            let own = output.is_some().then(|| Own { from: block(rank), to: 0..block(rank).len() });
            let output = output.as_deref_mut().unwrap_or_default();
            let len = output.len();
            let whole = |_| 0..len;
            let transfer = Transfer {
                same: false,
                givers: Givers::Only(*root),
                largest: blocks.longest() * element,
                part: &block,
                place: if rank == *root { None } else { Some(&whole) },
                own: own.as_ref().filter(|_| input.is_some()),
                layout: Some(blocks),
            };
            team.pull(shm, phalanx_shm::Buffers::Separate(input.unwrap_or_default(), output), transfer)
        }
        Request::AllToAll { buffers, blocks } => {
            let is_even = matches!(blocks, BlockExchange::Even { .. });
            let (send, recv) =
                std::mem::replace(blocks, BlockExchange::Even { count: 0 }).layouts(world_size);
            let (part, place) = (|rank| bytes(send.block(rank)), |rank| bytes(recv.block(rank)));
            let transfer = Transfer {
                same: false,
                givers: Givers::All,
                largest: send.longest() * element,
                part: &part,
                place: Some(&place),
                own: None,
                layout: is_even.then_some(&send),
            };
            let (input, output) = match buffers {
                Buffers::InPlace(buffer) => {
                    return team.pull(shm, phalanx_shm::Buffers::InPlace(buffer), transfer);
                }
                Buffers::Separate(input, output) => (input, output),
            };
            if is_even {
                team.pull(shm, phalanx_shm::Buffers::Separate(input, output), transfer)
            } else {
                team.pull_uneven(shm, input, output, transfer)
            }?;
            // After that: the others wait for what this rank gives them.
            copy_slice(&mut output[place(rank)], &input[part(rank)]);
            Ok(())
        }
        Request::Scan { .. } => {
            let scan = std::mem::replace(request, Request::Barrier);
            derived(scan, values.dtype, rank, world_size, |mut part| {
                run(team, shm, &mut part, values, (rank, world_size))
            })
        }
        Request::Barrier => team.barrier(shm),
    }
}

impl Backend for ShmBackend {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn describe(&self) -> String {
        let never_taken = self.shared.messages.never_taken(Kind::Memory);
        format!("shm: {} on this host{never_taken}", counted(self.members().len(), "rank"))
    }

    fn id(&self) -> GroupId {
        self.shared.messages.id()
    }

    fn rank(&self) -> usize {
        self.health().rank
    }

    fn members(&self) -> &[usize] {
        self.health().members()
    }

    fn local(&self) -> (usize, usize) {
        self.shared.messages.local()
    }

    fn timeout(&self) -> Duration {
        self.health().job.place().timeout
    }

    fn perform(&self, mut call: HostCall<'_>, timeout: Duration) -> Result<()> {
        call_thread::wait_until_empty(&*self.shared);
        self.shared.perform_in_place(&mut call, timeout)
    }

    fn submit(&self, call: OwnedCall, timeout: Duration) -> Result<Pending> {
        call.check_place(self.rank(), self.members().len())?;
        self.health().check(call.signature(), || self.health().latch.next_collective())?;
        self.shared.messages.check_order(call.signature())?;
        call_thread::submit(&self.shared, call, timeout)
    }

    fn send(&self, to: Address, bytes: &[u8], timeout: Duration) -> Result<()> {
        self.shared.messages.send(to, bytes, timeout)
    }

    fn recv(&self, from: Address, bytes: &mut [u8], timeout: Duration, on_timeout: OnTimeout) -> Result<()> {
        self.shared.messages.recv(from, bytes, timeout, on_timeout)
    }

    fn recv_any(
        &self,
        call: Signature,
        tag: u64,
        bytes: &mut [u8],
        timeout: Duration,
        on_timeout: OnTimeout,
    ) -> Result<usize> {
        self.shared.messages.recv_any(call, tag, bytes, timeout, on_timeout)
    }

    fn submit_recv_any(
        &self,
        call: Signature,
        tag: u64,
        buffer: Box<dyn Bytes>,
        timeout: Duration,
    ) -> Result<Pending> {
        self.shared.messages.submit_recv_any(call, tag, buffer, timeout)
    }

    fn perform_messages(&self, messages: Vec<HostMessage<'_>>, timeout: Duration) -> Result<()> {
        self.shared.messages.perform_messages(messages, timeout)
    }

    fn submit_message(&self, address: Address, buffer: Box<dyn Bytes>, timeout: Duration) -> Result<Pending> {
        self.shared.messages.submit_message(address, buffer, timeout)
    }

    fn alloc(&self, signature: Signature, len: usize, timeout: Duration) -> Result<BufferMemory> {
        window_len(self.members().len(), &signature, len)?;
        // All come with the same length, or learn here that they do not.
        let call = HostCall::new(&signature, Request::Barrier, self.rank(), self.members().len())?;
        // Its time does not run while others have their turn.
        call_thread::wait_until_empty(&*self.shared);
        let deadline = Deadline::after(Instant::now(), timeout);
        self.shared.perform(call, timeout)?;
        if self.shared.team.can_share(len, &signature) {
            return self.shared.team.alloc(&signature, len, &deadline);
        }
        Ok(BufferMemory::Private(vec![0; len.div_ceil(8)]))
    }

    fn forgo(&self, id: GroupId, why: &Error) {
        self.health().forgo(id, why);
    }

    fn trace(&self) -> Option<Trace> {
        Some(self.health().trace())
    }

    fn peer(&self, rank: usize) -> Peer {
        self.health().peer(rank)
    }

    fn failure(&self) -> Option<Cause> {
        self.health().latch.cause().cloned()
    }

    fn fail(&self, cause: Cause) -> Cause {
        self.health().give_up(cause)
    }

    fn leave(&self) {
        self.shared.messages.leave();
    }
}

impl Drop for ShmBackend {
    fn drop(&mut self) {
        let health = self.health();
        if health.is_here() {
            if std::thread::panicking() {
                health.panicked();
            }
            self.shared.call_thread.end(health);
        }
    }
}
