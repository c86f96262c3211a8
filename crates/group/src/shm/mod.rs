//! The backend for ranks of one host: they share memory.
//!
//! Collectives are those of [`phalanx_shm::Team`], performed on the caller's thread. Point-to-point messages go through a
//! [`HostBackend`] over pipes in shared memory ([`phalanx_shm::ShmTransport`]); so do collectives whose algorithm is forced.

mod lane;
mod lookout;

use crate::backend::{Address, Backend, Buffers, Collective, Region};
use crate::fate::{Fate, History};
use crate::host::HostBackend;
use crate::work::{Bytes, Pending};
use lane::{Job, Lane};
use lookout::Look;
use phalanx_algo::Selector;
use phalanx_core::{CallSite, Cause, Error, GroupId, Loss, OpKind, Result, Signature};
use phalanx_kernels::Kernel;
use phalanx_rendezvous::BackendChoice;
use phalanx_shm::{Call, Fault, Pull, Reduction, ShmTransport, Team};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One group on one rank, all of whose members are on this host.
#[derive(Debug)]
pub(crate) struct ShmBackend {
    shared: Arc<Shared>,
    messages: HostBackend,
    selector: Arc<Selector>,
    choice: BackendChoice,
}

/// What the progress thread works on too.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fate: Arc<Fate>,
    state: Mutex<State>,
    lane: Lane,
}

#[derive(Debug)]
struct State {
    team: Team,
    /// The number of the last collective.
    seq: u64,
    history: History,
}

/// The backend of a group whose members are on this host. Collective among them.
pub(crate) fn backend(
    fate: Arc<Fate>,
    op: OpKind,
    choice: BackendChoice,
    selector: Arc<Selector>,
) -> Result<Arc<dyn Backend>> {
    let world_size = fate.alarm.members().len();
    let pipes = share(&fate, op, phalanx_shm::pipes_len(world_size))?;
    let pipes = ShmTransport::join(pipes, fate.rank, world_size)?;
    let messages = HostBackend::over(Box::new(pipes), fate.clone(), choice, selector.clone());
    // Who forces an algorithm wants a schedule to be performed.
    if !selector.forced.is_empty() {
        return Ok(Arc::new(messages));
    }
    let (team, history) = (team(&fate, op)?, History::default());
    let state = Mutex::new(State { team, seq: 0, history });
    let shared = Arc::new(Shared { fate, state, lane: Lane::default() });
    Ok(Arc::new(ShmBackend { shared, messages, selector, choice }))
}

/// `len` bytes that all members have in common.
fn share(fate: &Fate, op: OpKind, len: usize) -> Result<OwnedFd> {
    fate.realm.share(op, fate.alarm.group(), fate.alarm.members(), &|| phalanx_shm::create(len))
}

/// Joins the team of a group.
fn team(fate: &Fate, op: OpKind) -> Result<Team> {
    let world_size = fate.alarm.members().len();
    let file = share(fate, op, phalanx_shm::segment_len(world_size))?;
    let site = CallSite::caller();
    let signature = Signature { op, dtype: None, count: 0, reduce: None, root: None, detail: 0, site };
    let (history, limit) = (History::default(), fate.realm.place().timeout);
    let mut look = Look::new(fate, &history, &signature, 0, limit);
    let mut call = Call { seq: 0, signature: &signature, lookout: &mut look };
    Team::join(file, fate.rank, world_size, fate.realm.ranks_share_cores(), &mut call)
        .map_err(|fault| look.error(fault))
}

impl Shared {
    /// Performs a collective on this thread.
    fn perform(&self, call: &Collective, buffers: Buffers<'_>, limit: Duration) -> Result<()> {
        let signature = &call.signature;
        self.fate.check(signature)?;
        let reduction = reduction(signature)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { team, seq, history } = &mut *state;
        *seq += 1;
        history.remember(*seq, signature);
        let mut look = Look::new(&self.fate, history, signature, *seq, limit);
        let shm_call = &mut Call { seq: *seq, signature, lookout: &mut look };
        run(team, shm_call, call, buffers, reduction, self.fate.rank).map_err(|fault| look.error(fault))
    }
}

/// How a reduction's values are combined; `None` for other operations.
fn reduction(signature: &Signature) -> Result<Option<Reduction>> {
    let (Some(op), Some(dtype)) = (signature.reduce, signature.dtype) else { return Ok(None) };
    let kernel = Kernel::new(op, dtype)
        .ok_or_else(|| Error::misuse(signature.op, format!("{op} is not defined for {dtype}")))?;
    let root = signature.root.map(|root| root as usize);
    Ok(Some(Reduction { kernel, element: dtype.size(), root }))
}

/// Which of the team's operations a call is.
fn run(
    team: &mut Team,
    shm: &mut Call<'_>,
    call: &Collective,
    buffers: Buffers<'_>,
    reduction: Option<Reduction>,
    rank: usize,
) -> Result<(), Fault> {
    let Collective { signature, layout, recv_layout } = call;
    let element = signature.dtype.map_or(1, phalanx_core::DType::size);
    let bytes = |elements: Range<usize>| elements.start * element..elements.end * element;
    let block = |rank: usize| bytes(layout.block(rank));
    let own = |_| block(rank);
    let root = signature.root.unwrap_or(0) as usize;
    let is_root = |r: usize| r == root;
    let largest = || (0..layout.world_size()).map(|r| block(r).len()).max().unwrap_or(0);
    match (signature.op, buffers, reduction) {
        (OpKind::AllReduce | OpKind::Reduce, Buffers::InPlace(buffer), Some(reduction)) => {
            team.all_reduce(shm, buffer, reduction)
        }
        (OpKind::ReduceScatter, buffers, Some(reduction)) => {
            team.reduce_scatter(shm, to_shm(buffers), layout, reduction)
        }
        (OpKind::AllGather | OpKind::Split, buffers, None) => {
            let pull =
                Pull { same: true, gives: &|_| true, largest: largest(), part: &own, place: Some(&block) };
            team.pull(shm, to_shm(buffers), pull)
        }
        (OpKind::Broadcast, Buffers::InPlace(buffer), None) => team.broadcast(shm, buffer, root),
        // The root has the blocks of all in its buffer; the others have their own alone.
        (OpKind::Gather, buffers, None) => {
            let whole = |_| 0..block(rank).len();
            let place: Option<&dyn Fn(usize) -> Range<usize>> =
                if is_root(rank) { Some(&block) } else { None };
            let gives = |r| !is_root(r);
            let pull = Pull { same: true, gives: &gives, largest: largest(), part: &whole, place };
            team.pull(shm, to_shm(buffers), pull)
        }
        (OpKind::Scatter, buffers, None) => {
            let whole = |_| 0..block(rank).len();
            let place: Option<&dyn Fn(usize) -> Range<usize>> =
                if is_root(rank) { None } else { Some(&whole) };
            let pull = Pull { same: false, gives: &is_root, largest: largest(), part: &block, place };
            team.pull(shm, to_shm(buffers), pull)
        }
        (OpKind::AllToAll, buffers, None) => {
            let place = |rank: usize| bytes(recv_layout.as_ref().unwrap_or(layout).block(rank));
            let pull =
                Pull { same: false, gives: &|_| true, largest: largest(), part: &block, place: Some(&place) };
            // Where ranks agree on the count of all, all blocks are alike.
            if signature.count > 0 {
                team.pull(shm, to_shm(buffers), pull)
            } else {
                team.pull_uneven(shm, to_shm(buffers), pull)
            }
        }
        _ => team.barrier(shm),
    }
}

fn to_shm(buffers: Buffers<'_>) -> phalanx_shm::Buffers<'_> {
    match buffers {
        Buffers::InPlace(buffer) => phalanx_shm::Buffers::InPlace(buffer),
        Buffers::Separate(input, output) => phalanx_shm::Buffers::Separate(input, output),
    }
}

impl Backend for ShmBackend {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn id(&self) -> GroupId {
        self.messages.id()
    }

    fn rank(&self) -> usize {
        self.shared.fate.rank
    }

    fn members(&self) -> &[usize] {
        self.shared.fate.alarm.members()
    }

    fn local(&self) -> (usize, usize) {
        self.messages.local()
    }

    fn timeout(&self) -> Duration {
        self.shared.fate.realm.place().timeout
    }

    fn perform(&self, call: &Collective, buffers: Buffers<'_>, timeout: Duration) -> Result<()> {
        self.shared.lane.wait_until_empty();
        self.shared.perform(call, buffers, timeout)
    }

    fn submit(&self, call: Collective, buffer: Box<dyn Bytes>) -> Result<Pending> {
        self.shared.fate.check(&call.signature)?;
        let pending = Pending::default();
        let limit = self.timeout();
        self.shared.lane.submit(&self.shared, Job { call, buffer, pending: pending.clone(), limit })?;
        Ok(pending)
    }

    fn send(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.messages.send(to, bytes)
    }

    fn recv(&self, from: Address, bytes: &mut [u8], timeout: Option<Duration>) -> Result<()> {
        self.messages.recv(from, bytes, timeout)
    }

    fn submit_message(&self, address: Address, buffer: Box<dyn Bytes>) -> Result<Pending> {
        self.messages.submit_message(address, buffer)
    }

    fn alloc(&self, signature: Signature, len: usize) -> Result<Region> {
        let limit = self.timeout();
        let Some(all) = phalanx_shm::window_len(self.members().len(), len) else {
            return Err(Error::misuse(
                signature.op,
                format!("{len} bytes for each rank, at {}", signature.site),
            ));
        };
        let layout = phalanx_core::Layout::even(self.members().len(), 0);
        // All come with the same length, or learn here that they do not.
        let call = Collective { signature, layout, recv_layout: None };
        self.perform(&call, Buffers::InPlace(&mut []), limit)?;
        let fate = &self.shared.fate;
        let file = share(fate, OpKind::Alloc, all)?;
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Region::Shared(state.team.window(file, len)?))
    }

    fn subgroup(&self, id: GroupId, members: &[usize]) -> Result<Arc<dyn Backend>> {
        let of_job = members.iter().map(|&m| self.members()[m]).collect();
        let realm = self.shared.fate.realm.clone();
        crate::recommended::backend(realm, id, of_job, OpKind::Split, self.choice, self.selector.clone())
    }

    fn abort(&self, reason: &str) {
        self.shared.fate.abort(reason);
    }

    fn leave(&self) {
        self.messages.leave();
    }
}

impl Drop for ShmBackend {
    fn drop(&mut self) {
        self.shared.lane.close();
    }
}

/// What the team's trouble means, where the arbiter does not say.
fn cause(fate: &Fate, fault: &Fault) -> Cause {
    let everybody = 0..fate.alarm.members().len();
    if let Some(peer) = fate.gone(everybody, Instant::now()) {
        return Cause::Lost { peer, how: Loss::Left };
    }
    match fault {
        Fault::Mismatch { peer, seq, their_seq, theirs } => {
            let called =
                theirs.as_ref().map_or_else(|| "something unreadable".to_owned(), ToString::to_string);
            let what = format!("operation #{seq} here is its #{their_seq}, {called}, or they differ before");
            Cause::Protocol { peer: fate.peer(*peer), what }
        }
        Fault::Counts { peer, sent, expected } => {
            let what = format!("it sends {sent} bytes, where {expected} are expected here");
            Cause::Protocol { peer: fate.peer(*peer), what }
        }
        Fault::Unreachable { peer, error } => {
            tracing::warn!(peer = %fate.peer(*peer), %error, "its memory cannot be reached");
            Cause::Lost { peer: fate.peer(*peer), how: Loss::Unreachable }
        }
        Fault::Stopped | Fault::Closed | Fault::Failed(_) => {
            let reason = "a rank of this host gave up, and the arbiter did not say why".to_owned();
            Cause::Aborted { peer: fate.peer(fate.rank), reason }
        }
    }
}
