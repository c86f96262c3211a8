//! The seam below a process group: who performs its operations.

use crate::group::call::{HostCall, OwnedCall};
use crate::group::pending::{Bytes, Pending};
use crate::trace::Trace;
use phalanx_core::{CallSite, Cause, DType, Deadline, Error, GroupId, OpKind, Peer, Result, Signature};
use phalanx_engine::eager::EAGER_LIMIT;
pub use phalanx_engine::message::{OnTimeout, Payload};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

impl Address {
    #[inline(always)]
    pub(crate) fn new(op: OpKind, dtype: DType, count: usize, peer: usize, tag: u64, site: CallSite) -> Self {
        let signature = Signature { dtype: Some(dtype), count: count as u64, ..Signature::bare(op, site) };
        Self { signature, peer, tag }
    }
}

/// A point-to-point message of a batch, with the bytes that its caller lends.
#[derive(Debug)]
pub struct HostMessage<'a> {
    /// Where it goes to, or comes from.
    pub address: Address,
    /// What is sent, or where the bytes that come are to stand.
    pub payload: Payload<'a>,
}

/// Performs the operations of one group on one rank.
///
/// What a collective finds in its buffers, and leaves there, says its [`Request`](crate::Request); a [`Call`](crate::Call) has no other than fit.
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
    fn algorithm(&self, call: &Signature) -> Option<&'static str> {
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
    fn perform(&self, call: HostCall<'_>, timeout: Duration) -> Result<()>;

    /// Performs a collective by another one of this backend, for those that it does not have itself: all but all_reduce, all_gather and all_to_all
    /// are made of these, and an all_to_all in place of one from a copy. The other one has the signature of the call, so that errors and traces name what the program called.
    ///
    /// # Errors
    /// Those of [`perform`](Self::perform); [`Unsupported`](Error::Unsupported) of the three.
    fn perform_derived(&self, call: HostCall<'_>, timeout: Duration) -> Result<()> {
        call.perform_derived(self.name(), |part| self.perform(part, timeout))
    }

    /// Begins a collective on buffers that the operation owns until it is done, and completes it with the one of the
    /// [result](crate::Request::into_result). The time of `timeout` runs from when those before it are done.
    ///
    /// # Errors
    /// When nothing was begun; what goes wrong later is in the pending operation.
    fn submit(&self, call: OwnedCall, timeout: Duration) -> Result<Pending>;

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

    /// Receives a message with `tag` within `timeout` from whichever other rank sends one first, and returns that rank; `on_timeout` says what it means
    /// if none comes. `call` is what was called. Of ranks whose messages are there, each has its turn.
    ///
    /// By default [`Unsupported`](Error::Unsupported).
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says.
    fn recv_any(
        &self,
        call: Signature,
        tag: u64,
        bytes: &mut [u8],
        timeout: Duration,
        on_timeout: OnTimeout,
    ) -> Result<usize> {
        let _ = (tag, bytes, timeout, on_timeout);
        Err(one_by_one(&call, self.name()))
    }

    /// Begins a [`recv_any`](Self::recv_any) into a buffer that the operation owns until it is done, and completes it with a [`Received`](crate::Received).
    ///
    /// By default [`Unsupported`](Error::Unsupported).
    ///
    /// # Errors
    /// When nothing was begun.
    fn submit_recv_any(
        &self,
        call: Signature,
        tag: u64,
        buffer: Box<dyn Bytes>,
        timeout: Duration,
    ) -> Result<Pending> {
        let _ = (tag, buffer, timeout);
        Err(one_by_one(&call, self.name()))
    }

    /// Performs messages side by side within `timeout`: none waits for another of them, unless both go to one peer, or come from one with one
    /// tag. Those keep their order.
    ///
    /// By default what is sent is copied, to be sent by [`submit_message`](Self::submit_message) while the calling thread receives. The end of messages
    /// over [`EAGER_LIMIT`](crate::EAGER_LIMIT) is waited for.
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says. The group has failed then, unless nothing was begun.
    fn perform_messages(&self, messages: Vec<HostMessage<'_>>, timeout: Duration) -> Result<()> {
        let deadline = Deadline::after(Instant::now(), timeout);
        let (mut short, mut long, mut receives) = (Vec::new(), Vec::new(), Vec::new());
        let begin = || {
            for HostMessage { address, payload } in messages {
                match payload {
                    Payload::Out(bytes) => {
                        let sends = if bytes.len() > EAGER_LIMIT { &mut long } else { &mut short };
                        sends.push(self.submit_message(address, Box::new(bytes.to_vec()), timeout)?);
                    }
                    Payload::In(bytes) => receives.push((address, bytes)),
                }
            }
            Ok(())
        };
        let begun = begin();
        let (mut receives, mut long) = (receives.into_iter(), long.into_iter());
        let done = begun
            .and_then(|()| {
                receives.try_for_each(|(from, bytes)| {
                    self.recv(from, bytes, deadline.remaining(Instant::now()), OnTimeout::FailGroup)
                })
            })
            // Short ones need no receiver: if one fails, so does the group.
            .and_then(|()| long.try_for_each(|sent| sent.wait().map(drop)));
        done.map_err(|error| root_error(error, long.chain(short).filter_map(|sent| sent.wait().err())))
    }

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

/// The error of one call that is performed by several operations side by side. `error` is of one of them. If that one began after another had failed,
/// it says only that the group failed earlier; the program, which made one call, is told by the error of the other. Looks at `others` only then.
pub(crate) fn root_error(error: Error, others: impl IntoIterator<Item = Error>) -> Error {
    let is_refusal = |error: &Error| matches!(error, Error::Poisoned { .. });
    if !is_refusal(&error) {
        return error;
    }
    others.into_iter().find(|other| !is_refusal(other)).unwrap_or(error)
}

/// A backend that receives from no rank but one that is named.
fn one_by_one(call: &Signature, backend: &'static str) -> Error {
    let hint = format!("it receives only from a rank that is named: use recv, at {}", call.site);
    Error::Unsupported { op: call.op, backend, hint }
}

/// Makes the backends of a job's groups on one rank: of the group of all ranks, and of those that are split off it.
pub trait BackendFactory: Send + Sync + Debug {
    /// The backend of the group `id`. `members` are ranks of the job, in group order, and this rank is one of them. Collective among the
    /// members, which all give the same `id` and `members`; `call` is what they called, and where. Of a [`new_group`](crate::ProcessGroup::new_group) not all
    /// members need ever come. Ends at the deadline, if not before.
    ///
    /// # Errors
    /// As [`Error`](phalanx_core::Error) says.
    fn create(
        &self,
        id: GroupId,
        members: Vec<usize>,
        call: &Signature,
        deadline: &Deadline,
    ) -> Result<Arc<dyn Backend>>;
}

/// `3 ranks`, `1 host`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::{Loss, OpKind};

    #[test]
    fn the_error_of_one_call_is_that_of_the_operation_that_failed_first() {
        let peer = Peer { rank: 1, host: "h:7".into() };
        let cause = Cause::Lost { peer, how: Loss::Left };
        let refused = || Error::Poisoned { op: OpKind::Recv, cause: Box::new(cause.clone()) };
        let failed = || Error::misuse(OpKind::Send, "on purpose");
        let told = |error, others: Vec<Error>| root_error(error, others).to_string();
        assert_eq!(told(refused(), vec![refused(), failed()]), failed().to_string());
        assert_eq!(told(refused(), vec![refused()]), refused().to_string());
        let nobody = std::iter::from_fn(|| -> Option<Error> { panic!("its error says what happened") });
        assert_eq!(root_error(failed(), nobody).to_string(), failed().to_string());
    }
}
