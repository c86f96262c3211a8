//! The seam below a process group: who performs its operations.

use crate::group::pending::{Bytes, Pending};
use crate::trace::Trace;
use phalanx_core::{Cause, Deadline, Error, GroupId, Layout, OpKind, Peer, Result, Signature};
pub use phalanx_engine::message::OnTimeout;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// A collective to perform: what all ranks agree on, and who owns which part of the buffer.
#[derive(Debug, Clone)]
pub struct Collective {
    /// What must be equal on all ranks.
    pub signature: Signature,
    /// The block of each rank, in elements. Operations on one undivided buffer split it evenly.
    pub layout: Layout,
    /// The block from each rank in the output of an all_to_all whose counts differ by direction.
    pub recv_layout: Option<Layout>,
}

impl Collective {
    /// Bytes of a buffer that has the blocks of all ranks.
    pub(crate) fn len_bytes(&self) -> usize {
        self.layout.len() * self.signature.dtype.map_or(1, phalanx_core::DType::size)
    }
}

/// Where the elements are, as bytes aligned for their type.
#[derive(Debug)]
pub enum Buffers<'a> {
    /// Read and overwritten.
    InPlace(&'a mut [u8]),
    /// Read from the first, written to the second.
    Separate(&'a [u8], &'a mut [u8]),
}

/// Memory of a [`RegisteredBuffer`](crate::RegisteredBuffer).
#[derive(Debug)]
pub enum BufferMemory {
    /// The ranks of this host have it mapped: collectives on it copy nothing between them.
    #[cfg(target_os = "linux")]
    Shared(phalanx_shm::Window),
    /// Memory as any other, where nothing is to be gained from sharing it.
    Private(Vec<u64>),
}

/// One end of a point-to-point message.
#[derive(Debug, Clone)]
pub struct Address {
    /// What both ends must agree on, and who calls.
    pub signature: Signature,
    /// The other end, a rank of the group.
    pub peer: usize,
    /// Tells messages between the same two ranks apart.
    pub tag: u64,
}

/// Performs the operations of one group on one rank.
///
/// What a collective finds in its buffers, and leaves there:
///
/// | operation | buffers |
/// |---|---|
/// | all_reduce, broadcast, reduce | in place, the whole; a reduce leaves anything on ranks other than the root |
/// | all_gather | in place, the whole, in which the own block stands already |
/// | reduce_scatter | separate: the whole input, the own block of the output. Or in place on the input, of which the own block is the result and the others scratch |
/// | gather | on the root in place, the whole, in which its own block stands already; elsewhere separate: the own block, nothing |
/// | scatter | on the root separate: the whole, nothing; elsewhere separate: nothing, the own block |
/// | all_to_all | separate; the own block stands in the output already |
///
/// A backend that cannot do something returns [`Unsupported`](phalanx_core::Error::Unsupported); it never does something else instead.
pub trait Backend: Send + Sync + Debug {
    /// Name for messages: `tcp`, `thread`.
    fn name(&self) -> &'static str;
    /// One line for people: what performs the operations, and for how many ranks where.
    fn describe(&self) -> String {
        format!("{}: {}", self.name(), counted(self.members().len(), "rank"))
    }
    /// The name of the algorithm that performs `call`, where the backend chooses among several.
    fn algorithm(&self, call: &Collective) -> Option<&'static str> {
        let _ = call;
        None
    }
    /// The group.
    fn id(&self) -> GroupId;
    /// This rank within the group.
    fn rank(&self) -> usize;
    /// The members, as ranks of the job, in group order.
    fn members(&self) -> &[usize];
    /// This rank among those of its host, and how many they are.
    fn local(&self) -> (usize, usize);
    /// How long an operation may take unless the call says otherwise.
    fn timeout(&self) -> Duration;

    /// Performs a collective on the calling thread, within `timeout`.
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says.
    fn perform(&self, call: &Collective, buffers: Buffers<'_>, timeout: Duration) -> Result<()>;

    /// Begins a collective in place on a buffer that the operation owns until it is done. The time of `timeout` runs from when
    /// those before it are done.
    ///
    /// # Errors
    /// When nothing was begun; what goes wrong later is in the pending operation.
    fn submit(&self, call: Collective, buffer: Box<dyn Bytes>, timeout: Duration) -> Result<Pending>;

    /// Sends a message within `timeout`; done when its bytes are on their way.
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says.
    fn send(&self, to: Address, bytes: &[u8], timeout: Duration) -> Result<()>;

    /// Receives a message within `timeout`; `on_timeout` says what it means if none comes.
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says.
    fn recv(&self, from: Address, bytes: &mut [u8], timeout: Duration, on_timeout: OnTimeout) -> Result<()>;

    /// Begins to send or receive (as the signature says) a buffer that the operation owns until it is done.
    ///
    /// # Errors
    /// When nothing was begun.
    fn submit_message(&self, address: Address, buffer: Box<dyn Bytes>, timeout: Duration) -> Result<Pending>;

    /// Memory of at least `len` bytes, zero, aligned for every element type, that suits this backend. Collective, though backends with nothing to share
    /// need not talk about it. All must have come within `timeout`.
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says.
    fn alloc(&self, signature: Signature, len: usize, timeout: Duration) -> Result<BufferMemory> {
        let _ = (signature, timeout);
        Ok(BufferMemory::Private(vec![0; len.div_ceil(8)]))
    }

    /// This rank failed to join the group `id`, which is split off this one: fails that group on its other members.
    fn forgo(&self, id: GroupId, why: &Error) {
        let _ = (id, why);
    }

    /// What this rank did lately, in all its groups; `None` from backends that keep no record.
    fn trace(&self) -> Option<Trace> {
        None
    }

    /// The member `rank`, as errors name it.
    fn peer(&self, rank: usize) -> Peer;

    /// Why the group has failed, if it has.
    fn failure(&self) -> Option<Cause>;

    /// Fails the group on all its ranks, unless it has failed; running operations end. Returns the first cause, which may be another.
    fn fail(&self, cause: Cause) -> Cause;

    /// Ends an orderly life, after a barrier.
    fn leave(&self);
}

/// Makes the backends of a job's groups on one rank: of the group of all ranks, and of those that are split off it.
pub trait BackendFactory: Send + Sync + Debug {
    /// The backend of the group `id`. `members` are ranks of the job, in group order, and this rank is one of them. Collective among the
    /// members, which all give the same `id` and `members`; `op` is what they called. Ends at the deadline, if not before.
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says.
    fn create(
        &self,
        id: GroupId,
        members: Vec<usize>,
        op: OpKind,
        deadline: &Deadline,
    ) -> Result<Arc<dyn Backend>>;
}

/// `3 ranks`, `1 host`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
