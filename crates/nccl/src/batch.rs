//! Operations that are launched together, on device buffers.

use crate::action::Action;
use crate::buffer::DeviceBuffer;
use crate::call::Call;
use crate::device::Device;
use crate::element::DeviceElement;
use crate::memory::Memory;
use crate::operation::{Carrier, ElementType, Operation};
use phalanx_core::{CallSite, Error, Layout, Method, OpKind, ReduceOp, Result, Signature};
use phalanx_group::{BlockExchange, Buffers, Request};
use std::cell::Cell;
use std::marker::PhantomData;

/// A collective on memory of devices.
pub(crate) type DeviceRequest<'a, T> = Request<&'a DeviceBuffer<T>, &'a mut DeviceBuffer<T>>;

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
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// let mut batch = devices.batch();
    /// batch.all_reduce(&mut buffer, ReduceOp::Sum)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn all_reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::InPlace(buffer);
        self.request(Request::AllReduce { buffers, reduce: op })
    }

    /// As [`all_reduce`](Self::all_reduce), into another buffer.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// let mut output = DeviceBuffer::zeros(stream, 2)?;
    /// let mut batch = devices.batch();
    /// batch.all_reduce_into(&input, &mut output, ReduceOp::Sum)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [1.0, 2.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn all_reduce_into<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::Separate(input, output);
        self.request(Request::AllReduce { buffers, reduce: op })
    }

    /// `root` ends with the combination of all; elsewhere the buffer stays as it is.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// let mut batch = devices.batch();
    /// batch.reduce(&mut buffer, ReduceOp::Sum, 0)?;
    /// devices.launch(&batch)?.wait()?;
    /// if rank == 0 {
    ///     assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// }
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn reduce<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.request(Request::Reduce { buffer, reduce: op, root })
    }

    /// Every rank ends with what `root` has.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// let mut batch = devices.batch();
    /// batch.broadcast(&mut buffer, 1)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0; 3]); // what rank 1 has
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn broadcast<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<()> {
        self.request(Request::Broadcast { buffer, root })
    }

    /// Every rank ends with the inputs of all.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut output = DeviceBuffer::zeros(stream, 2)?;
    /// let mut batch = devices.batch();
    /// batch.all_gather(&input, &mut output)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [0.0, 1.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn all_gather<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<()> {
        let blocks = self.blocks_of(input.len());
        self.request(Request::AllGather { buffers: Buffers::Separate(input, output), blocks })
    }

    /// As [`all_gather`](Self::all_gather), in place: block `rank` of `buffer` is this rank's input.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[[5.0f32, 0.0], [0.0, 7.0]][rank])?;
    /// let mut batch = devices.batch();
    /// batch.all_gather_in_place(&mut buffer)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [5.0, 7.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn all_gather_in_place<T: DeviceElement>(&mut self, buffer: &'a mut DeviceBuffer<T>) -> Result<()> {
        let blocks = self.blocks_of(buffer.len() / self.world_size);
        self.request(Request::AllGather { buffers: Buffers::InPlace(buffer), blocks })
    }

    /// Every rank ends with its part of the combination of all.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// let mut output = DeviceBuffer::zeros(stream, 1)?;
    /// let mut batch = devices.batch();
    /// batch.reduce_scatter(&input, &mut output, ReduceOp::Sum)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[2.0], [4.0]][rank]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn reduce_scatter<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let (blocks, reduce) = (self.blocks_of(output.len()), op);
        self.request(Request::ReduceScatter { buffers: Buffers::Separate(input, output), blocks, reduce })
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), in place: block `rank` of `buffer` becomes the result; what is in the others
    /// afterwards is not specified.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// let mut batch = devices.batch();
    /// batch.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?[rank], [2.0, 4.0][rank]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn reduce_scatter_in_place<T: DeviceElement>(
        &mut self,
        buffer: &'a mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let (blocks, reduce) = (self.blocks_of(buffer.len() / self.world_size), op);
        self.request(Request::ReduceScatter { buffers: Buffers::InPlace(buffer), blocks, reduce })
    }

    /// Every rank ends with its part of the input of each.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[[1.0f32, 2.0], [3.0, 4.0]][rank])?;
    /// let mut output = DeviceBuffer::zeros(stream, 2)?;
    /// let mut batch = devices.batch();
    /// batch.all_to_all(&input, &mut output)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[1.0, 3.0], [2.0, 4.0]][rank]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn all_to_all<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<()> {
        let blocks = BlockExchange::Even { count: input.len() / self.world_size };
        self.request(Request::AllToAll { buffers: Buffers::Separate(input, output), blocks })
    }

    /// `root` ends with the inputs of all in its output, which the others lack.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut output = (rank == 0).then(|| DeviceBuffer::zeros(stream, 2)).transpose()?;
    /// let mut batch = devices.batch();
    /// batch.gather(&input, output.as_mut(), 0)?;
    /// devices.launch(&batch)?.wait()?;
    /// if let Some(output) = output {
    ///     assert_eq!(output.to_host(stream, limit)?, [0.0, 1.0]);
    /// }
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn gather<T: DeviceElement>(
        &mut self,
        input: &'a DeviceBuffer<T>,
        output: Option<&'a mut DeviceBuffer<T>>,
        root: usize,
    ) -> Result<()> {
        let blocks = self.blocks_of(input.len());
        self.request(Request::Gather { input: Some(input), output, blocks, root })
    }

    /// Every rank ends with its part of the input of `root`, which the others lack.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let input = (rank == 0).then(|| DeviceBuffer::from_host(stream, &[1.0f32, 2.0])).transpose()?;
    /// let mut output = DeviceBuffer::zeros(stream, 1)?;
    /// let mut batch = devices.batch();
    /// batch.scatter(input.as_ref(), &mut output, 0)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[1.0], [2.0]][rank]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn scatter<T: DeviceElement>(
        &mut self,
        input: Option<&'a DeviceBuffer<T>>,
        output: &'a mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<()> {
        let blocks = self.blocks_of(output.len());
        self.request(Request::Scatter { input, output: Some(output), blocks, root })
    }

    /// As a collective of its own name: NCCL has none that waits, and does nothing at all for no elements.
    pub(crate) fn barrier(&mut self, one: &'a mut DeviceBuffer<u8>) -> Result<()> {
        let (buffers, reduce) = (Buffers::InPlace(one), ReduceOp::Max);
        self.request_as(OpKind::Barrier, Request::AllReduce { buffers, reduce })
    }

    /// To `dst`; over NCCL to this rank too, which must receive it in the same batch then.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mine = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// let mut theirs = DeviceBuffer::<f32>::zeros(stream, 3)?;
    /// let mut batch = devices.batch();
    /// batch.send(&mine, 1 - rank)?;
    /// batch.recv(&mut theirs, 1 - rank)?; // both at the same time
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(theirs.to_host(stream, limit)?, [1.0 - rank as f32; 3]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn send<T: DeviceElement>(&mut self, buffer: &'a DeviceBuffer<T>, dst: usize) -> Result<()> {
        let action = Action::Send { from: buffer.address(), dst };
        self.push::<T>(OpKind::Send, action, buffer.len(), [buffer.memory(), None])
    }

    /// What `src` sends next to this rank; it must have this length.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mine = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// let mut theirs = DeviceBuffer::<f32>::zeros(stream, 3)?;
    /// let mut batch = devices.batch();
    /// batch.send(&mine, 1 - rank)?;
    /// batch.recv(&mut theirs, 1 - rank)?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(theirs.to_host(stream, limit)?, [1.0 - rank as f32; 3]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn recv<T: DeviceElement>(&mut self, buffer: &'a mut DeviceBuffer<T>, src: usize) -> Result<()> {
        let (action, buffer) = (Action::Recv { to: buffer.address(), src }, &*buffer);
        self.push::<T>(OpKind::Recv, action, buffer.len(), [buffer.memory(), None])
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
            self.operations.iter().filter_map(Operation::rank).collect()
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
            let what = format!(
                "the batch was made for rank {}/{} of another group, not for {whose:?}; `batch()` of that makes one",
                self.rank, self.world_size
            );
            return Err(Error::misuse(op, what));
        }
        let elsewhere = self.memory.iter().find(|piece| piece.ordinal() != device.ordinal());
        elsewhere.map_or(Ok(()), |piece| {
            let what = format!(
                "a buffer is on device {}, but this rank works on {device}; allocate it there",
                piece.ordinal()
            );
            Err(Error::misuse(op, what))
        })
    }

    /// Each piece once.
    pub(crate) fn memory(&self) -> &[&'a Memory] {
        &self.memory
    }

    /// Adds a collective of the group's own form: for libraries that pass on what they are asked for. Blocks are even.
    ///
    /// # Errors
    /// As for the method of its name; [`Unsupported`](Error::Unsupported) for blocks that are not even and for an
    /// all_to_all in place, which go over no device.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{Buffers, ReduceOp, Request};
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (devices.rank(), devices.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// let mut batch = devices.batch();
    /// batch.request(Request::AllReduce { buffers: Buffers::InPlace(&mut buffer), reduce: ReduceOp::Sum })?;
    /// devices.launch(&batch)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// # Ok::<(), phalanx_core::Error>(()) }).unwrap();
    /// ```
    pub fn request<T: DeviceElement>(&mut self, request: DeviceRequest<'a, T>) -> Result<()> {
        let even = |blocks: &Layout| *blocks == self.blocks_of(blocks.len() / self.world_size);
        let is_even = request.blocks().is_none_or(even)
            && !matches!(request, Request::AllToAll { blocks: BlockExchange::Uneven { .. }, .. });
        if !is_even {
            let backend = if self.carrier == Carrier::Host { "host" } else { "nccl" };
            let hint = "blocks of unlike lengths are for memory of the host".to_owned();
            return Err(Error::Unsupported { op: request.kind(), backend, hint });
        }
        self.request_as(request.kind(), request)
    }

    fn request_as<T: DeviceElement>(&mut self, op: OpKind, request: DeviceRequest<'a, T>) -> Result<()> {
        request.check(size_of::<T>(), self.rank, self.world_size).map_err(|why| Error::misuse(op, why))?;
        let blocks = request.blocks().map(|blocks| blocks.len() / self.world_size);
        let count = match &request {
            Request::AllToAll { blocks: BlockExchange::Even { count }, .. } => *count,
            _ => blocks.unwrap_or_else(|| request.count(size_of::<T>())),
        };
        let pieces = Cell::new([None, None]);
        let add = |piece: Option<&'a Memory>| pieces.set([piece, pieces.get()[0]]);
        let request = request.map(
            |input| {
                add(input.memory());
                input.address()
            },
            |output| {
                let output: &'a DeviceBuffer<T> = output;
                add(output.memory());
                output.address()
            },
        );
        self.push::<T>(op, Action::Collective(request), count, pieces.get())
    }

    fn push<T: DeviceElement>(
        &mut self,
        op: OpKind,
        action: Action,
        count: usize,
        pieces: [Option<&'a Memory>; 2],
    ) -> Result<()> {
        let operation = Operation { op, action, element: ElementType::of::<T>(), count };
        operation.check(self.carrier, self.rank, self.world_size)?;
        self.operations.push(operation);
        for piece in pieces.into_iter().flatten() {
            if !self.memory.iter().any(|known| std::ptr::eq(*known, piece)) {
                self.memory.push(piece);
            }
        }
        Ok(())
    }

    /// A block of `count` elements for each rank.
    fn blocks_of(&self, count: usize) -> Layout {
        Layout::even(self.world_size, count * self.world_size)
    }
}

/// Tells one sequence of collectives from another.
fn all_of(first: &Signature, others: &[usize]) -> u64 {
    let all: Vec<usize> =
        std::iter::once(first.fingerprint() as usize).chain(others.iter().copied()).collect();
    Signature::detail_of(&all)
}
