//! Messages that any rank of a group may send.

use crate::group::backend::OnTimeout;
use crate::group::pending::Bytes;
use crate::group::work::taken_back;
use crate::{ProcessGroup, Work};
use phalanx_core::{CallSite, DType, Element, Error, OpKind, Result, Signature};
use std::any::Any;
use std::time::Duration;

/// A message that any rank might have sent: its buffer, and the rank that did. A backend completes
/// [`submit_recv_any`](crate::Backend::submit_recv_any) with it.
pub struct Received {
    buffer: Box<dyn Bytes>,
    from: usize,
}

impl Received {
    /// The message in this buffer, from this rank of the group.
    ///
    /// # Examples
    /// ```
    /// // In a backend, when the message has come:
    /// let (_pending, completion) = phalanx_group::Pending::new();
    /// let received = phalanx_group::Received::new(Box::new(vec![1.0f32]), 2);
    /// completion.complete(Ok(Box::new(received)));
    /// ```
    pub fn new(buffer: Box<dyn Bytes>, from: usize) -> Self {
        Self { buffer, from }
    }

    /// The rank that sent it.
    pub(crate) fn from(&self) -> usize {
        self.from
    }

    /// The buffer, which is a `B`, and the rank that sent it.
    pub(crate) fn into_parts<B: 'static>(self) -> Result<(B, usize)> {
        Ok((taken_back(self.buffer.into_any())?, self.from))
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Received").field("from", &self.from).finish_non_exhaustive()
    }
}

impl Bytes for Received {
    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.bytes()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Messages from whichever rank sends first.
impl ProcessGroup {
    /// Receives one message with `tag` from whichever other rank sends one, and returns that rank: `recv` with `src=None` of PyTorch, `MPI_Recv` with
    /// `MPI_ANY_SOURCE`. The message must have exactly this length and element type.
    ///
    /// Messages of one rank with one tag are taken in the order in which they were sent. A [`recv`](Self::recv) that was called before, from one rank with
    /// this tag, gets that rank's message first; one that is called later stands behind this call.
    ///
    /// # Cost
    /// While it waits it looks at the links of all other ranks, and over TCP makes those that do not stand yet. In a group over several hosts, what
    /// carries messages inside the host and what carries them across wait on two threads, and the message is copied once more.
    /// # Determinism
    /// None: whose message comes first may be another rank's each time, and [`reproducible`](Self::reproducible) does not change that. No rank is
    /// left out: of those whose messages are there, each has its turn. What must not depend on the order of arrival is kept by rank, not by arrival.
    /// # Errors
    /// [`Mismatch`](Error::Mismatch): the message that came has another type or length; the error names who sent it, and where.
    /// [`PeerLost`](Error::PeerLost): a rank was lost meanwhile, whether or not it was to send; or all others have left in order, and the error names
    /// the last. That some have left is no error. [`Timeout`](Error::Timeout): nobody has sent; no rank is named as missing, since none was expected
    /// more than the others. [`Misuse`](Error::Misuse): this rank is alone in the group. [`Unsupported`](Error::Unsupported): a backend from outside
    /// that can't.
    ///
    /// # Examples
    /// Rank 0 hands out work to whoever is done:
    /// ```
    /// # phalanx_group::on_threads(3, |group| {
    /// const DONE: u64 = 1; // tags
    /// const WORK: u64 = 2;
    /// const END: u64 = u64::MAX;
    /// if group.rank() == 0 {
    ///     let (mut next, mut sum) = (0, 0);
    ///     for _ in 0..10 + 2 {
    ///         let mut result = [0u64];
    ///         let worker = group.recv_any(&mut result, DONE)?; // the first time it asks, with nothing done
    ///         sum += result[0];
    ///         group.send(&[if next < 10 { next } else { END }], worker, WORK)?;
    ///         next += 1;
    ///     }
    ///     assert_eq!(sum, (0..10).map(|n| n * n).sum::<u64>());
    /// } else {
    ///     let (mut result, mut work) = (0, [0]);
    ///     while work[0] != END {
    ///         group.send(&[result], 0, DONE)?;
    ///         group.recv(&mut work, 0, WORK)?;
    ///         result = work[0].wrapping_mul(work[0]);
    ///     }
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_any<T: Element>(&self, buffer: &mut [T], tag: u64) -> Result<usize> {
        let call = self.any_source(T::DTYPE, buffer.len(), self.site())?;
        let bytes = bytemuck::cast_slice_mut(buffer);
        self.backend.recv_any(call, tag, bytes, self.timeout(), OnTimeout::FailGroup)
    }

    /// As [`recv_any`](Self::recv_any), but not to get a message within `timeout` is no failure of the group.
    ///
    /// # Errors
    /// [`NoMessage`](Error::NoMessage): nothing came in time; it says which ranks are still there. The others as for [`recv_any`](Self::recv_any).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Error;
    /// # use std::time::Duration;
    /// # phalanx_group::on_threads(2, |group| {
    /// let error = group.recv_any_timeout(&mut [0], 0, Duration::from_millis(1)).unwrap_err();
    /// assert!(matches!(error, Error::NoMessage { .. }) && error.group_is_usable());
    /// group.barrier()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_any_timeout<T: Element>(
        &self,
        buffer: &mut [T],
        tag: u64,
        timeout: Duration,
    ) -> Result<usize> {
        let call = self.any_source(T::DTYPE, buffer.len(), self.site())?;
        let bytes = bytemuck::cast_slice_mut(buffer);
        self.backend.recv_any(call, tag, bytes, timeout, OnTimeout::ReturnNoMessage)
    }

    /// Begins a [`recv_any`](Self::recv_any) of as many elements as `buffer` has. The [`Work`] returns the buffer, and the rank that sent it.
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async); what goes wrong later comes from [`Work::wait`], as [`recv_any`](Self::recv_any) says.
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(3, |group| {
    /// const HELLO: u64 = 0; // a tag
    /// if group.rank() == 0 {
    ///     let coming = [group.recv_any_async(vec![0], HELLO)?, group.recv_any_async(vec![0], HELLO)?];
    ///     for work in coming {
    ///         let (greeting, from) = work.wait()?;
    ///         assert_eq!(greeting, [10 * from as u64]);
    ///     }
    /// } else {
    ///     group.send(&[10 * group.rank() as u64], 0, HELLO)?;
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_any_async<T: Element>(&self, buffer: Vec<T>, tag: u64) -> Result<Work<(Vec<T>, usize)>> {
        let call = self.any_source(T::DTYPE, buffer.len(), self.site())?;
        let pending = self.backend.submit_recv_any(call, tag, Box::new(buffer), self.timeout())?;
        let finish = |received: Received| received.into_parts::<Vec<T>>();
        Ok(Work::try_new(pending, finish).of(self.in_flight(OpKind::RecvAny)))
    }

    pub(crate) fn any_source(&self, dtype: DType, count: usize, site: CallSite) -> Result<Signature> {
        let op = OpKind::RecvAny;
        if self.world_size() == 1 {
            let what = format!("this rank is alone in its group, so nobody can send it a message, at {site}");
            return Err(Error::misuse(op, what));
        }
        self.signature(op, dtype, count, site)
    }
}
