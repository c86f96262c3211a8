//! Collectives of many buffers in one call that return at once.

use crate::group::asynchronous_blocks::zeroed;
use crate::group::coalesced::{Coalesced, Pack, Travels, lens};
use crate::group::memory::{Changed, Extent, OwnedBuffer};
use crate::group::pending::{Bytes, Pending};
use crate::group::perform::{equal, wrong};
use crate::group::request::{Buffers, Request};
use crate::group::work::{Buffer, Given, taken_back};
use crate::{ProcessGroup, Work};
use phalanx_core::{Element, Error, Layout, OpKind, ReduceOp, Result};
use phalanx_kernels::copy_slice;
use std::any::Any;
use std::ops::Range;

/// As the [blocking ones](Self::all_reduce_coalesced), these cost few messages for many small buffers. They own their buffers until they are waited for.
/// The calling thread copies small buffers together before these return, and apart when it waits; in between the group's progress thread performs what
/// travels together, and the large buffers where they lie.
impl ProcessGroup {
    /// Begins an [`all_reduce_coalesced`](Self::all_reduce_coalesced).
    ///
    /// # Shape
    /// `buffers`: any number, each of any length. The result: the same buffers, in their order. Ranks agree on both.
    /// # Cost
    /// As of [`all_reduce_coalesced`](Self::all_reduce_coalesced), and memory for a copy of the small buffers until they are waited for.
    /// # Determinism
    /// As of [`all_reduce_coalesced`](Self::all_reduce_coalesced).
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let gradients = vec![vec![1.0, 2.0, 3.0], vec![group.rank() as f32]];
    /// let work = group.all_reduce_coalesced_async(gradients, ReduceOp::Avg)?;
    /// // … compute …
    /// assert_eq!(work.wait()?, [vec![1.0, 2.0, 3.0], vec![0.5]]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_reduce_coalesced_async<B: Buffer>(
        &self,
        buffers: Vec<B>,
        op: ReduceOp,
    ) -> Result<Work<Vec<B>>> {
        let (kind, dtype, site) = (OpKind::AllReduce, <B::Element as Element>::DTYPE, self.site());
        let (owned, element) = (owned(buffers), dtype.size());
        let bytes = owned.iter().map(Extent::len_bytes);
        if let Some((number, bytes)) =
            bytes.clone().enumerate().find(|(_, bytes)| !bytes.is_multiple_of(element))
        {
            return Err(wrong(
                kind,
                &site,
                format!("buffer {number} has {bytes} bytes of elements of {element}"),
            ));
        }
        let lens = bytes.map(|bytes| bytes / element).collect();
        let call = Coalesced { group: self, op: kind, dtype, lens, blocks: 1, site };
        let moves = Moves { from: 0..1, to: 0..1 };
        let request = |buffer, _| Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: op };
        begin(&call, owned, moves, request, |buffer| buffer)
    }

    /// Begins an [`all_gather_coalesced`](Self::all_gather_coalesced).
    ///
    /// # Shape
    /// `inputs`: any number, each of any length n, which is its own. The result: as many outputs, each of P × n elements. Ranks agree on all of that.
    /// # Cost
    /// As of [`all_gather_coalesced`](Self::all_gather_coalesced), and memory for a copy of the small outputs until they are waited for.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let rank = group.rank() as u64;
    /// let work = group.all_gather_coalesced_async(&[&[rank], &[7, rank]])?;
    /// assert_eq!(work.wait()?, [vec![0, 1], vec![7, 0, 7, 1]]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather_coalesced_async<T: Element>(&self, inputs: &[&[T]]) -> Result<Work<Vec<Vec<T>>>> {
        let (rank, world_size, op, site) = (self.rank(), self.world_size(), OpKind::AllGather, self.site());
        let output = |input: &&[T]| {
            let mut output = zeroed(op, input.len().saturating_mul(world_size), &site)?;
            copy_slice(
                bytemuck::cast_slice_mut(&mut output[rank * input.len()..][..input.len()]),
                bytemuck::cast_slice(input),
            );
            Ok(output)
        };
        let outputs = inputs.iter().map(output).collect::<Result<Vec<Vec<T>>>>()?;
        let lens = lens(inputs.iter().copied());
        let call = Coalesced { group: self, op, dtype: T::DTYPE, lens, blocks: world_size, site };
        let moves = Moves { from: rank..rank + 1, to: 0..world_size };
        let request = |buffer, blocks| Request::AllGather { buffers: Buffers::InPlace(buffer), blocks };
        begin(&call, owned(outputs), moves, request, |output: Vec<T>| output)
    }

    /// Begins a [`reduce_scatter_coalesced`](Self::reduce_scatter_coalesced).
    ///
    /// # Shape
    /// `inputs`: any number, each of P × n elements for an n of its own. The result: as many outputs, each of n elements. Ranks agree on all of that.
    /// # Cost
    /// As of [`reduce_scatter_coalesced`](Self::reduce_scatter_coalesced), and memory for a copy of the small inputs until they are waited for.
    /// # Determinism
    /// As of [`all_reduce_coalesced`](Self::all_reduce_coalesced).
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let inputs = vec![vec![1, 2], vec![10, 20, 30, 40]];
    /// let work = group.reduce_scatter_coalesced_async(inputs, ReduceOp::Sum)?;
    /// assert_eq!(work.wait()?, [[vec![2], vec![20, 40]], [vec![4], vec![60, 80]]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_scatter_coalesced_async<T: Element>(
        &self,
        inputs: Vec<Vec<T>>,
        reduce: ReduceOp,
    ) -> Result<Work<Vec<Vec<T>>>> {
        let (rank, world_size, op) = (self.rank(), self.world_size(), OpKind::ReduceScatter);
        let site = self.site();
        let uneven = |(_, input): &(usize, &Vec<T>)| !input.len().is_multiple_of(world_size);
        if let Some((number, input)) = inputs.iter().enumerate().find(uneven) {
            let len = input.len();
            let what =
                format!("input {number} has {len} elements, expected a multiple of {world_size} (the ranks)");
            return Err(wrong(op, &site, what));
        }
        let lens = inputs.iter().map(|input| input.len() / world_size).collect();
        let call = Coalesced { group: self, op, dtype: T::DTYPE, lens, blocks: world_size, site };
        let moves = Moves { from: 0..world_size, to: rank..rank + 1 };
        let request =
            |buffer, blocks| Request::ReduceScatter { buffers: Buffers::InPlace(buffer), blocks, reduce };
        begin(&call, owned(inputs), moves, request, move |mut buffer: Vec<T>| {
            let len = buffer.len() / world_size;
            buffer.truncate((rank + 1) * len);
            buffer.drain(..rank * len);
            buffer
        })
    }
}

/// Which blocks of its buffers an operation reads, and which it leaves its result in.
struct Moves {
    from: Range<usize>,
    to: Range<usize>,
}

fn owned<B: Buffer>(buffers: Vec<B>) -> Vec<OwnedBuffer> {
    buffers.into_iter().map(|buffer| OwnedBuffer::new(Box::new(buffer))).collect()
}

/// Begins `call` on buffers that are each a `B` of all blocks. `request` is given what travels, and its blocks; `finish` each buffer with its result.
fn begin<B: Buffer, R: 'static>(
    call: &Coalesced<'_>,
    buffers: Vec<OwnedBuffer>,
    moves: Moves,
    request: impl Fn(OwnedBuffer, Layout) -> Request<OwnedBuffer, OwnedBuffer>,
    finish: impl Fn(B) -> R + Send + Sync + 'static,
) -> Result<Work<Vec<R>>> {
    let (op, site, count) = (call.op, call.site.clone(), buffers.len());
    let wrong = move |changed: Changed| Error::misuse(op, changed.describe(op, &site));
    let (mut buffers, mut pending, mut alone) =
        (buffers.into_iter().map(Some).collect::<Vec<_>>(), Vec::new(), Vec::new());
    let mut take = |number: usize| buffers[number].take().expect("a buffer travels once");
    let begun = call.perform(|part, travels| {
        let (buffer, block) = match travels {
            Travels::Alone(number) => {
                alone.push(Some(number));
                (take(number), call.lens[number])
            }
            Travels::Together(pack) => {
                alone.push(None);
                let block = pack.block / call.dtype.size();
                let numbers = pack.places.iter().map(|(number, _)| *number);
                let mut packed = Packed { buffers: numbers.map(&mut take).collect(), pack };
                packed.fill(moves.from.clone()).map_err(&wrong)?;
                (OwnedBuffer::new(Box::new(packed)), block)
            }
        };
        pending.push(part.submit(request(buffer, equal(call.blocks, block)))?);
        Ok(())
    });
    match begun {
        // What was begun goes on. If it is why this one was refused, it has the cause, and whoever waits hears that first.
        Err(error) if !pending.is_empty() => pending.push(Pending::failed(error)),
        begun => begun?,
    }
    let land = move |given: Vec<Given>| {
        let mut results: Vec<Option<R>> = (0..count).map(|_| None).collect();
        for (given, alone) in given.into_iter().zip(alone) {
            match alone {
                Some(number) => results[number] = Some(finish(taken_back(given)?)),
                None => {
                    let mut packed: Packed = taken_back(given)?;
                    packed.empty(moves.to.clone()).map_err(&wrong)?;
                    for ((number, _), buffer) in packed.pack.places.into_iter().zip(packed.buffers) {
                        results[number] = Some(finish(taken_back(buffer.into_inner().into_any())?));
                    }
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    };
    Ok(Work::of_several(pending, land).of(call.group.in_flight(op)))
}

/// Small buffers on their way, in the memory in which they travel.
struct Packed {
    pack: Pack,
    /// In the order of the pack's places.
    buffers: Vec<OwnedBuffer>,
}

impl Packed {
    /// Copies these blocks of all buffers together.
    fn fill(&mut self, blocks: Range<usize>) -> Result<(), Changed> {
        let Self { pack, buffers } = self;
        for (buffer, (_, place)) in buffers.iter_mut().zip(&pack.places) {
            let bytes = buffer.bytes()?;
            for block in blocks.clone() {
                let at = pack.at(block, place);
                copy_slice(&mut pack.memory.bytes_mut()[at], &bytes[block * place.len()..][..place.len()]);
            }
        }
        Ok(())
    }

    /// Copies these blocks of all buffers to where they belong.
    fn empty(&mut self, blocks: Range<usize>) -> Result<(), Changed> {
        let Self { pack, buffers } = self;
        for (buffer, (_, place)) in buffers.iter_mut().zip(&pack.places) {
            let bytes = buffer.bytes()?;
            for block in blocks.clone() {
                let at = pack.at(block, place);
                copy_slice(&mut bytes[block * place.len()..][..place.len()], &pack.memory.bytes()[at]);
            }
        }
        Ok(())
    }
}

impl Bytes for Packed {
    fn bytes(&mut self) -> &mut [u8] {
        self.pack.memory.bytes_mut()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
