//! A backend that counts: calls, bytes and time of each operation, whatever performs it; and names calls that are slow.
//!
//! It wraps the backends of another kind. Failures, limits and errors are the wrapped backend's, so every promise of a group holds as it
//! does there: a call that is delegated ends with the error it would have ended with.

mod counters;

pub use counters::{Counters, Totals};

use phalanx::backend::{
    Address, Backend, BackendFactory, BackendKind, BufferMemory, Bytes, Deadline, GroupId, HostCall,
    JobHandle, LinksStart, OnTimeout, OwnedCall, Pending, Signature, backend_kind, register_backend,
};
use phalanx::error::{Cause, Peer};
use phalanx::trace::Trace;
use phalanx::transport::JobLinks;
use phalanx::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Makes `PHALANX_BACKEND=counting` work in this program: what is registered as `inner` does the work. A call that takes as long as `slow` is
/// logged as a warning.
///
/// # Errors
/// Nothing is registered as `inner`, or the name is taken.
pub fn register(inner: &str, slow: Duration) -> Result<Arc<Counters>> {
    let (inner, counters) = (backend_kind(inner)?, Arc::new(Counters::new(slow)));
    register_backend("counting", Arc::new(Counting { inner, counters: counters.clone() }))?;
    Ok(counters)
}

/// What is registered.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn BackendKind>,
    counters: Arc<Counters>,
}

impl BackendKind for Counting {
    fn about(&self) -> &str {
        "counts what another backend does"
    }

    fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
        let (inner, counters) = (self.inner.factory(job)?, self.counters.clone());
        Ok(Arc::new(CountingFactory { inner, counters }))
    }

    fn links(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
        self.inner.links(at)
    }

    fn shares_memory(&self) -> bool {
        self.inner.shares_memory()
    }
}

/// Wraps the backends of all groups of a job, those that are split off too.
#[derive(Debug)]
struct CountingFactory {
    inner: Arc<dyn BackendFactory>,
    counters: Arc<Counters>,
}

impl BackendFactory for CountingFactory {
    fn create(
        &self,
        id: GroupId,
        members: Vec<usize>,
        call: &Signature,
        deadline: &Deadline,
    ) -> Result<Arc<dyn Backend>> {
        let inner = self.inner.create(id, members, call, deadline)?;
        Ok(Arc::new(CountingBackend { inner, counters: self.counters.clone() }))
    }
}

/// One group.
#[derive(Debug)]
struct CountingBackend {
    inner: Arc<dyn Backend>,
    counters: Arc<Counters>,
}

impl CountingBackend {
    /// Counts a call that this thread waits for.
    fn timed<T>(&self, call: &Signature, work: impl FnOnce(&dyn Backend) -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let outcome = work(&*self.inner);
        self.counters.add(call, begun.elapsed(), self.rank());
        outcome
    }

    /// Counts a call that nobody waits for yet, when it is over.
    fn counted(&self, call: Signature, pending: Pending) -> Pending {
        let (counters, rank, begun) = (self.counters.clone(), self.rank(), Instant::now());
        pending.then(move |outcome| {
            counters.add(&call, begun.elapsed(), rank);
            outcome
        })
    }
}

impl Backend for CountingBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn describe(&self) -> String {
        format!("{}, counted", self.inner.describe())
    }

    fn algorithm(&self, call: &Signature) -> Option<&'static str> {
        self.inner.algorithm(call)
    }

    fn id(&self) -> GroupId {
        self.inner.id()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn members(&self) -> &[usize] {
        self.inner.members()
    }

    fn local(&self) -> (usize, usize) {
        self.inner.local()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn perform(&self, call: HostCall<'_>, timeout: Duration) -> Result<()> {
        let signature = call.signature().clone();
        self.timed(&signature, |inner| inner.perform(call, timeout))
    }

    fn submit(&self, call: OwnedCall, timeout: Duration) -> Result<Pending> {
        let signature = call.signature().clone();
        Ok(self.counted(signature, self.inner.submit(call, timeout)?))
    }

    fn send(&self, to: Address, bytes: &[u8], timeout: Duration) -> Result<()> {
        let signature = to.signature.clone();
        self.timed(&signature, |inner| inner.send(to, bytes, timeout))
    }

    fn recv(&self, from: Address, bytes: &mut [u8], timeout: Duration, on_timeout: OnTimeout) -> Result<()> {
        let signature = from.signature.clone();
        self.timed(&signature, |inner| inner.recv(from, bytes, timeout, on_timeout))
    }

    fn recv_any(
        &self,
        call: Signature,
        tag: u64,
        bytes: &mut [u8],
        timeout: Duration,
        on_timeout: OnTimeout,
    ) -> Result<usize> {
        let signature = call.clone();
        self.timed(&signature, |inner| inner.recv_any(call, tag, bytes, timeout, on_timeout))
    }

    fn submit_recv_any(
        &self,
        call: Signature,
        tag: u64,
        buffer: Box<dyn Bytes>,
        timeout: Duration,
    ) -> Result<Pending> {
        Ok(self.counted(call.clone(), self.inner.submit_recv_any(call, tag, buffer, timeout)?))
    }

    fn submit_message(&self, address: Address, buffer: Box<dyn Bytes>, timeout: Duration) -> Result<Pending> {
        let signature = address.signature.clone();
        Ok(self.counted(signature, self.inner.submit_message(address, buffer, timeout)?))
    }

    fn alloc(&self, signature: Signature, len: usize, timeout: Duration) -> Result<BufferMemory> {
        self.inner.alloc(signature, len, timeout)
    }

    fn forgo(&self, id: GroupId, why: &Error) {
        self.inner.forgo(id, why);
    }

    fn trace(&self) -> Option<Trace> {
        self.inner.trace()
    }

    fn peer(&self, rank: usize) -> Peer {
        self.inner.peer(rank)
    }

    fn failure(&self) -> Option<Cause> {
        self.inner.failure()
    }

    fn fail(&self, cause: Cause) -> Cause {
        self.inner.fail(cause)
    }

    fn leave(&self) {
        self.inner.leave();
    }
}
