//! The operations, each as parts that the ranks of a host perform among themselves, and ranks of different hosts among themselves.

use super::hosts::{Hosts, block_of};
use crate::control::group_health::{GroupHealth, ParentCall};
use crate::engine::partial::{Arithmetic, Partials};
use crate::engine::scratch;
use crate::group::backend::{Buffers, Collective};
use crate::host::call_thread::{CallThread, Performer};
use crate::host::scheduled::ScheduledBackend;
use crate::host::shm::ShmTeam;
use crate::trace::clock;
use phalanx_core::{DType, Error, Layout, Method, OpKind, ReduceOp, Result, Signature};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// From so many bytes on, all ranks of a host talk to other hosts, each about a slice of its own. Below, one of them
/// does: slices cost a round inside each host more than they save between hosts.
pub(super) const SLICED_BYTES_MIN: usize = 8 << 10;

/// The whole group over the network, whoever shares a host.
const FLAT: &str = "one level";
/// All of a host with one of them, which speaks for it.
const SPEAKERS: &str = "speakers on two levels";
/// Each of a host with those at its place on the other hosts, about its part.
const SLICES: &str = "slices on two levels";

/// One group on one rank. What the progress thread works on, too.
#[derive(Debug)]
pub(super) struct Levels {
    pub(super) health: Arc<GroupHealth>,
    pub(super) hosts: Hosts,
    /// The members on this host, if there are others than this rank.
    pub(super) inside: Option<ShmTeam>,
    /// The members at this rank's place on all hosts: where hosts have unlike numbers of members, only for the first place.
    pub(super) across: Option<ScheduledBackend>,
    /// All members.
    pub(super) flat: ScheduledBackend,
    pub(super) call_thread: CallThread,
    /// [`SLICED_BYTES_MIN`], but for tests.
    pub(super) sliced_from: usize,
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

    fn perform(&self, call: &Collective, buffers: Buffers<'_>, limit: Duration) -> Result<()> {
        self.health.check(&call.signature)?;
        let signature = &Signature { method: self.method(call, &buffers).into(), ..call.signature.clone() };
        let mut seq = self.seq.lock().unwrap_or_else(PoisonError::into_inner);
        *seq += 1;
        let whole = ParentCall { signature, seq: *seq, called: Instant::now(), limit };
        let (host, index) = self.hosts.place(self.health.rank);
        let outcome = Parts { levels: self, whole, host, index }.perform(call, buffers);
        if let (Some(_), Some(inside)) = (self.health.latch.cause(), &self.inside) {
            // Who waits there for this rank hears of it at once, and even where no arbiter is left to tell.
            inside.close();
        }
        outcome.inspect(|()| self.health.ended(*seq, signature, clock::now))
    }
}

impl Levels {
    /// Of which parts the operation is made: what all must do alike, whichever way each part has.
    fn method(&self, call: &Collective, buffers: &Buffers<'_>) -> &'static str {
        let in_blocks = || self.hosts.in_blocks_of().is_some();
        match (call.signature.op, buffers) {
            (OpKind::Gather | OpKind::Scatter | OpKind::AllToAll, _) => FLAT,
            _ if call.layout.is_empty() => SPEAKERS,
            (OpKind::AllReduce, Buffers::InPlace(buffer)) if self.slices(buffer.len()) => SLICES,
            (OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast, Buffers::InPlace(_)) => SPEAKERS,
            (OpKind::AllGather | OpKind::Split, Buffers::InPlace(_)) | (OpKind::ReduceScatter, _)
                if in_blocks() =>
            {
                SLICES
            }
            _ => FLAT,
        }
    }

    fn slices(&self, bytes: usize) -> bool {
        self.hosts.per_host().is_some() && bytes >= self.sliced_from
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
    fn perform(&self, call: &Collective, buffers: Buffers<'_>) -> Result<()> {
        match (call.signature.op, buffers) {
            (OpKind::Gather | OpKind::Scatter | OpKind::AllToAll, buffers) => self.flat(call, buffers),
            // Nothing to move, but ranks that disagree must still find out.
            _ if call.layout.is_empty() => self.barrier(),
            (OpKind::AllReduce, Buffers::InPlace(buffer)) => self.all_reduce(buffer),
            (OpKind::Reduce, Buffers::InPlace(buffer)) => self.reduce(buffer),
            (OpKind::Broadcast, Buffers::InPlace(buffer)) => self.broadcast(buffer),
            (op, buffers) => match (op, self.levels.hosts.in_blocks_of(), buffers) {
                (OpKind::AllGather | OpKind::Split, Some(per_host), Buffers::InPlace(buffer)) => {
                    self.all_gather(per_host, &call.layout, buffer)
                }
                (OpKind::ReduceScatter, Some(per_host), buffers) => {
                    self.reduce_scatter(per_host, &call.layout, buffers)
                }
                (_, _, buffers) => self.flat(call, buffers),
            },
        }
    }

    /// Among all ranks at once.
    fn flat(&self, call: &Collective, buffers: Buffers<'_>) -> Result<()> {
        self.levels.flat.perform_part(self.whole, call, buffers, self.levels.health.members().len(), None)
    }

    /// Among the ranks of this host.
    fn inside(&self, op: OpKind, root: Option<usize>, layout: Layout, buffers: Buffers<'_>) -> Result<()> {
        let Some(inside) = &self.levels.inside else { return Ok(()) };
        inside.perform_part(self.whole, &self.part(op, root, layout), buffers)
    }

    /// Among the ranks of this host: their sums, of which no one is a result yet.
    fn sum_inside(
        &self,
        op: OpKind,
        root: Option<usize>,
        layout: Layout,
        buffer: &mut [u8],
        sums: Option<&mut Partials>,
    ) -> Result<()> {
        let (Some(inside), all) = (&self.levels.inside, 0..buffer.len()) else { return Ok(()) };
        let part = self.part_of_sum(op, root, layout, sums.is_some());
        let buffer = sums.map_or(buffer, |sums| sums.of(&all));
        inside.perform_part(self.whole, &part, Buffers::InPlace(buffer))
    }

    /// Among the ranks at this place on all hosts, in place. What `sums` has is combined instead of the buffer; the result is in the buffer.
    fn across(
        &self,
        op: OpKind,
        root: Option<usize>,
        layout: Layout,
        buffer: &mut [u8],
        sums: Option<Partials>,
    ) -> Result<()> {
        let across = self.levels.across.as_ref();
        let across =
            across.ok_or_else(|| Error::Internal { what: "a rank without links to other hosts".into() })?;
        let (part, all) = (self.part(op, root, layout), self.levels.health.members().len());
        across.perform_part(self.whole, &part, Buffers::InPlace(buffer), all, sums)
    }

    fn part(&self, op: OpKind, root: Option<usize>, layout: Layout) -> Collective {
        let Signature { dtype, reduce, ref site, .. } = *self.whole.signature;
        let reduces = matches!(op, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Reduce);
        let signature = Signature {
            op,
            dtype,
            count: layout.len() as u64,
            reduce: reduce.filter(|_| reduces),
            root: root.map(|root| root as u32),
            detail: 0,
            method: Method::UNSAID,
            site: site.clone(),
        };
        Collective { signature, layout, recv_layout: None }
    }

    /// Averages are only summed up, as `f32` if they are half types: who has seen all contributions divides.
    fn part_of_sum(&self, op: OpKind, root: Option<usize>, layout: Layout, is_wide: bool) -> Collective {
        let mut part = self.part(op, root, layout);
        let signature = &mut part.signature;
        let sum = |op| if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        signature.reduce = signature.reduce.map(sum);
        signature.dtype = if is_wide { Some(DType::F32) } else { signature.dtype };
        part
    }

    /// Room for the sums of half types in a buffer of `len` bytes, and what fills it; `None` for all others, which are summed up in place.
    fn sums(&self, len: usize) -> Result<Option<(Arithmetic, Partials)>> {
        let arithmetic = Arithmetic::of(self.whole.signature, 1)?.filter(Arithmetic::is_wide);
        Ok(arithmetic.map(|arithmetic| (arithmetic, Partials::new(len))))
    }

    /// What the buffer contributes to sums of half types.
    fn widened(&self, buffer: &[u8]) -> Result<Option<Partials>> {
        Ok(self.sums(buffer.len())?.map(|(arithmetic, mut sums)| {
            arithmetic.widen(buffer, sums.of(&(0..buffer.len())));
            sums
        }))
    }

    fn element(&self) -> usize {
        self.whole.signature.dtype.map_or(1, DType::size)
    }

    fn bytes(&self, elements: Range<usize>) -> Range<usize> {
        elements.start * self.element()..elements.end * self.element()
    }

    /// One block for each rank of this host.
    fn for_inside(&self, len: usize) -> Layout {
        Layout::even(self.levels.hosts.members(self.host).len(), len)
    }

    /// One block for each host.
    fn for_across(&self, len: usize) -> Layout {
        Layout::even(self.levels.hosts.len(), len)
    }

    /// The place on every host that speaks for it in an operation with this root: the root's, where all hosts have it.
    fn speaker(&self, root_index: usize) -> usize {
        if self.levels.hosts.per_host().is_some() { root_index } else { 0 }
    }

    fn barrier(&self) -> Result<()> {
        self.inside(OpKind::Barrier, None, self.for_inside(0), Buffers::InPlace(&mut []))?;
        if self.index == 0 {
            self.across(OpKind::Barrier, None, self.for_across(0), &mut [], None)?;
        }
        self.inside(OpKind::Barrier, None, self.for_inside(0), Buffers::InPlace(&mut []))
    }

    fn all_reduce(&self, buffer: &mut [u8]) -> Result<()> {
        let (len, mut sums) = (buffer.len() / self.element(), self.widened(buffer)?);
        if self.levels.slices(buffer.len()) {
            let slices = self.for_inside(len);
            let own = slices.block(self.index);
            self.sum_inside(OpKind::ReduceScatter, None, slices.clone(), buffer, sums.as_mut())?;
            let bytes = self.bytes(own.clone());
            let sums = sums.map(|sums| sums.from(bytes.start));
            self.across(OpKind::AllReduce, None, self.for_across(own.len()), &mut buffer[bytes], sums)?;
            return self.inside(OpKind::AllGather, None, slices, Buffers::InPlace(buffer));
        }
        self.sum_inside(OpKind::Reduce, Some(0), self.for_inside(len), buffer, sums.as_mut())?;
        if self.index == 0 {
            self.across(OpKind::AllReduce, None, self.for_across(len), buffer, sums)?;
        }
        self.inside(OpKind::Broadcast, Some(0), self.for_inside(len), Buffers::InPlace(buffer))
    }

    fn root(&self) -> (usize, usize) {
        self.levels.hosts.place(self.whole.signature.root.unwrap_or(0) as usize)
    }

    fn reduce(&self, buffer: &mut [u8]) -> Result<()> {
        let (len, (root_host, root_index)) = (buffer.len() / self.element(), self.root());
        let (speaker, mut sums) = (self.speaker(root_index), self.widened(buffer)?);
        self.sum_inside(OpKind::Reduce, Some(speaker), self.for_inside(len), buffer, sums.as_mut())?;
        if self.index == speaker {
            self.across(OpKind::Reduce, Some(root_host), self.for_across(len), buffer, sums)?;
        }
        if self.host == root_host && speaker != root_index {
            self.inside(OpKind::Broadcast, Some(speaker), self.for_inside(len), Buffers::InPlace(buffer))?;
        }
        Ok(())
    }

    fn broadcast(&self, buffer: &mut [u8]) -> Result<()> {
        let (len, (root_host, root_index)) = (buffer.len() / self.element(), self.root());
        let speaker = self.speaker(root_index);
        let root_host_has_it = speaker != root_index;
        if self.host == root_host && root_host_has_it {
            self.inside(OpKind::Broadcast, Some(root_index), self.for_inside(len), Buffers::InPlace(buffer))?;
        }
        if self.index == speaker {
            self.across(OpKind::Broadcast, Some(root_host), self.for_across(len), buffer, None)?;
        }
        if self.host == root_host && root_host_has_it {
            return Ok(());
        }
        self.inside(OpKind::Broadcast, Some(speaker), self.for_inside(len), Buffers::InPlace(buffer))
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
        let mut scratch = scratch::take(column.len() * self.element());
        let blocks = &mut bytemuck::cast_slice_mut(&mut scratch)[..column.len() * self.element()];
        let block_in = |host: usize| self.bytes(layout.block(host * per_host + self.index));
        blocks[self.bytes(column.block(self.host))].copy_from_slice(&buffer[block_in(self.host)]);
        let gathered = self.across(OpKind::AllGather, None, column.clone(), blocks, None);
        for host in (0..self.levels.hosts.len()).filter(|&host| host != self.host) {
            buffer[block_in(host)].copy_from_slice(&blocks[self.bytes(column.block(host))]);
        }
        scratch::keep(scratch);
        gathered?;
        (0..self.levels.hosts.len()).try_for_each(|host| {
            let (range, row) = self.row(host, per_host, layout);
            self.inside(OpKind::AllGather, None, row, Buffers::InPlace(&mut buffer[range]))
        })
    }

    /// First every rank gets its host's sums for those at its place on all hosts; then those add up theirs.
    fn reduce_scatter(&self, per_host: usize, layout: &Layout, mut buffers: Buffers<'_>) -> Result<()> {
        let column = self.column(per_host, layout);
        let mut scratch = scratch::take(column.len() * self.element());
        let sums = &mut bytemuck::cast_slice_mut(&mut scratch)[..column.len() * self.element()];
        let reduced = self.reduce_columns(per_host, layout, &column, &buffers, sums);
        let own = self.bytes(layout.block(self.levels.health.rank));
        let output = match &mut buffers {
            Buffers::InPlace(buffer) => &mut buffer[own],
            Buffers::Separate(_, output) => output,
        };
        output.copy_from_slice(&sums[self.bytes(column.block(self.host))]);
        scratch::keep(scratch);
        reduced
    }

    fn reduce_columns(
        &self,
        per_host: usize,
        layout: &Layout,
        column: &Layout,
        buffers: &Buffers<'_>,
        sums: &mut [u8],
    ) -> Result<()> {
        let input = match buffers {
            Buffers::InPlace(buffer) => &**buffer,
            Buffers::Separate(input, _) => input,
        };
        let mut wide = self.sums(sums.len())?;
        for host in 0..self.levels.hosts.len() {
            let (range, row) = self.row(host, per_host, layout);
            let own = self.bytes(column.block(host));
            let part = self.part_of_sum(OpKind::ReduceScatter, None, row, wide.is_some());
            let Some(inside) = &self.levels.inside else {
                return Err(Error::Internal { what: "hosts of one rank each are one level".into() });
            };
            match &mut wide {
                None => {
                    let buffers = Buffers::Separate(&input[range], &mut sums[own]);
                    inside.perform_part(self.whole, &part, buffers)?;
                }
                Some((_, wide)) => {
                    let mut row = self.widened(&input[range.clone()])?;
                    let row = row.as_mut().map_or(&mut [][..], |row| row.of(&(0..range.len())));
                    inside.perform_part(self.whole, &part, Buffers::Separate(row, wide.of(&own)))?;
                }
            }
        }
        let sums_as_f32 = wide.map(|(_, wide)| wide);
        self.across(OpKind::ReduceScatter, None, column.clone(), sums, sums_as_f32)
    }
}
