//! Collectives of many buffers in one call: large ones where they lie, small ones together.

use crate::ProcessGroup;
use crate::engine::scratch::Scratch;
use crate::group::call::HostRequest;
use crate::group::memory::{Extent, OwnedBuffer};
use crate::group::pending::Pending;
use crate::group::perform::{equal, wrong};
use crate::group::request::{Buffers, Request};
use phalanx_core::{CallSite, DType, Element, Layout, Method, OpKind, ReduceOp, Result, Signature};
use phalanx_kernels::copy_slice;
use std::ops::Range;

/// Buffers of at most so many bytes travel together: to copy more than that takes longer than a message of its own.
const SMALL_MAX: usize = 32 << 10;
/// As many bytes travel together at most, and one buffer more: what is copied is still in the cache when it is sent.
const PACK_MAX: usize = 256 << 10;

/// Which buffers travel together, by their numbers; alone stands a large one. The same on all ranks, of the bytes of each buffer.
fn parts(bytes: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let (mut parts, mut pack, mut packed) = (Vec::new(), Vec::new(), 0);
    for (number, bytes) in bytes.enumerate() {
        if bytes > SMALL_MAX {
            parts.push(vec![number]);
            continue;
        }
        pack.push(number);
        packed += bytes;
        if packed > PACK_MAX {
            parts.push(std::mem::take(&mut pack));
            packed = 0;
        }
    }
    // Ranks that have nothing to move must still find out if they disagree.
    if parts.is_empty() || !pack.is_empty() {
        parts.push(pack);
    }
    parts
}

/// One call on many buffers.
pub(super) struct Coalesced<'g> {
    pub(super) group: &'g ProcessGroup,
    pub(super) op: OpKind,
    pub(super) dtype: DType,
    /// Elements of each buffer; of one rank's block, where a rank has several.
    pub(super) lens: Vec<usize>,
    /// Blocks of each buffer.
    pub(super) blocks: usize,
    pub(super) site: CallSite,
}

/// Tells the calls here from those of single buffers.
const COALESCED: usize = usize::from_be_bytes(*b"coalesce");

impl Coalesced<'_> {
    /// Performs all parts, or begins them, as `perform` does each.
    pub(super) fn perform(&self, mut perform: impl FnMut(&Part<'_>, Travels) -> Result<()>) -> Result<()> {
        let bytes = |len: &usize| len * self.blocks * self.dtype.size();
        let (all, words) = (Signature::detail_of(&self.lens), Layout::from_counts(&self.lens).describe());
        let method = Method::from(format!("coalesced as {words}"));
        for (number, buffers) in parts(self.lens.iter().map(bytes)).iter().enumerate() {
            let detail = Signature::detail_of(&[COALESCED, all as usize, number]);
            let travels = match buffers[..] {
                [buffer] => Travels::Alone(buffer),
                _ => Travels::Together(Pack::new(self, buffers)),
            };
            perform(&Part { call: self, detail, method: &method }, travels)?;
        }
        Ok(())
    }

    /// Refuses buffers that do not go together: of each `long` one has as many elements as all blocks of the `short` one.
    fn check_pairs(&self, short: &str, long: &str, longs: &[usize]) -> Result<()> {
        let shorts = &self.lens;
        let refuse = |what: String| Err(wrong(self.op, &self.site, what));
        if shorts.len() != longs.len() {
            return refuse(format!(
                "{} {short}s and {} {long}s, expected as many",
                shorts.len(),
                longs.len()
            ));
        }
        let unlike = |(_, (n, all)): &(usize, (&usize, &usize))| n.checked_mul(self.blocks) != Some(**all);
        match shorts.iter().zip(longs).enumerate().find(unlike) {
            Some((number, (n, all))) => {
                let ranks = self.blocks;
                refuse(format!(
                    "{long} {number} has {all} elements, expected {n} × {ranks} ranks, of {short} {number}"
                ))
            }
            None => Ok(()),
        }
    }
}

/// One collective of a call.
pub(super) struct Part<'c> {
    call: &'c Coalesced<'c>,
    detail: u64,
    method: &'c Method,
}

impl Part<'_> {
    fn perform(&self, request: HostRequest<'_>) -> Result<()> {
        self.call.group.perform_as(self.signature(&request)?, request)
    }

    pub(super) fn submit(&self, request: Request<OwnedBuffer, OwnedBuffer>) -> Result<Pending> {
        self.call.group.submit_as(self.signature(&request)?, request)
    }

    fn signature<I: Extent, O: Extent>(&self, request: &Request<I, O>) -> Result<Signature> {
        let Coalesced { group, op, dtype, site, .. } = self.call;
        let signature = group.signature_of(*op, Some(*dtype), request, self.detail, site.clone())?;
        Ok(Signature { method: signature.method.then(self.method), ..signature })
    }
}

/// What one collective moves.
pub(super) enum Travels {
    /// The buffer of this number, where it lies.
    Alone(usize),
    Together(Pack),
}

/// Small buffers as one, which has the blocks of all of them for one rank after those for the rank before.
pub(super) struct Pack {
    pub(super) memory: Scratch,
    /// The numbers of the buffers, and where each lies in a block, in bytes.
    pub(super) places: Vec<(usize, Range<usize>)>,
    /// Bytes of a block.
    pub(super) block: usize,
}

impl Pack {
    fn new(call: &Coalesced<'_>, buffers: &[usize]) -> Self {
        let mut block = 0;
        let place = |&number: &usize| {
            let start = block;
            block += call.lens[number] * call.dtype.size();
            (number, start..block)
        };
        let places = buffers.iter().map(place).collect();
        Self { memory: Scratch::new(block * call.blocks), places, block }
    }

    pub(super) fn at(&self, block: usize, place: &Range<usize>) -> Range<usize> {
        block * self.block + place.start..block * self.block + place.end
    }

    /// Copies what `of` says for each buffer into this block.
    fn fill<'b>(&mut self, block: usize, of: impl Fn(usize, usize) -> &'b [u8]) {
        for (number, place) in &self.places {
            let at = self.at(block, place);
            copy_slice(&mut self.memory.bytes_mut()[at], of(*number, place.len()));
        }
    }

    /// Gives `take` what is in this block of each buffer.
    fn empty(&self, block: usize, mut take: impl FnMut(usize, &[u8])) {
        self.places
            .iter()
            .for_each(|(number, place)| take(*number, &self.memory.bytes()[self.at(block, place)]));
    }
}

/// The elements of each.
pub(super) fn lens<'b, T: 'b>(buffers: impl Iterator<Item = &'b [T]>) -> Vec<usize> {
    buffers.map(<[T]>::len).collect()
}

/// Many buffers of one element type in one call, which is collective: all ranks give as many, of the same lengths, in the same order. Small buffers
/// (of up to 32 KiB) are copied together and sent as one, so that many of them cost few messages; larger ones are read and written where they lie. A call that
/// fails may have completed some buffers.
impl ProcessGroup {
    /// As [`all_reduce`](Self::all_reduce) of each of `buffers`.
    ///
    /// # Shape
    /// `buffers`: any number, each of any length, read and overwritten. Ranks agree on both.
    /// # Cost
    /// One all_reduce for about 256 KiB of small buffers, and one for each large one. Small buffers are copied twice.
    /// # Determinism
    /// As of [`all_reduce`](Self::all_reduce) on buffers as long as what travels together. On a [reproducible](Self::reproducible) handle the bits are those of
    /// a call for each buffer.
    /// # Errors
    /// See the [contract](ProcessGroup#contract); ranks with other lengths, or another number of buffers, get [`Mismatch`](crate::Error::Mismatch).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let (mut weight, mut bias) = ([1.0, 2.0, 3.0], [group.rank() as f32]);
    /// group.all_reduce_coalesced(&mut [&mut weight, &mut bias], ReduceOp::Avg)?;
    /// assert_eq!((weight, bias), ([1.0, 2.0, 3.0], [0.5]));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_reduce_coalesced<T: Element>(&self, buffers: &mut [&mut [T]], op: ReduceOp) -> Result<()> {
        let call = Coalesced {
            group: self,
            op: OpKind::AllReduce,
            dtype: T::DTYPE,
            lens: lens(buffers.iter().map(|buffer| &**buffer)),
            blocks: 1,
            site: self.site(),
        };
        let sum = |part: &Part<'_>, buffer: &mut [u8]| {
            part.perform(Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: op })
        };
        call.perform(|part, travels| match travels {
            Travels::Alone(number) => sum(part, bytemuck::cast_slice_mut(buffers[number])),
            Travels::Together(mut pack) => {
                pack.fill(0, |number, _| bytemuck::cast_slice(buffers[number]));
                sum(part, pack.memory.bytes_mut())?;
                pack.empty(0, |number, sum| copy_slice(bytemuck::cast_slice_mut(buffers[number]), sum));
                Ok(())
            }
        })
    }

    /// As [`all_gather`](Self::all_gather) of each of `inputs` into the output of its number.
    ///
    /// # Shape
    /// `inputs`: any number, each of any length n, which is its own. `outputs`: as many, each of P × n elements. Ranks agree on all of that.
    /// # Cost
    /// One all_gather for about 256 KiB of small outputs, and one for each large one. Small buffers are copied twice.
    /// # Errors
    /// As of [`all_reduce_coalesced`](Self::all_reduce_coalesced).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let rank = group.rank() as u64;
    /// let (mut ranks, mut pairs) = ([0; 2], [0; 4]);
    /// group.all_gather_coalesced(&[&[rank], &[7, rank]], &mut [&mut ranks, &mut pairs])?;
    /// assert_eq!((ranks, pairs), ([0, 1], [7, 0, 7, 1]));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather_coalesced<T: Element>(&self, inputs: &[&[T]], outputs: &mut [&mut [T]]) -> Result<()> {
        let (rank, world_size) = (self.rank(), self.world_size());
        let call = Coalesced {
            group: self,
            op: OpKind::AllGather,
            dtype: T::DTYPE,
            lens: lens(inputs.iter().copied()),
            blocks: world_size,
            site: self.site(),
        };
        call.check_pairs("input", "output", &lens(outputs.iter().map(|output| &**output)))?;
        call.perform(|part, travels| match travels {
            Travels::Alone(number) => {
                let (input, output) = (inputs[number], &mut *outputs[number]);
                let buffers =
                    Buffers::Separate(bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
                part.perform(Request::AllGather { buffers, blocks: equal(world_size, input.len()) })
            }
            Travels::Together(mut pack) => {
                pack.fill(rank, |number, _| bytemuck::cast_slice(inputs[number]));
                let blocks = equal(world_size, pack.block / size_of::<T>());
                let buffers = Buffers::InPlace(pack.memory.bytes_mut());
                part.perform(Request::AllGather { buffers, blocks })?;
                for from in 0..world_size {
                    pack.empty(from, |number, theirs| {
                        let output: &mut [u8] = bytemuck::cast_slice_mut(outputs[number]);
                        copy_slice(&mut output[from * theirs.len()..][..theirs.len()], theirs);
                    });
                }
                Ok(())
            }
        })
    }

    /// As [`reduce_scatter`](Self::reduce_scatter) of each of `inputs` into the output of its number.
    ///
    /// # Shape
    /// `outputs`: any number, each of any length n, which is its own. `inputs`: as many, each of P × n elements. Ranks agree on all of that.
    /// # Cost
    /// One reduce_scatter for about 256 KiB of small inputs, and one for each large one. Small buffers are copied twice.
    /// # Determinism
    /// As of [`all_reduce_coalesced`](Self::all_reduce_coalesced).
    /// # Errors
    /// As of [`all_reduce_coalesced`](Self::all_reduce_coalesced).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let (mut one, mut two) = ([0], [0; 2]);
    /// let inputs: [&[i32]; 2] = [&[1, 2], &[10, 20, 30, 40]];
    /// group.reduce_scatter_coalesced(&inputs, &mut [&mut one, &mut two], ReduceOp::Sum)?;
    /// assert_eq!((one, two), [([2], [20, 40]), ([4], [60, 80])][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_scatter_coalesced<T: Element>(
        &self,
        inputs: &[&[T]],
        outputs: &mut [&mut [T]],
        op: ReduceOp,
    ) -> Result<()> {
        let (rank, world_size) = (self.rank(), self.world_size());
        let call = Coalesced {
            group: self,
            op: OpKind::ReduceScatter,
            dtype: T::DTYPE,
            lens: lens(outputs.iter().map(|output| &**output)),
            blocks: world_size,
            site: self.site(),
        };
        call.check_pairs("output", "input", &lens(inputs.iter().copied()))?;
        call.perform(|part, travels| match travels {
            Travels::Alone(number) => {
                let (input, output) = (inputs[number], &mut *outputs[number]);
                let blocks = equal(world_size, output.len());
                let buffers =
                    Buffers::Separate(bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
                part.perform(Request::ReduceScatter { buffers, blocks, reduce: op })
            }
            Travels::Together(mut pack) => {
                for to in 0..world_size {
                    pack.fill(to, |number, len| &bytemuck::cast_slice(inputs[number])[to * len..][..len]);
                }
                let blocks = equal(world_size, pack.block / size_of::<T>());
                let buffers = Buffers::InPlace(pack.memory.bytes_mut());
                part.perform(Request::ReduceScatter { buffers, blocks, reduce: op })?;
                pack.empty(rank, |number, sum| copy_slice(bytemuck::cast_slice_mut(outputs[number]), sum));
                Ok(())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_travel_together_and_large_ones_alone() {
        let of = |bytes: &[usize]| parts(bytes.iter().copied());
        assert_eq!(of(&[]), [[0usize; 0]]);
        assert_eq!(of(&[0, 4, SMALL_MAX]), [[0, 1, 2]]);
        assert_eq!(of(&[4, SMALL_MAX + 1, 4, SMALL_MAX + 1]), [vec![1], vec![3], vec![0, 2]]);
        let many = of(&[SMALL_MAX; 20]);
        assert_eq!(many.concat(), (0..20).collect::<Vec<_>>());
        assert!(many.iter().all(|pack| pack.len() * SMALL_MAX <= PACK_MAX + SMALL_MAX), "{many:?}");
    }
}
