//! Operations that are launched together, on device buffers.

use crate::buffer::DeviceBuffer;
use crate::call::{Call, Kind};
use crate::element::{DataType, DeviceElement, Reduction};
use crate::memory::Memory;
use phalanx_core::{Error, OpKind, Result};
use std::marker::PhantomData;

/// Operations to launch together: NCCL's group. It borrows the buffers, so that none is in it twice unless it is only read.
///
/// # Shape
/// As in a [`ProcessGroup`](https://docs.rs/phalanx-group): lengths are in elements; of an `all_gather` the output has as many times those of the input as
/// there are ranks, in the order of ranks, of a `reduce_scatter` the input those of the output.
///
/// # Errors
/// Every operation returns [`Misuse`](Error::Misuse) for lengths that don't fit and ranks that there are not, and [`Unsupported`](Error::Unsupported)
/// for what NCCL has not; the batch is as before then.
#[derive(Clone)]
pub struct Batch<'a> {
    rank: usize,
    world_size: usize,
    calls: Vec<Call>,
    memory: Vec<&'a Memory>,
    buffers: PhantomData<&'a mut ()>,
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.calls.iter().map(|call| (call.kind, call.count, call.data_type))).finish()
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(rank: usize, world_size: usize) -> Self {
        Self { rank, world_size, calls: Vec::new(), memory: Vec::new(), buffers: PhantomData }
    }

    /// Every rank ends with the combination of all.
    pub fn all_reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.push(Kind::AllReduce(reduction.into()), Some(buffer), Some(buffer), buffer.len())
    }

    /// As [`all_reduce`](Self::all_reduce), into another buffer.
    pub fn all_reduce_into<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.equal(OpKind::AllReduce, "the output", output.len(), input.len())?;
        self.push(Kind::AllReduce(reduction.into()), Some(input), Some(output), input.len())
    }

    /// `root` ends with the combination of all; elsewhere the buffer stays as it is.
    pub fn reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        let kind = Kind::Reduce { reduction: reduction.into(), root };
        self.push(kind, Some(buffer), Some(buffer), buffer.len())
    }

    /// Every rank ends with what `root` has.
    pub fn broadcast<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<()> {
        self.push(Kind::Broadcast { root }, Some(buffer), Some(buffer), buffer.len())
    }

    /// Every rank ends with the inputs of all.
    pub fn all_gather<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<()> {
        self.equal(OpKind::AllGather, "the output", output.len(), input.len() * self.world_size)?;
        self.push(Kind::AllGather, Some(input), Some(output), input.len())
    }

    /// Every rank ends with its part of the combination of all.
    pub fn reduce_scatter<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.equal(OpKind::ReduceScatter, "the input", input.len(), output.len() * self.world_size)?;
        self.push(Kind::ReduceScatter(reduction.into()), Some(input), Some(output), output.len())
    }

    /// Every rank ends with its part of the input of each.
    pub fn all_to_all<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<()> {
        self.equal(OpKind::AllToAll, "the output", output.len(), input.len())?;
        let block = input.len() / self.world_size;
        self.equal(OpKind::AllToAll, "the input", input.len(), block * self.world_size)?;
        for peer in 0..self.world_size {
            self.push_part(Kind::Send { dst: peer }, input, peer * block, block)?;
            self.push_part(Kind::Recv { src: peer }, output, peer * block, block)?;
        }
        Ok(())
    }

    /// `root` ends with the inputs of all in its output, which the others lack.
    pub fn gather<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: Option<&'a mut DeviceBuffer<T>>,
        root: usize,
    ) -> Result<()> {
        let output = self.at_root(OpKind::Gather, output, root)?;
        if let Some(output) = &output {
            self.equal(OpKind::Gather, "the output", output.len(), input.len() * self.world_size)?;
        }
        self.push_part(Kind::Send { dst: root }, input, 0, input.len())?;
        let Some(output) = output else { return Ok(()) };
        for src in 0..self.world_size {
            self.push_part(Kind::Recv { src }, output, src * input.len(), input.len())?;
        }
        Ok(())
    }

    /// Every rank ends with its part of the input of `root`, which the others lack.
    pub fn scatter<T: DeviceElement>(
        &mut self,
        input: Option<&'a DeviceBuffer<T>>,
        output: &'a mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<()> {
        let input = self.at_root(OpKind::Scatter, input, root)?;
        if let Some(input) = input {
            self.equal(OpKind::Scatter, "the input", input.len(), output.len() * self.world_size)?;
        }
        self.push_part(Kind::Recv { src: root }, output, 0, output.len())?;
        let Some(input) = input else { return Ok(()) };
        for dst in 0..self.world_size {
            self.push_part(Kind::Send { dst }, input, dst * output.len(), output.len())?;
        }
        Ok(())
    }

    /// To `dst`, this rank included, which must receive it in the same batch then.
    pub fn send<T: DeviceElement>(&mut self, buffer: &'a DeviceBuffer<T>, dst: usize) -> Result<()> {
        self.push_part(Kind::Send { dst }, buffer, 0, buffer.len())
    }

    /// What `src` sends next to this rank; it must have this length.
    pub fn recv<T: DeviceElement>(&mut self, buffer: &'a mut DeviceBuffer<T>, src: usize) -> Result<()> {
        self.push_part(Kind::Recv { src }, buffer, 0, buffer.len())
    }

    pub(crate) fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Each piece once.
    pub(crate) fn memory(&self) -> &[&'a Memory] {
        &self.memory
    }

    fn push_part<T: DeviceElement>(
        &mut self,
        kind: Kind,
        buffer: &'a DeviceBuffer<T>,
        from: usize,
        count: usize,
    ) -> Result<()> {
        let before = self.calls.len();
        self.push(kind, Some(buffer), Some(buffer), count)?;
        if let Some(call) = self.calls.get_mut(before) {
            let offset = (from * size_of::<T>()) as u64;
            (call.from, call.to) = (call.from + offset, call.to + offset);
        }
        Ok(())
    }

    /// NCCL does nothing for no elements, and needs not be asked.
    fn push<T: DeviceElement>(
        &mut self,
        kind: Kind,
        input: Option<&'a DeviceBuffer<T>>,
        output: Option<&'a DeviceBuffer<T>>,
        count: usize,
    ) -> Result<()> {
        let is_reduction = matches!(kind, Kind::AllReduce(_) | Kind::Reduce { .. } | Kind::ReduceScatter(_));
        // What is only moved may be any bytes.
        let (data_type, count) = match T::DATA_TYPE {
            Some(data_type) => (data_type, count),
            None if is_reduction => {
                let hint = format!("NCCL does not reduce {}", std::any::type_name::<T>());
                return Err(Error::Unsupported { op: kind.op(), backend: "nccl", hint });
            }
            None => (DataType::U8, count * size_of::<T>()),
        };
        let address = |buffer: Option<&DeviceBuffer<T>>| buffer.map_or(0, DeviceBuffer::address);
        let call = Call { kind, from: address(input), to: address(output), count, data_type };
        call.check(self.world_size)?;
        if count > 0 {
            self.calls.push(call);
        }
        for piece in [input, output].into_iter().flatten().filter_map(DeviceBuffer::memory) {
            if !self.memory.iter().any(|known| std::ptr::eq(*known, piece)) {
                self.memory.push(piece);
            }
        }
        Ok(())
    }

    fn equal(&self, op: OpKind, what: &str, len: usize, wanted: usize) -> Result<()> {
        if len == wanted {
            return Ok(());
        }
        let what = format!("{what} has {len} elements instead of {wanted}, for {} ranks", self.world_size);
        Err(Error::misuse(op, what))
    }

    /// What only the root has.
    fn at_root<B>(&self, op: OpKind, buffer: Option<B>, root: usize) -> Result<Option<B>> {
        match (buffer, self.rank == root) {
            (None, true) => Err(Error::misuse(op, "the root gave no buffer for all ranks")),
            (Some(_), false) => Err(Error::misuse(op, "a rank that is not the root gave a buffer for all")),
            (buffer, _) => Ok(buffer),
        }
    }
}
