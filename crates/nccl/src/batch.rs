//! Operations that are launched together, on device buffers.

use crate::buffer::DeviceBuffer;
use crate::call::Call;
use crate::device::Device;
use crate::element::{DeviceElement, Reduction};
use crate::memory::Memory;
use crate::operation::{Carrier, ElementType, Operation};
use phalanx_core::{CallSite, Error, Method, OpKind, ReduceOp, Result, Signature};
use std::marker::PhantomData;

/// Operations to launch together: NCCL's group. It borrows the buffers, so that none is in it twice unless it is only read.
///
/// # Shape
/// As in a [`ProcessGroup`](https://docs.rs/phalanx-group): lengths are in elements; of an `all_gather` the output has as many times those of the input as
/// there are ranks, in the order of ranks, of a `reduce_scatter` the input those of the output.
///
/// # Errors
/// Every operation returns [`Misuse`](Error::Misuse) for lengths that don't fit and ranks that there are not, and [`Unsupported`](Error::Unsupported)
/// for what NCCL has not, or the host where data goes over that; the batch is as before then.
#[derive(Clone)]
pub struct Batch<'a> {
    rank: usize,
    world_size: usize,
    carrier: Carrier,
    operations: Vec<Operation>,
    /// Each piece once.
    memory: Vec<&'a Memory>,
    buffers: PhantomData<&'a mut ()>,
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.operations.iter().map(|operation| (operation.op, operation.count)))
            .finish()
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(rank: usize, world_size: usize, carrier: Carrier) -> Self {
        let (operations, memory) = (Vec::new(), Vec::new());
        Self { rank, world_size, carrier, operations, memory, buffers: PhantomData }
    }

    /// Every rank ends with the combination of all.
    pub fn all_reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        let buffer = &*buffer;
        self.push(OpKind::AllReduce, buffer.len(), Some(buffer), Some(buffer), Some(reduction.into()), None)
    }

    /// As [`all_reduce`](Self::all_reduce), into another buffer.
    pub fn all_reduce_into<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        let op = OpKind::AllReduce;
        self.equal(op, "the output", output.len(), input.len())?;
        self.push(op, input.len(), Some(input), Some(output), Some(reduction.into()), None)
    }

    /// `root` ends with the combination of all; elsewhere the buffer stays as it is.
    pub fn reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        let (buffer, reduction) = (&*buffer, Some(reduction.into()));
        self.push(OpKind::Reduce, buffer.len(), Some(buffer), Some(buffer), reduction, Some(root))
    }

    /// Every rank ends with what `root` has.
    pub fn broadcast<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<()> {
        let buffer = &*buffer;
        self.push(OpKind::Broadcast, buffer.len(), Some(buffer), Some(buffer), None, Some(root))
    }

    /// Every rank ends with the inputs of all.
    pub fn all_gather<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<()> {
        let op = OpKind::AllGather;
        self.equal(op, "the output", output.len(), input.len() * self.world_size)?;
        self.push(op, input.len(), Some(input), Some(output), None, None)
    }

    /// As [`all_gather`](Self::all_gather), in place: block `rank` of `buffer` is this rank's input.
    pub fn all_gather_in_place<T: DeviceElement>(&mut self, buffer: &'a mut DeviceBuffer<T>) -> Result<()> {
        let (op, buffer) = (OpKind::AllGather, &*buffer);
        let count = self.equal_blocks(op, "the buffer", buffer.len())?;
        self.push(op, count, Some(buffer), Some(buffer), None, None)?;
        self.last().from += (self.rank * count * size_of::<T>()) as u64;
        Ok(())
    }

    /// Every rank ends with its part of the combination of all.
    pub fn reduce_scatter<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        let op = OpKind::ReduceScatter;
        self.equal(op, "the input", input.len(), output.len() * self.world_size)?;
        self.push(op, output.len(), Some(input), Some(output), Some(reduction.into()), None)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), in place: block `rank` of `buffer` becomes the result; what is in the others
    /// afterwards is not specified.
    pub fn reduce_scatter_in_place<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        let (op, buffer) = (OpKind::ReduceScatter, &*buffer);
        let count = self.equal_blocks(op, "the buffer", buffer.len())?;
        self.push(op, count, Some(buffer), Some(buffer), Some(reduction.into()), None)?;
        self.last().to += (self.rank * count * size_of::<T>()) as u64;
        Ok(())
    }

    /// Every rank ends with its part of the input of each.
    pub fn all_to_all<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<()> {
        let op = OpKind::AllToAll;
        self.equal(op, "the output", output.len(), input.len())?;
        let count = self.equal_blocks(op, "the input", input.len())?;
        self.push(op, count, Some(input), Some(output), None, None)
    }

    /// `root` ends with the inputs of all in its output, which the others lack.
    pub fn gather<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: Option<&'a mut DeviceBuffer<T>>,
        root: usize,
    ) -> Result<()> {
        let op = OpKind::Gather;
        let output = self.at_root(op, output, root)?;
        if let Some(output) = &output {
            self.equal(op, "the output", output.len(), input.len() * self.world_size)?;
        }
        self.push(op, input.len(), Some(input), output.map(|output| &*output), None, Some(root))
    }

    /// Every rank ends with its part of the input of `root`, which the others lack.
    pub fn scatter<T: DeviceElement>(
        &mut self,
        input: Option<&'a DeviceBuffer<T>>,
        output: &'a mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<()> {
        let op = OpKind::Scatter;
        let input = self.at_root(op, input, root)?;
        if let Some(input) = input {
            self.equal(op, "the input", input.len(), output.len() * self.world_size)?;
        }
        self.push(op, output.len(), input, Some(output), None, Some(root))
    }

    /// As a collective of its own name: NCCL has none that waits, and does nothing at all for no elements.
    pub(crate) fn barrier(&mut self, one: &'a mut DeviceBuffer<u8>) -> Result<()> {
        let one = &*one;
        let reduction = Some(ReduceOp::Max.into());
        self.push(OpKind::Barrier, one.len(), Some(one), Some(one), reduction, None)
    }

    /// To `dst`; over NCCL to this rank too, which must receive it in the same batch then.
    pub fn send<T: DeviceElement>(&mut self, buffer: &'a DeviceBuffer<T>, dst: usize) -> Result<()> {
        self.push(OpKind::Send, buffer.len(), Some(buffer), None, None, Some(dst))
    }

    /// What `src` sends next to this rank; it must have this length.
    pub fn recv<T: DeviceElement>(&mut self, buffer: &'a mut DeviceBuffer<T>, src: usize) -> Result<()> {
        self.push(OpKind::Recv, buffer.len(), None, Some(buffer), None, Some(src))
    }

    /// What there is to do, in order.
    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// What NCCL is asked to do.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.operations.iter().flat_map(|all| all.calls(self.rank, self.world_size)).collect()
    }

    /// What the others must call too: the collective, or the first of several, with a hash of all. None where there are only messages.
    pub(crate) fn collective(&self, site: &CallSite) -> Option<Signature> {
        let collectives = self.operations.iter().filter(|operation| operation.is_collective());
        let mut all = collectives.map(|operation| operation.signature(self.world_size, site.clone()));
        let first = all.next()?;
        let others: Vec<usize> = all.map(|other| other.fingerprint() as usize).collect();
        let detail = if others.is_empty() { first.detail } else { all_of(&first, &others) };
        Some(Signature { detail, ..first })
    }

    /// The other ranks without whom it does not end: all, or, where there are only messages, their other ends.
    pub(crate) fn others(&self) -> Vec<usize> {
        let mut others: Vec<usize> = if self.operations.iter().any(Operation::is_collective) {
            (0..self.world_size).collect()
        } else {
            self.operations.iter().filter_map(|message| message.rank).collect()
        };
        others.sort_unstable();
        others.dedup();
        others.retain(|&rank| rank != self.rank);
        others
    }

    /// What errors call it.
    pub(crate) fn signature(&self, site: &CallSite) -> Signature {
        self.collective(site).unwrap_or_else(|| {
            let (op, count) =
                self.operations.first().map_or((OpKind::Send, 0), |first| (first.op, first.count));
            let (dtype, count, site) = (None, count as u64, site.clone());
            Signature { op, dtype, count, reduce: None, root: None, detail: 0, method: Method::UNSAID, site }
        })
    }

    /// Refuses a batch of another group, whose lengths fit another number of ranks, or for another carrier, and buffers of another
    /// device.
    pub(crate) fn check(
        &self,
        whose: &dyn std::fmt::Debug,
        place: (usize, usize, Carrier),
        device: &Device,
    ) -> Result<()> {
        let op = self.operations.first().map_or(OpKind::Barrier, |operation| operation.op);
        if (self.rank, self.world_size, self.carrier) != place {
            let what = format!("a batch of rank {}/{} for {whose:?}", self.rank, self.world_size);
            return Err(Error::misuse(op, what));
        }
        let elsewhere = self.memory.iter().find(|piece| piece.ordinal() != device.ordinal());
        elsewhere.map_or(Ok(()), |piece| {
            let what = format!("a buffer of device {} for a rank on {device}", piece.ordinal());
            Err(Error::misuse(op, what))
        })
    }

    /// Each piece once.
    pub(crate) fn memory(&self) -> &[&'a Memory] {
        &self.memory
    }

    fn push<T: DeviceElement>(
        &mut self,
        op: OpKind,
        count: usize,
        input: Option<&'a DeviceBuffer<T>>,
        output: Option<&'a DeviceBuffer<T>>,
        reduction: Option<Reduction>,
        rank: Option<usize>,
    ) -> Result<()> {
        let address = |buffer: Option<&DeviceBuffer<T>>| buffer.map_or(0, DeviceBuffer::address);
        let (from, to, element) = (address(input), address(output), ElementType::of::<T>());
        let operation = Operation { op, element, count, from, to, reduction, rank };
        operation.check(self.carrier, self.rank, self.world_size)?;
        self.operations.push(operation);
        for piece in [input, output].into_iter().flatten().filter_map(DeviceBuffer::memory) {
            if !self.memory.iter().any(|known| std::ptr::eq(*known, piece)) {
                self.memory.push(piece);
            }
        }
        Ok(())
    }

    fn last(&mut self) -> &mut Operation {
        self.operations.last_mut().expect("it was just pushed")
    }

    fn equal(&self, op: OpKind, what: &str, len: usize, wanted: usize) -> Result<()> {
        if len == wanted {
            return Ok(());
        }
        let what = format!("{what} has {len} elements instead of {wanted}, for {} ranks", self.world_size);
        Err(Error::misuse(op, what))
    }

    /// Elements of one rank's block, of which there is one for each rank.
    fn equal_blocks(&self, op: OpKind, what: &str, len: usize) -> Result<usize> {
        let count = len / self.world_size;
        self.equal(op, what, len, count * self.world_size).map(|()| count)
    }

    /// What only the root has.
    fn at_root<B>(&self, op: OpKind, buffer: Option<B>, root: usize) -> Result<Option<B>> {
        if root >= self.world_size {
            let what = format!("rank {root} in a communicator of {} ranks", self.world_size);
            return Err(Error::misuse(op, what));
        }
        match (buffer, self.rank == root) {
            (None, true) => Err(Error::misuse(op, "the root gave no buffer for all ranks")),
            (Some(_), false) => Err(Error::misuse(op, "a rank that is not the root gave a buffer for all")),
            (buffer, _) => Ok(buffer),
        }
    }
}

/// Tells one sequence of collectives from another.
fn all_of(first: &Signature, others: &[usize]) -> u64 {
    let all: Vec<usize> =
        std::iter::once(first.fingerprint() as usize).chain(others.iter().copied()).collect();
    Signature::detail_of(&all)
}
