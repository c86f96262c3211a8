//! How a call from C becomes an operation: its numbers and pointers are looked at, and it is performed here or begun.

use crate::elements;
use crate::failure::{Failure, Result};
use crate::group::{Group, number};
use crate::memory::{Region, Users};
use crate::site::site;
use crate::work::{Running, Work, duration};
use phalanx::backend::{Layout, Request, Untyped};
use phalanx::error::OpKind;
use phalanx::{CallSite, DType, ProcessGroup, ReduceOp};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::time::Duration;

/// The place of a call in a C program, as the header's macros give it.
pub(crate) type Place = (*const c_char, c_uint);

/// What every operation takes beside its buffers.
pub(crate) struct Call<'g> {
    group: &'g ProcessGroup,
    op: OpKind,
    dtype: DType,
    site: CallSite,
    /// Where the program wants the `Work`; null: the call waits.
    work: *mut *mut Work,
}

impl<'g> Call<'g> {
    /// A call of `op`. If `work` is not null, null is written there until an operation has begun.
    ///
    /// # Safety
    /// `group` is null or a group that was not freed, `work` is null or a place for a pointer, the file is null or ends with a null byte.
    pub(crate) unsafe fn new(
        group: *const Group,
        op: OpKind,
        dtype: c_int,
        work: *mut *mut Work,
        (file, line): Place,
    ) -> Result<Self> {
        if !work.is_null() {
            // SAFETY: it is not null, so it is a place for a pointer.
            unsafe { work.write(std::ptr::null_mut()) };
        }
        // SAFETY: the caller says so.
        let site = unsafe { site(file, line) };
        let wrong = |what: String| Failure::misuse(format!("{op}: {what}, at {site}"));
        // SAFETY: the caller says so.
        let group = unsafe { Group::in_use(group) }.map_err(wrong)?;
        let dtype = elements::dtype(dtype).map_err(wrong)?;
        Ok(Self { group, op, dtype, site, work })
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Failure {
        Failure::misuse(format!("{}: {what}, at {}", self.op, self.site))
    }

    /// The memory that an operation reads.
    ///
    /// # Safety
    /// As for [`Region::of`].
    pub(crate) unsafe fn input(&self, address: *const c_void, count: usize) -> Result<Region> {
        // SAFETY: the caller says so.
        unsafe { self.region("input", address.cast_mut(), count) }
    }

    /// The memory that an operation writes.
    ///
    /// # Safety
    /// As for [`Region::of`].
    pub(crate) unsafe fn output(&self, address: *mut c_void, count: usize) -> Result<Region> {
        // SAFETY: the caller says so.
        unsafe { self.region("output", address, count) }
    }

    /// The whole that only the root reads.
    ///
    /// # Safety
    /// As for [`Region::of`], on the root.
    pub(crate) unsafe fn whole_input(
        &self,
        root: usize,
        address: *const c_void,
        blocks: &Layout,
    ) -> Result<Option<Region>> {
        // SAFETY: the caller says so.
        (self.group.rank() == root).then(|| unsafe { self.input(address, blocks.len()) }).transpose()
    }

    /// The whole that only the root writes.
    ///
    /// # Safety
    /// As for [`Region::of`], on the root.
    pub(crate) unsafe fn whole_output(
        &self,
        root: usize,
        address: *mut c_void,
        blocks: &Layout,
    ) -> Result<Option<Region>> {
        // SAFETY: the caller says so.
        (self.group.rank() == root).then(|| unsafe { self.output(address, blocks.len()) }).transpose()
    }

    /// The memory that an operation reads and writes, or a message's.
    ///
    /// # Safety
    /// As for [`Region::of`].
    pub(crate) unsafe fn buffer(&self, address: *mut c_void, count: usize) -> Result<Region> {
        // SAFETY: the caller says so.
        unsafe { self.region("buffer", address, count) }
    }

    /// # Safety
    /// As for [`Region::of`].
    unsafe fn region(&self, name: &str, address: *mut c_void, count: usize) -> Result<Region> {
        // SAFETY: the caller says so.
        let region = unsafe { Region::of(address, count, self.dtype) };
        region.map_err(|what| self.wrong(format_args!("the {name} {what}")))
    }

    pub(crate) fn reduce(&self, op: c_int) -> Result<ReduceOp> {
        elements::op(op).map_err(|what| self.wrong(what))
    }

    /// A rank that the program names.
    pub(crate) fn rank(&self, rank: c_int) -> Result<usize> {
        let world_size = self.group.world_size();
        let known = usize::try_from(rank).ok().filter(|&rank| rank < world_size);
        known.ok_or_else(|| {
            self.wrong(format_args!("there is no rank {rank}: the group has ranks 0 to {}", world_size - 1))
        })
    }

    pub(crate) fn duration(&self, seconds: f64) -> Result<Duration> {
        duration(seconds).map_err(|what| self.wrong(what))
    }

    /// A block of `count` elements for each rank.
    pub(crate) fn equal_blocks(&self, count: usize) -> Result<Layout> {
        let world_size = self.group.world_size();
        let Some(whole) = count.checked_mul(world_size) else {
            return Err(self.wrong(format_args!(
                "{count} elements for each of {world_size} ranks are more than memory has (a negative count?)"
            )));
        };
        Ok(Layout::even(world_size, whole))
    }

    /// The blocks that `counts` says, a number for each rank.
    ///
    /// # Safety
    /// `counts` is null, or there are as many numbers as the group has ranks.
    pub(crate) unsafe fn blocks(&self, counts: *const usize) -> Result<Layout> {
        let world_size = self.group.world_size();
        if counts.is_null() || !counts.is_aligned() {
            return Err(self.wrong(format_args!(
                "the counts are no array: pass a size_t for each of {world_size} ranks"
            )));
        }
        // SAFETY: it is not null and aligned, and the caller says how many there are.
        let counts = unsafe { std::slice::from_raw_parts(counts, world_size) };
        if counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)).is_none() {
            return Err(self.wrong("the sum of the counts is more than memory has (a negative count?)"));
        }
        Ok(Layout::from_counts(counts))
    }

    /// How many elements this rank's block has.
    pub(crate) fn own_count(&self, blocks: &Layout) -> usize {
        blocks.block(self.group.rank()).len()
    }

    /// The range of this rank's block in bytes of the whole, which is in memory.
    fn own(&self, blocks: &Layout) -> Range<usize> {
        let (block, size) = (blocks.block(self.group.rank()), self.dtype.size());
        block.start * size..block.end * size
    }

    /// Whether this rank's block stands at its place in the whole.
    ///
    /// # Errors
    /// Misuse: it stands at another place there.
    pub(crate) fn is_in_place(&self, block: &Region, whole: &Region, blocks: &Layout) -> Result<bool> {
        if !block.overlaps(whole) {
            return Ok(false);
        }
        if block.is_part(whole, &self.own(blocks)) { Ok(true) } else { Err(self.overlapping()) }
    }

    /// Refuses an input and an output that have memory in common.
    pub(crate) fn check_apart(&self, input: &Region, output: &Region) -> Result<()> {
        if input.overlaps(output) { Err(self.overlapping()) } else { Ok(()) }
    }

    fn overlapping(&self) -> Failure {
        self.wrong("input and output overlap in memory: pass two buffers")
    }

    /// Performs `request`, or begins it.
    pub(crate) fn perform(self, mut request: Request<Region, Region>) -> Result<()> {
        if self.work.is_null() {
            let lent =
                request.each().map(|input: &mut Region| input.read(), |output: &mut Region| output.write());
            return Ok(self.untyped().request(lent)?);
        }
        let users = Users::new();
        let request = request.map(|input| users.join(input), |output| users.join(output));
        let running = Running::Nothing(self.untyped().begin(request)?);
        self.begun(Work::new(running, users));
        Ok(())
    }

    /// Performs or begins a message of `region`.
    pub(crate) fn message(
        self,
        mut region: Region,
        perform: impl FnOnce(&Untyped<'_>, &mut [u8]) -> phalanx::Result<()>,
        begin: impl FnOnce(&Untyped<'_>, Region) -> phalanx::Result<Running>,
    ) -> Result<()> {
        if self.work.is_null() {
            return Ok(perform(&self.untyped(), region.write())?);
        }
        self.begin(region, begin)
    }

    fn begin(
        self,
        region: Region,
        begin: impl FnOnce(&Untyped<'_>, Region) -> phalanx::Result<Running>,
    ) -> Result<()> {
        let users = Users::new();
        let running = begin(&self.untyped(), users.join(region))?;
        self.begun(Work::new(running, users));
        Ok(())
    }

    /// The group, whose calls count as made where this one is.
    pub(crate) fn group_here(&self) -> ProcessGroup {
        self.group.with_call_site(self.site.clone())
    }

    /// Sends what is only read.
    pub(crate) fn send(self, buffer: Region, dst: usize, tag: u64) -> Result<()> {
        if self.work.is_null() {
            return Ok(self.untyped().send(buffer.read(), dst, tag)?);
        }
        self.begin(buffer, |group, region| Ok(Running::Nothing(group.begin_send(region, dst, tag)?)))
    }

    /// Receives from any rank, which is stored in `source`.
    ///
    /// # Safety
    /// `source` is null or a place for a number.
    pub(crate) unsafe fn recv_any(
        self,
        mut buffer: Region,
        tag: u64,
        timeout: Option<Duration>,
        source: *mut c_int,
    ) -> Result<()> {
        let from = self.untyped().recv_any(buffer.write(), tag, timeout)?;
        if !source.is_null() {
            // SAFETY: it is not null, so it is a place for a number.
            unsafe { source.write(number(from)) };
        }
        Ok(())
    }

    pub(crate) fn untyped(&self) -> Untyped<'g> {
        self.group.untyped(self.dtype).called_at(self.site.clone())
    }

    fn begun(&self, work: Work) {
        // SAFETY: `new` has been told that it is a place for a pointer, unless it is null, and then nothing begins.
        unsafe { self.work.write(Box::into_raw(Box::new(work))) };
    }
}
