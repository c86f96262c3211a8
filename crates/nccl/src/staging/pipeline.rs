//! A pipeline that performs one operation chunk by chunk: while the host works on one chunk, the next come to it and the last goes back.

use super::running::Running;
use super::shared::Shared;
use crate::action::Action;
use crate::in_order::use_in_order;
use crate::operation::Operation;
use crate::pinned::Pinned;
use crate::stream::Stream;
use crate::sys::cuda::{Code, RawPointer};
use phalanx_core::Result;
use phalanx_group::Request;
use std::ffi::c_void;
use std::ops::Range;

/// Bytes of a chunk: enough for copies and the network to run at full speed.
const CHUNK: usize = 4 << 20;
/// Chunks on their way at a time: one comes, one is worked on, one goes.
const SLOTS: usize = 3;

/// The chunks of one operation that are on their way.
///
/// Where the data has a block for each rank, a chunk is the same part of every block. So each chunk is a whole operation, on less.
pub(super) struct Pipeline<'a> {
    shared: &'a Shared,
    operation: &'a Operation,
    running: &'a Running<'a>,
    on_rank: OnRank,
    /// Where the input is on the device, and the output.
    memory: (RawPointer, RawPointer),
    /// Elements of a block in each chunk but the last.
    step: usize,
    /// Pinned memory, in turns.
    slots: Vec<Pinned>,
}

/// The data of one rank, in blocks.
struct OnRank {
    /// Bytes of the inputs in a slot; outputs lie behind them. Memory that is changed in place counts as output.
    inputs: usize,
    outputs: usize,
    /// Bytes that are copied to the host, and back.
    read: usize,
    written: usize,
}

impl OnRank {
    fn of(operation: &Operation, rank: usize, world_size: usize) -> Self {
        let is_root = operation.rank() == Some(rank);
        let if_root = |blocks| if is_root { blocks } else { 0 };
        let separate = |inputs, outputs| Self { inputs, outputs, read: inputs, written: outputs };
        let in_place = |read, written| Self { inputs: 0, outputs: 1, read, written };
        let request = match &operation.action {
            Action::Collective(request) => request,
            Action::Send { .. } => return separate(1, 0),
            Action::Recv { .. } => return separate(0, 1),
        };
        match request {
            Request::AllReduce { .. } | Request::Scan { .. } => in_place(1, 1),
            Request::Reduce { .. } => in_place(1, if_root(1)),
            Request::Broadcast { .. } => in_place(if_root(1), 1 - if_root(1)),
            Request::AllGather { .. } => separate(1, world_size),
            Request::ReduceScatter { .. } => separate(world_size, 1),
            Request::AllToAll { .. } => separate(world_size, world_size),
            Request::Gather { .. } => separate(1, if_root(world_size)),
            Request::Scatter { .. } => separate(if_root(world_size), 1),
            Request::Barrier => separate(0, 0),
        }
    }
}

impl<'a> Pipeline<'a> {
    /// The first chunks are on their way to the host.
    pub(super) fn begin(
        shared: &'a Shared,
        operation: &'a Operation,
        running: &'a Running<'a>,
    ) -> Result<Self> {
        let (rank, world_size) = (running.health.control.rank(), running.health.control.world_size());
        let on_rank = OnRank::of(operation, rank, world_size);
        // The same on all ranks, whatever they have of it.
        let step = (CHUNK / operation.blocks(world_size) / operation.element.size).max(1);
        let slots = Vec::new();
        let memory = operation.memory(rank);
        let mut pipeline = Self { shared, operation, running, on_rank, memory, step, slots };
        let len = pipeline.slot_len(&(0..step.min(operation.count)));
        for chunk in 0..pipeline.chunks().min(SLOTS) {
            pipeline.slots.push(shared.device.staging().at_once(len)?);
            pipeline.fetch(chunk)?;
        }
        Ok(pipeline)
    }

    /// Performs the operation; the last chunks are on their way to the device then.
    pub(super) fn perform(&mut self) -> Result<()> {
        for chunk in 0..self.chunks() {
            let (elements, at) = (self.elements(chunk), chunk % self.slots.len());
            let (inputs, len) = (self.bytes(&elements) * self.on_rank.inputs, self.slot_len(&elements));
            let slot = &mut self.slots[at];
            self.running.wait(|left| slot.memory().wait(left))?;
            let (input, output) = slot.bytes()[..len].split_at_mut(inputs);
            (self.operation.element.on_host)(&self.running.group(), &self.operation.action, input, output)?;
            self.give_back(chunk)?;
            if chunk + self.slots.len() < self.chunks() {
                self.fetch(chunk + self.slots.len())?;
            }
        }
        Ok(())
    }

    fn chunks(&self) -> usize {
        self.operation.count.div_ceil(self.step)
    }

    /// Which of each block are in a chunk.
    fn elements(&self, chunk: usize) -> Range<usize> {
        chunk * self.step..self.operation.count.min((chunk + 1) * self.step)
    }

    fn bytes(&self, elements: &Range<usize>) -> usize {
        elements.len() * self.operation.element.size
    }

    fn slot_len(&self, elements: &Range<usize>) -> usize {
        self.bytes(elements) * (self.on_rank.inputs + self.on_rank.outputs)
    }

    /// The input of a chunk comes from the device, when its slot is free.
    fn fetch(&self, chunk: usize) -> Result<()> {
        let (table, stream) = (self.shared.device.cuda().table(), &self.shared.to_host);
        self.copy(stream, chunk, 0..self.on_rank.read, |offset, in_slot, len| {
            let (to, from) = (in_slot as *mut c_void, self.memory.0 + offset);
            // SAFETY: both have so many bytes, and live until the stream is past this.
            ("cuMemcpyDtoHAsync_v2", unsafe { (table.memcpy_to_host_async)(to, from, len, stream.raw()) })
        })
    }

    /// The output of a chunk goes to the device.
    fn give_back(&self, chunk: usize) -> Result<()> {
        let (table, stream) = (self.shared.device.cuda().table(), &self.shared.to_device);
        let outputs = self.on_rank.inputs..self.on_rank.inputs + self.on_rank.written;
        self.copy(stream, chunk, outputs, |offset, in_slot, len| {
            let (to, from) = (self.memory.1 + offset, in_slot as *const c_void);
            // SAFETY: both have so many bytes, and live until the stream is past this.
            ("cuMemcpyHtoDAsync_v2", unsafe { (table.memcpy_to_device_async)(to, from, len, stream.raw()) })
        })
    }

    /// Puts the copies of these blocks of a slot on `stream`. `one` is given where the part of the block is on the device, from the first on,
    /// where it is in the slot, and its bytes.
    fn copy(
        &self,
        stream: &Stream,
        chunk: usize,
        blocks: Range<usize>,
        one: impl Fn(u64, RawPointer, usize) -> (&'static str, Code),
    ) -> Result<()> {
        let (device, slot) = (&self.shared.device, self.slots[chunk % self.slots.len()].memory());
        let (elements, &Operation { count, element, .. }) = (self.elements(chunk), self.operation);
        let len = self.bytes(&elements);
        use_in_order(stream, &[slot], || {
            let _entered = device.enter()?;
            blocks.enumerate().try_for_each(|(i, in_slot)| {
                let offset = (i * count + elements.start) * element.size;
                let (name, code) = one(offset as u64, slot.address() + (in_slot * len) as u64, len);
                device.cuda().check(name, code)
            })
        })
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        self.slots.drain(..).for_each(|slot| self.shared.device.staging().give_back(slot));
    }
}
