//! Operations that are launched together, on device buffers.

use crate::buffer::DeviceBuffer;
use crate::call::{Call, Kind};
use crate::comm::Communicator;
use crate::element::{DataType, DeviceElement, Reduction};
use crate::load::Version;
use crate::memory::Memory;
use phalanx_core::{CallSite, DType, Error, OpKind, ReduceOp, Result, Signature};
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
    version: Version,
    calls: Vec<Call>,
    memory: Vec<&'a Memory>,
    /// What all ranks must mean alike: the collectives, in order.
    collectives: Vec<Collective>,
    buffers: PhantomData<&'a mut ()>,
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.calls.iter().map(|call| (call.kind, call.count, call.data_type))).finish()
    }
}

/// A collective as all ranks see it.
#[derive(Debug, Clone, Copy)]
struct Collective {
    op: OpKind,
    dtype: Option<DType>,
    count: usize,
    reduction: Option<Reduction>,
    root: Option<usize>,
    /// Tells the types that phalanx has not.
    data_type: Option<DataType>,
}

impl Collective {
    fn reduce(&self) -> Option<ReduceOp> {
        self.reduction.map(|reduction| match reduction {
            Reduction::Op(op) => op,
            Reduction::PreMulSum(_) => ReduceOp::Sum,
        })
    }

    /// What a [`Signature`] has no field for; 0 where there is nothing.
    fn detail(&self) -> u64 {
        match (self.reduction, self.dtype) {
            (Some(Reduction::PreMulSum(scalar)), _) => {
                Signature::detail_of(&[scalar.to_bits() as usize, self.type_number()])
            }
            (_, None) => Signature::detail_of(&[self.type_number()]),
            _ => 0,
        }
    }

    fn type_number(&self) -> usize {
        self.data_type.map_or(usize::MAX, |data_type| data_type as usize)
    }

    fn signature(&self, site: CallSite) -> Signature {
        Signature {
            op: self.op,
            dtype: self.dtype,
            count: self.count as u64,
            reduce: self.reduce(),
            root: self.root.map(|root| root as u32),
            detail: self.detail(),
            site,
        }
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(rank: usize, world_size: usize, version: Version) -> Self {
        Self {
            rank,
            world_size,
            version,
            calls: Vec::new(),
            memory: Vec::new(),
            collectives: Vec::new(),
            buffers: PhantomData,
        }
    }

    /// Every rank ends with the combination of all.
    pub fn all_reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        let reduction = reduction.into();
        self.push(Kind::AllReduce(reduction), Some(buffer), Some(buffer), buffer.len())?;
        self.all_call::<T>(OpKind::AllReduce, buffer.len(), Some(reduction), None)
    }

    /// As [`all_reduce`](Self::all_reduce), into another buffer.
    pub fn all_reduce_into<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.equal(OpKind::AllReduce, "the output", output.len(), input.len())?;
        let reduction = reduction.into();
        self.push(Kind::AllReduce(reduction), Some(input), Some(output), input.len())?;
        self.all_call::<T>(OpKind::AllReduce, input.len(), Some(reduction), None)
    }

    /// `root` ends with the combination of all; elsewhere the buffer stays as it is.
    pub fn reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        let reduction = reduction.into();
        self.push(Kind::Reduce { reduction, root }, Some(buffer), Some(buffer), buffer.len())?;
        self.all_call::<T>(OpKind::Reduce, buffer.len(), Some(reduction), Some(root))
    }

    /// Every rank ends with what `root` has.
    pub fn broadcast<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<()> {
        self.push(Kind::Broadcast { root }, Some(buffer), Some(buffer), buffer.len())?;
        self.all_call::<T>(OpKind::Broadcast, buffer.len(), None, Some(root))
    }

    /// Every rank ends with the inputs of all.
    pub fn all_gather<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<()> {
        self.equal(OpKind::AllGather, "the output", output.len(), input.len() * self.world_size)?;
        self.push(Kind::AllGather, Some(input), Some(output), input.len())?;
        self.all_call::<T>(OpKind::AllGather, output.len(), None, None)
    }

    /// Every rank ends with its part of the combination of all.
    pub fn reduce_scatter<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.equal(OpKind::ReduceScatter, "the input", input.len(), output.len() * self.world_size)?;
        let reduction = reduction.into();
        self.push(Kind::ReduceScatter(reduction), Some(input), Some(output), output.len())?;
        self.all_call::<T>(OpKind::ReduceScatter, input.len(), Some(reduction), None)
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
        self.all_call::<T>(OpKind::AllToAll, input.len(), None, None)
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
        self.all_call::<T>(OpKind::Gather, input.len() * self.world_size, None, Some(root))?;
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
        self.all_call::<T>(OpKind::Scatter, output.len() * self.world_size, None, Some(root))?;
        self.push_part(Kind::Recv { src: root }, output, 0, output.len())?;
        let Some(input) = input else { return Ok(()) };
        for dst in 0..self.world_size {
            self.push_part(Kind::Send { dst }, input, dst * output.len(), output.len())?;
        }
        Ok(())
    }

    /// As a collective of its own name: NCCL has none that waits, and does nothing at all for no elements.
    pub(crate) fn barrier(&mut self, one: &'a mut DeviceBuffer<u8>) -> Result<()> {
        self.push(Kind::AllReduce(ReduceOp::Max.into()), Some(one), Some(one), one.len())?;
        let (op, data_type) = (OpKind::Barrier, None);
        self.collectives.push(Collective {
            op,
            dtype: None,
            count: 0,
            reduction: None,
            root: None,
            data_type,
        });
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

    /// What the others must call too: the collective, or the first of several, with a hash of all. None where there are only messages.
    pub(crate) fn signature(&self, site: CallSite) -> Option<Signature> {
        let (first, others) = self.collectives.split_first()?;
        let mut signature = first.signature(site.clone());
        if !others.is_empty() {
            let all = self.collectives.iter().map(|call| call.signature(site.clone()).fingerprint() as usize);
            signature.detail = Signature::detail_of(&all.collect::<Vec<_>>());
        }
        Some(signature)
    }

    /// For messages, which have no signature.
    pub(crate) fn message(&self, site: CallSite) -> Signature {
        let op = self.calls.first().map_or(OpKind::Send, |call| call.kind.op());
        let count = self.calls.first().map_or(0, |call| call.count as u64);
        Signature { op, dtype: None, count, reduce: None, root: None, detail: 0, site }
    }

    /// Refuses a batch of another communicator, whose lengths fit another number of ranks, and buffers of another device.
    pub(crate) fn check(&self, comm: &Communicator) -> Result<()> {
        let op = self.calls.first().map_or(OpKind::Barrier, |call| call.kind.op());
        if (self.rank, self.world_size) != (comm.rank(), comm.world_size()) {
            let what = format!("a batch of rank {}/{} for {comm:?}", self.rank, self.world_size);
            return Err(Error::misuse(op, what));
        }
        let elsewhere = self.memory.iter().find(|piece| piece.ordinal() != comm.device().ordinal());
        elsewhere.map_or(Ok(()), |piece| {
            let what = format!("a buffer of device {} for a rank on {}", piece.ordinal(), comm.device());
            Err(Error::misuse(op, what))
        })
    }

    /// Each piece once.
    pub(crate) fn memory(&self) -> &[&'a Memory] {
        &self.memory
    }

    fn all_call<T: DeviceElement>(
        &mut self,
        op: OpKind,
        count: usize,
        reduction: Option<Reduction>,
        root: Option<usize>,
    ) -> Result<()> {
        let (dtype, data_type) = (T::DTYPE, T::DATA_TYPE);
        self.collectives.push(Collective { op, dtype, count, reduction, root, data_type });
        Ok(())
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
        let is_reduced = T::DATA_TYPE.filter(|data_type| self.version >= data_type.since());
        // What is only moved may be any bytes.
        let (data_type, count) = match is_reduced {
            Some(data_type) => (data_type, count),
            None if is_reduction => {
                let hint = format!("NCCL {} does not reduce {}", self.version, std::any::type_name::<T>());
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
