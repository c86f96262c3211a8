//! What an engine needs that performs operations of a group beside its backend, as NCCL does for memory of devices: to make sure that
//! all ranks mean the same, to hear when the group fails, and to make it fail.

use crate::control::limits::cut;
use crate::group::call::OwnedCall;
use crate::group::process_group::ProcessGroup;
use crate::group::request::Request;
use crate::group::work::Work;
use phalanx_core::{Cause, Peer, Result, Signature};

impl ProcessGroup {
    /// Begins to wait until all ranks have made the call `signature`, which is a collective of the group in every respect but that nothing is moved.
    /// Ranks that call something else at this place, or nothing in time, are told of as for any collective.
    ///
    /// # Cost
    /// That of [`barrier_async`](Self::barrier_async).
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, DType, OpKind, ReduceOp, Signature, Method};
    /// # use phalanx_group::threads;
    /// # std::thread::scope(|s| { for group in threads(2) { s.spawn(move || -> phalanx_core::Result<()> {
    /// let (op, dtype, reduce) = (OpKind::AllReduce, Some(DType::F32), Some(ReduceOp::Sum));
    /// let call = Signature { op, dtype, count: 1000, reduce, root: None, detail: 0, method: Method::UNSAID, site: CallSite::caller() };
    /// let agreement = group.agree_async(call)?;
    /// // … something that does all_reduce by other means …
    /// agreement.wait()
    /// # }); } });
    /// ```
    pub fn agree_async(&self, signature: Signature) -> Result<Work<()>> {
        self.check_process(signature.op)?;
        let call = OwnedCall::new(signature, Request::Barrier, self.rank(), self.world_size())?;
        self.submit(call, |_: Vec<u8>| ())
    }

    /// Why the group has failed, if it has; it need not be used to find out.
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(1, |group| {
    /// assert!(group.failure().is_none());
    /// group.abort("no more data");
    /// assert!(group.failure().unwrap().to_string().contains("no more data"));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn failure(&self) -> Option<Cause> {
        self.backend.failure()
    }

    /// Fails the group on all its ranks, unless it has failed: running operations end. Returns the first cause, which may be another: all ranks
    /// report the same. [`abort`](Self::abort) is this with a reason in words.
    ///
    /// # Cost
    /// A message to the arbiter and its word, or two seconds where that does not come.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Cause;
    /// # phalanx_group::on_threads(1, |group| {
    /// let cause = Cause::Aborted { peer: group.peer(group.rank()), reason: "the device is gone".into() };
    /// group.fail(cause);
    /// assert!(group.barrier().unwrap_err().to_string().contains("the device is gone"));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn fail(&self, cause: Cause) -> Cause {
        self.backend.fail(match cause {
            Cause::Aborted { peer, reason } => Cause::Aborted { peer, reason: cut(&reason) },
            Cause::Protocol { peer, what } => Cause::Protocol { peer, what: cut(&what) },
            other => other,
        })
    }

    /// The member `rank`, as errors name it.
    ///
    /// # Panics
    /// If there is no such rank.
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// assert_eq!(group.peer(1).rank, 1);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn peer(&self, rank: usize) -> Peer {
        self.backend.peer(rank)
    }
}
