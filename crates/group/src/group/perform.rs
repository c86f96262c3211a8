//! How the methods of a [`ProcessGroup`] become calls of its backend.
//!
//! A method knows its operation, so of each match on the request one arm is left where all of this is inlined: that halves what a small operation does before its
//! backend begins.

use crate::group::call::{Call, HostCall, HostRequest, OwnedCall, check, element, is_sensible};
use crate::group::memory::{Changed, Extent, OwnedBuffer};
use crate::group::pending::Pending;
use crate::group::pre_mul_sum;
use crate::group::request::{BlockExchange, Request};
use crate::group::work::Buffer;
use crate::{ProcessGroup, Work};
use bytemuck::Pod;
use phalanx_core::{CallSite, DType, Element, Error, Layout, Method, OpKind, Result, Signature};
use std::mem::ManuallyDrop;

pub(crate) fn wrong(op: OpKind, site: &CallSite, what: impl std::fmt::Display) -> Error {
    Error::misuse(op, format!("{what}, at {site}"))
}

/// The layout of equal blocks of `len` elements.
pub(crate) fn equal(world_size: usize, len: usize) -> Layout {
    Layout::equal(world_size, len)
}

impl ProcessGroup {
    /// Performs `request` as the method of its name does: for libraries that pass on what they are asked for. Blocks that are not even are those
    /// of the variant with counts.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract); [`Misuse`](Error::Misuse) for a request that makes no sense.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, ProcessGroup, ReduceOp, Request, threads};
    /// # std::thread::scope(|s| { for group in threads(2) { s.spawn(move || -> phalanx_core::Result<()> {
    /// let mut sum = [0.0f32; 3];
    /// let buffers = Buffers::Separate(&[1.0f32, 2.0, 3.0][..], &mut sum[..]);
    /// group.request(Request::AllReduce { buffers, reduce: ReduceOp::Sum })?;
    /// assert_eq!(sum, [2.0, 4.0, 6.0]);
    /// # Ok(()) }); } });
    /// ```
    #[track_caller]
    pub fn request<T: Element>(&self, request: Request<&[T], &mut [T]>) -> Result<()> {
        let detail = self.detail_of(&request);
        self.perform(request.kind(), request, detail, self.site())
    }

    /// A hash of what ranks must agree on beside lengths: the counts of a variant with counts.
    pub(crate) fn detail_of<I, O>(&self, request: &Request<I, O>) -> u64 {
        match request.blocks() {
            Some(blocks) if *blocks != equal(self.world_size(), blocks.len() / self.world_size()) => {
                let counts: Vec<usize> =
                    (0..blocks.world_size()).map(|rank| blocks.block(rank).len()).collect();
                Signature::detail_of(&counts)
            }
            _ => u64::from(matches!(request, Request::AllToAll { blocks: BlockExchange::Uneven { .. }, .. })),
        }
    }

    /// Performs what the program calls `op`; `detail` is a hash of what else ranks must agree on.
    #[inline(always)]
    pub(crate) fn perform<T: Element>(
        &self,
        op: OpKind,
        request: Request<&[T], &mut [T]>,
        detail: u64,
        site: CallSite,
    ) -> Result<()> {
        self.perform_of(op, T::DTYPE, request, detail, site)
    }

    /// As `perform`, of elements of `dtype`, or their bytes.
    #[inline(always)]
    pub(crate) fn perform_of<T: Pod>(
        &self,
        op: OpKind,
        dtype: DType,
        request: Request<&[T], &mut [T]>,
        detail: u64,
        site: CallSite,
    ) -> Result<()> {
        // A barrier has no elements, of whichever type it was asked for.
        let dtype = (request.kind() != OpKind::Barrier).then_some(dtype);
        let signature = self.signature_here(op, dtype, &request, detail, site);
        self.perform_as(signature, request)
    }

    /// Performs `request` as the call that all ranks agree on.
    #[inline(always)]
    pub(crate) fn perform_as<T: Pod>(
        &self,
        signature: Signature,
        request: Request<&[T], &mut [T]>,
    ) -> Result<()> {
        let (rank, world_size, timeout) = (self.rank(), self.world_size(), self.timeout());
        // A request that may be dropped here is kept in memory by the compiler, which then no longer knows its operation. `ManuallyDrop` prevents that; `into_inner` gives
        // it back on every path.
        let request = ManuallyDrop::new(request);
        let is_plain = request.reduce().copied().is_none_or(|reduce| reduce.factor().is_none())
            && self.owner_process.is_here()
            && is_sensible(&signature, &request, rank, world_size);
        let bytes = ManuallyDrop::into_inner(request).map(bytemuck::cast_slice, bytemuck::cast_slice_mut);
        if is_plain {
            self.backend.perform(HostCall::checked(&signature, bytes, rank, world_size), timeout)
        } else {
            self.refuse_or_multiply(&signature, bytes)
        }
    }

    /// The rare cases: refuses what makes no sense or is called after a fork, and performs sums whose contributions are multiplied first.
    #[cold]
    fn refuse_or_multiply(&self, signature: &Signature, request: HostRequest<'_>) -> Result<()> {
        let (rank, world_size) = (self.rank(), self.world_size());
        self.check_process(signature.op)?;
        let Some(products) = pre_mul_sum::of(&request, signature.dtype) else {
            return Call::new(signature, request, rank, world_size)
                .and_then(|call| self.backend.perform(call, self.timeout()));
        };
        // What is refused leaves the buffers as they are.
        check(signature, signature.dtype, &request, rank, world_size)?;
        products.perform(request, rank, |request| {
            let call = Call::new(signature, request, rank, world_size)?;
            self.backend.perform(call, self.timeout())
        })
    }

    /// A call on this rank, blocking or not.
    pub(crate) fn call<I: Extent, O: Extent>(
        &self,
        op: OpKind,
        dtype: Option<DType>,
        request: Request<I, O>,
        detail: u64,
        site: CallSite,
    ) -> Result<Call<I, O>> {
        let signature = self.signature_of(op, dtype, &request, detail, site)?;
        Call::new(signature, request, self.rank(), self.world_size())
    }

    /// What is agreed on for a collective, unless this process was forked from the group's.
    pub(crate) fn signature_of<I: Extent, O: Extent>(
        &self,
        op: OpKind,
        dtype: Option<DType>,
        request: &Request<I, O>,
        detail: u64,
        site: CallSite,
    ) -> Result<Signature> {
        self.check_process(op)?;
        Ok(self.signature_here(op, dtype, request, detail, site))
    }

    /// As [`signature_of`](Self::signature_of), for a caller that looks at the process itself.
    #[inline(always)]
    pub(crate) fn signature_here<I: Extent, O: Extent>(
        &self,
        op: OpKind,
        dtype: Option<DType>,
        request: &Request<I, O>,
        detail: u64,
        site: CallSite,
    ) -> Signature {
        Signature {
            op,
            dtype,
            count: request.count(element(dtype)) as u64,
            reduce: request.reduce().copied(),
            root: request.root().map(|root| root as u32),
            detail,
            method: match request.reduce().copied() {
                Some(_) if self.is_reproducible() => Method::IN_RANK_ORDER,
                _ => Method::UNSAID,
            },
            site,
        }
    }

    pub(crate) fn layout(&self, op: OpKind, counts: &[usize], site: &CallSite) -> Result<Layout> {
        if counts.len() != self.world_size() {
            let (n, world_size) = (counts.len(), self.world_size());
            return Err(wrong(op, site, format!("{n} counts for {world_size} ranks")));
        }
        if counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).is_none() {
            return Err(wrong(op, site, "counts whose sum does not fit"));
        }
        Ok(Layout::from_counts(counts))
    }

    pub(crate) fn equal_blocks(&self, op: OpKind, len: usize, site: &CallSite) -> Result<Layout> {
        let each = len / self.world_size();
        if each * self.world_size() != len {
            return Err(wrong(op, site, format!("{len} elements for {} ranks", self.world_size())));
        }
        Ok(Layout::equal(self.world_size(), each))
    }

    /// Begins what the program calls `op`; `detail` is a hash of what else ranks must agree on. `finish` is given the buffer of the result.
    pub(crate) fn submit_of<B: Buffer, R>(
        &self,
        op: OpKind,
        request: Request<B, B>,
        detail: u64,
        site: CallSite,
        finish: impl FnOnce(B) -> R + Send + Sync + 'static,
    ) -> Result<Work<R>> {
        let dtype = Some(<B::Element as Element>::DTYPE);
        let owned = |buffer| OwnedBuffer::new(Box::new(buffer));
        let request = request.map(owned, owned);
        let signature = self.signature_of(op, dtype, &request, detail, site)?;
        let pending = self.submit_as(signature, request)?;
        Ok(Work::new(pending, finish).of(self.in_flight(op)))
    }

    /// Begins `request` as the call that all ranks agree on.
    pub(crate) fn submit_as(
        &self,
        signature: Signature,
        mut request: Request<OwnedBuffer, OwnedBuffer>,
    ) -> Result<Pending> {
        let (rank, world_size, dtype, op) = (self.rank(), self.world_size(), signature.dtype, signature.op);
        if let Some(products) = pre_mul_sum::of(&request, dtype) {
            check(&signature, dtype, &request, rank, world_size)?;
            let changed = |changed: Changed| Error::misuse(op, changed.describe(op, &signature.site));
            request = products.owned(request, rank).map_err(changed)?;
        }
        self.backend.submit(OwnedCall::new(signature, request, rank, world_size)?, self.timeout())
    }

    pub(crate) fn submit<B: Send + 'static, R>(
        &self,
        call: OwnedCall,
        finish: impl FnOnce(B) -> R + Send + Sync + 'static,
    ) -> Result<Work<R>> {
        let op = call.signature().op;
        let pending = self.backend.submit(call, self.timeout())?;
        Ok(Work::new(pending, finish).of(self.in_flight(op)))
    }
}
