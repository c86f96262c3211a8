//! The operations, each as parts that the ranks of a host perform among themselves, and ranks of different hosts among themselves.

use super::hosts::{Hosts, block_of};
use crate::control::group_health::{GroupHealth, ParentCall};
use crate::engine::partial::{Arithmetic, Partials};
use crate::engine::scratch::Scratch;
use crate::group::call::{HostCall, HostRequest, element};
use crate::group::derived::derived;
use crate::group::request::{Buffers, Request};
use crate::host::call_thread::{CallThread, Performer};
use crate::host::forced::warn_not_taken;
use crate::host::scheduled::ScheduledBackend;
use crate::host::shm::ShmTeam;
use crate::trace::clock;
use phalanx_algo::{LevelsCall, LevelsWay, Way};
use phalanx_core::{DType, Error, Layout, Method, OpKind, ReduceOp, Result, Signature};
use phalanx_kernels::copy_slice;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One group on one rank. What the progress thread works on, too.
#[derive(Debug)]
pub(super) struct Levels {
    pub(super) health: Arc<GroupHealth>,
    pub(super) hosts: Hosts,
    /// The members on this host, if there are others than this rank.
    pub(super) intra: Option<ShmTeam>,
    /// The members at this rank's place on all hosts: where hosts have unlike numbers of members, only for the first place.
    pub(super) inter: Option<ScheduledBackend>,
    /// All members.
    pub(super) flat: ScheduledBackend,
    pub(super) call_thread: CallThread,
    /// The bytes from which a sum is cut into slices: as recommended, but for tests.
    pub(super) sliced_from: usize,
    /// The operations for which this rank has warned that the forced way could not be taken.
    pub(super) warned: Mutex<BTreeSet<OpKind>>,
    /// The number of the last collective. Locked while one runs.
    pub(super) seq: Mutex<u64>,
}

impl Performer for Levels {
    fn call_thread(&self) -> &CallThread {
        &self.call_thread
    }

    fn health(&self) -> &GroupHealth {
        &self.health
    }

    fn perform(&self, call: HostCall<'_>, limit: Duration) -> Result<()> {
        call.check_place(self.health.rank, self.health.members().len())?;
        self.health.check(call.signature(), || *self.seq() + 1)?;
        let (signature, request) = call.into_parts();
        self.flat.check_order(signature)?;
        let way = self.way(signature, &request);
        let method = signature.method.then(&words(way).into());
        let signature = &Signature { method, ..signature.clone() };
        let mut seq = self.seq();
        *seq += 1;
        let whole = ParentCall { signature, seq: *seq, called: Instant::now(), limit };
        let (host, index) = self.hosts.place(self.health.rank);
        let outcome = Parts { levels: self, whole, host, index }.perform(request, way);
        if let (Some(_), Some(intra)) = (self.health.latch.cause(), &self.intra) {
            // Who waits there for this rank hears of it at once, and even where no arbiter is left to tell.
            intra.close();
        }
        outcome.inspect(|()| self.health.ended(*seq, signature, clock::now))
    }
}

impl Levels {
    fn seq(&self) -> MutexGuard<'_, u64> {
        self.seq.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of which parts the operation is made: what all must do alike, whichever way each part has.
    fn way(&self, signature: &Signature, request: &HostRequest<'_>) -> LevelsWay {
        let (op, element) = (request.kind(), element(signature.carries()));
        let is_direct =
            matches!(request, Request::Gather { .. } | Request::Scatter { .. } | Request::AllToAll { .. });
        if request.is_empty(element) && op != OpKind::Barrier && !is_direct {
            // Nothing to move, but ranks that disagree must still find out.
            return LevelsWay::Speakers;
        }
        // A scan adds up where all contributions are, in whichever way they came.
        let needs_order = signature.method.is_in_rank_order() && op != OpKind::Scan;
        if needs_order || self.flat.is_forced(signature.op) {
            return LevelsWay::Direct;
        }
        let levels = LevelsCall {
            // A scan is made of one.
            op: if op == OpKind::Scan { OpKind::AllGather } else { op },
            bytes: request.count(element) * element,
            is_even: self.hosts.per_host().is_some(),
            is_in_blocks: self.hosts.in_blocks_of().is_some(),
            sliced_from: self.sliced_from,
        };
        // A part that is another operation than the call, as where ranks only agree on one, has no forced way.
        let forced = if op == signature.op { self.flat.forced_levels(op) } else { None };
        if let Some((way, why)) = forced.and_then(|way| Some((way, levels.obstacle(way)?)))
            && self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(op)
        {
            warn_not_taken(&self.health, Way::Levels(op, way), why);
        }
        levels.choose(forced)
    }
}

/// A way in words: the whole group over the network, whoever shares a host; all of a host with one of them, which speaks for it; each of a
/// host with those at its place on the other hosts, about its part.
fn words(way: LevelsWay) -> &'static str {
    match way {
        LevelsWay::Direct => "one level",
        LevelsWay::Speakers => "speakers on two levels",
        LevelsWay::Slices => "slices on two levels",
    }
}

/// One call, and this rank's place in it.
struct Parts<'a> {
    levels: &'a Levels,
    whole: ParentCall<'a>,
    host: usize,
    index: usize,
}

impl Parts<'_> {
    fn perform(&self, request: HostRequest<'_>, way: LevelsWay) -> Result<()> {
        let per_host = self.levels.hosts.in_blocks_of();
        match request {
            // Nothing to move, but ranks that disagree must still find out.
            Request::AllReduce { .. }
            | Request::Reduce { .. }
            | Request::Broadcast { .. }
            | Request::AllGather { .. }
            | Request::ReduceScatter { .. }
            | Request::Scan { .. }
                if request.is_empty(self.element()) =>
            {
                self.barrier()
            }
            Request::Scan { .. } => {
                let (rank, world_size) = (self.levels.health.rank, self.levels.health.members().len());
                let dtype = self.whole.signature.carries();
                derived(request, dtype, rank, world_size, |part| self.perform(part, way))
            }
            request if way == LevelsWay::Direct => self.flat(request),
            Request::AllReduce { mut buffers, reduce } => self.all_reduce(buffers.whole(), reduce, way),
            Request::Reduce { buffer, reduce, root } => self.reduce(buffer, reduce, root),
            Request::Broadcast { buffer, root } => self.broadcast(buffer, root),
            Request::AllGather { mut buffers, blocks } => match per_host {
                None => self.flat(Request::AllGather { buffers, blocks }),
                Some(per_host) => {
                    let own = self.bytes(blocks.block(self.levels.health.rank));
                    self.all_gather(per_host, &blocks, buffers.with_own(own))
                }
            },
            Request::ReduceScatter { buffers, blocks, reduce } => match per_host {
                None => self.flat(Request::ReduceScatter { buffers, blocks, reduce }),
                Some(per_host) => self.reduce_scatter(per_host, &blocks, buffers, reduce),
            },
            Request::Gather { .. } | Request::Scatter { .. } | Request::AllToAll { .. } => self.flat(request),
            Request::Barrier => self.barrier(),
        }
    }

    /// Among all ranks at once.
    fn flat(&self, request: HostRequest<'_>) -> Result<()> {
        let (rank, world_size) = (self.levels.health.rank, self.levels.health.members().len());
        let mut signature = self.part(&request, self.whole.signature.carries());
        if self.whole.signature.method.is_in_rank_order() {
            signature.method = Method::IN_RANK_ORDER;
        }
        let part = HostCall::new(&signature, request, rank, world_size)?;
        self.levels.flat.perform_part(self.whole, part, world_size, None)
    }

    /// Among the ranks of this host.
    fn intra(&self, request: HostRequest<'_>) -> Result<()> {
        self.inside_as(request, self.whole.signature.carries())
    }

    fn inside_as(&self, request: HostRequest<'_>, dtype: Option<DType>) -> Result<()> {
        let Some(intra) = &self.levels.intra else { return Ok(()) };
        let ranks = self.levels.hosts.members(self.host).len();
        let signature = self.part(&request, dtype);
        intra.perform_part(self.whole, HostCall::new(&signature, request, self.index, ranks)?)
    }

    /// Among the ranks at this place on all hosts. What `sums` has is combined instead of the buffer; the result is in the buffer.
    fn inter(&self, request: HostRequest<'_>, sums: Option<Partials>) -> Result<()> {
        let inter = self.levels.inter.as_ref();
        let inter =
            inter.ok_or_else(|| Error::Internal { what: "a rank without links to other hosts".into() })?;
        let (hosts, all) = (self.levels.hosts.len(), self.levels.health.members().len());
        let signature = self.part(&request, self.whole.signature.carries());
        let part = HostCall::new(&signature, request, self.host, hosts)?;
        inter.perform_part(self.whole, part, all, sums)
    }

    /// The signature of a part of the call, for those ranks that perform it.
    fn part(&self, request: &HostRequest<'_>, dtype: Option<DType>) -> Signature {
        Signature {
            dtype,
            count: request.count(element(dtype)) as u64,
            reduce: request.reduce().copied(),
            root: request.root().map(|root| root as u32),
            ..Signature::bare(request.kind(), self.whole.signature.site.clone())
        }
    }

    /// Room for the sums of half types in a buffer of `len` bytes, and what fills it; `None` for all others, which are summed up in place.
    fn sums(&self, reduce: ReduceOp, len: usize) -> Result<Option<(Arithmetic, Partials)>> {
        let arithmetic = Arithmetic::of(self.whole.signature, Some(reduce), 1)?.filter(Arithmetic::is_wide);
        Ok(arithmetic.map(|arithmetic| (arithmetic, Partials::new(len))))
    }

    /// What the buffer contributes to sums of half types.
    fn widened(&self, reduce: ReduceOp, buffer: &[u8]) -> Result<Option<Partials>> {
        Ok(self.sums(reduce, buffer.len())?.map(|(arithmetic, mut sums)| {
            arithmetic.widen(buffer, sums.of(&(0..buffer.len())));
            sums
        }))
    }

    /// The type in which the ranks of this host sum up: half types as `f32`.
    fn dtype_of(&self, sums: Option<&Partials>) -> Option<DType> {
        if sums.is_some() { Some(DType::F32) } else { self.whole.signature.carries() }
    }

    fn element(&self) -> usize {
        element(self.whole.signature.carries())
    }

    fn bytes(&self, elements: Range<usize>) -> Range<usize> {
        elements.start * self.element()..elements.end * self.element()
    }

    /// The place on every host that speaks for it in an operation with this root: the root's, where all hosts have it.
    fn speaker(&self, root_index: usize) -> usize {
        if self.levels.hosts.per_host().is_some() { root_index } else { 0 }
    }

    fn barrier(&self) -> Result<()> {
        self.intra(Request::Barrier)?;
        if self.index == 0 {
            self.inter(Request::Barrier, None)?;
        }
        self.intra(Request::Barrier)
    }

    fn all_reduce(&self, buffer: &mut [u8], reduce: ReduceOp, way: LevelsWay) -> Result<()> {
        let (len, mut sums) = (buffer.len() / self.element(), self.widened(reduce, buffer)?);
        if way == LevelsWay::Slices {
            let slices = Layout::even(self.levels.hosts.members(self.host).len(), len);
            let own = self.bytes(slices.block(self.index));
            self.reduce_slices_inside(buffer, reduce, &slices, sums.as_mut())?;
            let sums = sums.map(|sums| sums.from(own.start));
            let buffers = Buffers::InPlace(&mut buffer[own]);
            self.inter(Request::AllReduce { buffers, reduce }, sums)?;
            return self.intra(Request::AllGather { buffers: Buffers::InPlace(buffer), blocks: slices });
        }
        self.reduce_inside(buffer, reduce, 0, sums.as_mut())?;
        if self.index == 0 {
            self.inter(Request::AllReduce { buffers: Buffers::InPlace(&mut *buffer), reduce }, sums)?;
        }
        self.intra(Request::Broadcast { buffer, root: 0 })
    }

    /// The sum of this host, of which no one is a result yet: averages are only summed up, and who has seen all contributions divides. Half types are
    /// summed up as `f32`.
    fn reduce_inside(
        &self,
        buffer: &mut [u8],
        reduce: ReduceOp,
        root: usize,
        sums: Option<&mut Partials>,
    ) -> Result<()> {
        let (dtype, all) = (self.dtype_of(sums.as_deref()), 0..buffer.len());
        let buffer = sums.map_or(buffer, |sums| sums.of(&all));
        self.inside_as(Request::Reduce { buffer, reduce: without_division(reduce), root }, dtype)
    }

    /// As [`reduce_inside`](Self::reduce_inside), of which each rank gets its slice.
    fn reduce_slices_inside(
        &self,
        buffer: &mut [u8],
        reduce: ReduceOp,
        slices: &Layout,
        sums: Option<&mut Partials>,
    ) -> Result<()> {
        let (dtype, all) = (self.dtype_of(sums.as_deref()), 0..buffer.len());
        let buffers = Buffers::InPlace(sums.map_or(buffer, |sums| sums.of(&all)));
        let (blocks, reduce) = (slices.clone(), without_division(reduce));
        self.inside_as(Request::ReduceScatter { buffers, blocks, reduce }, dtype)
    }

    /// The place of the root.
    fn place(&self, root: usize) -> (usize, usize) {
        self.levels.hosts.place(root)
    }

    fn reduce(&self, buffer: &mut [u8], reduce: ReduceOp, root: usize) -> Result<()> {
        let (root_host, root_index) = self.place(root);
        let (speaker, mut sums) = (self.speaker(root_index), self.widened(reduce, buffer)?);
        self.reduce_inside(buffer, reduce, speaker, sums.as_mut())?;
        if self.index == speaker {
            self.inter(Request::Reduce { buffer: &mut *buffer, reduce, root: root_host }, sums)?;
        }
        if self.host == root_host && speaker != root_index {
            self.intra(Request::Broadcast { buffer, root: speaker })?;
        }
        Ok(())
    }

    fn broadcast(&self, buffer: &mut [u8], root: usize) -> Result<()> {
        let (root_host, root_index) = self.place(root);
        let speaker = self.speaker(root_index);
        let root_host_has_it = speaker != root_index;
        if self.host == root_host && root_host_has_it {
            self.intra(Request::Broadcast { buffer: &mut *buffer, root: root_index })?;
        }
        if self.index == speaker {
            self.inter(Request::Broadcast { buffer: &mut *buffer, root: root_host }, None)?;
        }
        if self.host == root_host && root_host_has_it {
            return Ok(());
        }
        self.intra(Request::Broadcast { buffer, root: speaker })
    }

    /// The blocks of the ranks at this place, one after the other.
    fn column(&self, per_host: usize, layout: &Layout) -> Layout {
        let rank = |host| host * per_host + self.index;
        let counts: Vec<_> =
            (0..self.levels.hosts.len()).map(|host| layout.block(rank(host)).len()).collect();
        Layout::from_counts(&counts)
    }

    /// Where the blocks of a host's ranks are together, and where each is in there.
    fn row(&self, host: usize, per_host: usize, layout: &Layout) -> (Range<usize>, Layout) {
        let ranks = block_of(host, per_host);
        let counts: Vec<_> = ranks.clone().map(|rank| layout.block(rank).len()).collect();
        (self.bytes(layout.blocks(ranks)), Layout::from_counts(&counts))
    }

    /// First every rank gets the blocks of those at its place on all hosts; then those of a host show each other theirs.
    fn all_gather(&self, per_host: usize, layout: &Layout, buffer: &mut [u8]) -> Result<()> {
        let column = self.column(per_host, layout);
        let mut scratch = Scratch::new(column.len() * self.element());
        let blocks = scratch.bytes_mut();
        let block_in = |host: usize| self.bytes(layout.block(host * per_host + self.index));
        copy_slice(&mut blocks[self.bytes(column.block(self.host))], &buffer[block_in(self.host)]);
        let buffers = Buffers::InPlace(&mut *blocks);
        let gathered = self.inter(Request::AllGather { buffers, blocks: column.clone() }, None);
        for host in (0..self.levels.hosts.len()).filter(|&host| host != self.host) {
            copy_slice(&mut buffer[block_in(host)], &blocks[self.bytes(column.block(host))]);
        }
        drop(scratch);
        gathered?;
        (0..self.levels.hosts.len()).try_for_each(|host| {
            let (range, blocks) = self.row(host, per_host, layout);
            let buffers = Buffers::InPlace(&mut buffer[range]);
            self.intra(Request::AllGather { buffers, blocks })
        })
    }

    /// First every rank gets its host's sums for those at its place on all hosts; then those add up theirs.
    fn reduce_scatter(
        &self,
        per_host: usize,
        layout: &Layout,
        mut buffers: Buffers<&[u8], &mut [u8]>,
        reduce: ReduceOp,
    ) -> Result<()> {
        let column = self.column(per_host, layout);
        let mut scratch = Scratch::new(column.len() * self.element());
        let sums = scratch.bytes_mut();
        let input = match &buffers {
            Buffers::InPlace(buffer) => &**buffer,
            Buffers::Separate(input, _) => input,
        };
        let reduced = self.reduce_columns(per_host, layout, &column, input, reduce, sums);
        let own = self.bytes(layout.block(self.levels.health.rank));
        let output = match &mut buffers {
            Buffers::InPlace(buffer) => &mut buffer[own],
            Buffers::Separate(_, output) => output,
        };
        copy_slice(output, &sums[self.bytes(column.block(self.host))]);
        reduced
    }

    fn reduce_columns(
        &self,
        per_host: usize,
        layout: &Layout,
        column: &Layout,
        input: &[u8],
        reduce: ReduceOp,
        sums: &mut [u8],
    ) -> Result<()> {
        let mut wide = self.sums(reduce, sums.len())?;
        if self.levels.intra.is_none() {
            return Err(Error::Internal { what: "hosts of one rank each are one level".into() });
        }
        let of_host = without_division(reduce);
        for host in 0..self.levels.hosts.len() {
            let (range, blocks) = self.row(host, per_host, layout);
            let own = self.bytes(column.block(host));
            match &mut wide {
                None => {
                    let buffers = Buffers::Separate(&input[range], &mut sums[own]);
                    self.intra(Request::ReduceScatter { buffers, blocks, reduce: of_host })?;
                }
                Some((_, wide)) => {
                    let mut row = self.widened(reduce, &input[range.clone()])?;
                    let row = row.as_mut().map_or(&mut [][..], |row| row.of(&(0..range.len())));
                    let buffers = Buffers::Separate(&*row, wide.of(&own));
                    let request = Request::ReduceScatter { buffers, blocks, reduce: of_host };
                    self.inside_as(request, Some(DType::F32))?;
                }
            }
        }
        let (buffers, blocks) = (Buffers::InPlace(sums), column.clone());
        let sums_as_f32 = wide.map(|(_, wide)| wide);
        self.inter(Request::ReduceScatter { buffers, blocks, reduce }, sums_as_f32)
    }
}

/// Averages are only summed up by parts: who has seen all contributions divides.
fn without_division(reduce: ReduceOp) -> ReduceOp {
    if reduce == ReduceOp::Avg { ReduceOp::Sum } else { reduce }
}
