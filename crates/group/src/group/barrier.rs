//! Barriers of a [`ProcessGroup`], for a caller that waits.

use crate::ProcessGroup;
use crate::group::call::HostCall;
use crate::group::request::Request;
use phalanx_core::{CallSite, OpKind, Result};
use std::time::Duration;

impl ProcessGroup {
    /// Returns on every rank after all ranks have called it.
    ///
    /// # Cost
    /// ⌈log₂ P⌉ rounds of empty messages.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// if group.rank() == 0 {
    ///     // … write a file that all ranks read …
    /// }
    /// group.barrier()?; // it is there now
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.barrier_at(OpKind::Barrier, self.timeout(), self.site())
    }

    /// As [`barrier`](Self::barrier), with a time limit of its own. The [`Timeout`](crate::Error::Timeout) names every rank that did not come.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # phalanx_group::on_threads(2, |group| {
    /// if group.rank() == 0 {
    ///     // … write a checkpoint, for up to an hour …
    /// }
    /// group.monitored_barrier(Duration::from_secs(3600))?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        self.barrier_at(OpKind::Barrier, timeout, self.site())
    }

    #[inline(always)]
    pub(crate) fn barrier_at(&self, op: OpKind, timeout: Duration, site: CallSite) -> Result<()> {
        self.check_process(op)?;
        let request = Request::<&[u8], &mut [u8]>::Barrier;
        let signature = self.signature_here(op, None, &request, 0, site);
        let call = HostCall::checked(&signature, request, self.rank(), self.world_size());
        self.backend.perform(call, timeout)
    }
}
