//! Weights laid end to end, of which each rank keeps one slice.

use super::layout::{Piece, kept, pieces};
use crate::checkpoint::Extent;
use crate::element::{convert, with_float};
use crate::{Array, Result, Tensor, Weights};
use bytemuck::{Zeroable, cast_slice, cast_slice_mut};
use phalanx::backend::copy_slice;
use phalanx::{DType, Element, ProcessGroup};
use std::borrow::Borrow;
use std::ops::Range;

/// A weight, as the model has it.
#[derive(Debug, Clone)]
pub struct Member {
    /// The name.
    pub name: String,
    /// The dimensions.
    pub dims: Vec<usize>,
    /// The place among the model's weights.
    pub index: usize,
    /// The range of the member's elements in the flat.
    pub place: Range<usize>,
}

/// Weights laid end to end and cut into equal slices, one for each rank. Zeros make the last one full.
#[derive(Debug)]
pub struct Flat<S> {
    /// The name, for people.
    pub name: String,
    /// The members, in the order in which the model took them.
    pub members: Vec<Member>,
    /// The type in which the model computes, and in which elements travel.
    pub dtype: DType,
    /// This rank's slice, as the optimizer has it.
    pub shard: S,
    /// Elements of a slice.
    pub slice: usize,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Whether its weights are whole always, and not only while a unit works.
    pub stays: bool,
}

/// A weight that belongs to no flat yet.
#[derive(Debug)]
pub struct Taken<W> {
    /// The name.
    pub name: String,
    /// The dimensions.
    pub dims: Vec<usize>,
    /// The type in which the model computes with it.
    pub dtype: DType,
    /// The place among the model's weights.
    pub index: usize,
    /// The weight with which this rank begins, in the type in which the model has it or in that in which it is kept.
    pub initial: W,
}

impl<W> Taken<W> {
    fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Deals weights to flats of one type and at most so many bytes each, in their order; a larger one has a flat for itself.
pub fn cut<W>(taken: Vec<Taken<W>>, cap_bytes: usize) -> Vec<Vec<Taken<W>>> {
    let mut flats: Vec<Vec<Taken<W>>> = Vec::new();
    let mut bytes = 0;
    for one in taken {
        let more = one.elements() * one.dtype.size();
        match flats.last_mut() {
            Some(last) if bytes + more <= cap_bytes && last[0].dtype == one.dtype => {
                last.push(one);
                bytes += more;
            }
            _ => {
                flats.push(vec![one]);
                bytes = more;
            }
        }
    }
    flats
}

impl<S> Flat<S> {
    /// Deals out what rank 0 begins with, of which `shard` makes this rank's slice. Collective.
    ///
    /// # Errors
    /// Those of the group and of the library.
    #[track_caller]
    pub fn new<T: Tensor, W: Borrow<T>>(
        name: String,
        taken: Vec<Taken<W>>,
        stays: bool,
        group: &ProcessGroup,
        shard: impl FnOnce(Array) -> Result<S>,
    ) -> Result<Self> {
        let dtype = taken[0].dtype;
        let (rank, world_size) = (group.rank(), group.world_size());
        let mut members = Vec::new();
        let mut end = 0;
        for one in &taken {
            let start = end;
            end += one.elements();
            let (name, dims, index) = (one.name.clone(), one.dims.clone(), one.index);
            members.push(Member { name, dims, index, place: start..end });
        }
        let slice = end.div_ceil(world_size).max(1);
        let own = with_float!(kept(dtype),
            E => {
                let all = match rank {
                    0 => laid::<E, T, W>(taken, slice * world_size)?,
                    _ => {
                        drop(taken);
                        Vec::new()
                    }
                };
                let mut own = vec![E::zeroed(); slice];
                group.scatter((rank == 0).then_some(&all[..]), &mut own, 0)?;
                Array::from(own)
            },
            other => return Err(phalanx::Error::config(format!("weights can't be {other}; they must be floats")).into()),
        );
        Ok(Self { name, members, dtype, shard: shard(own)?, slice, rank, world_size, stays })
    }

    /// This rank's pieces of the members, in their order.
    fn own(&self) -> impl Iterator<Item = (&Member, Piece)> {
        self.members.iter().filter_map(|member| {
            let mut pieces = pieces(&member.place, self.slice);
            Some((member, pieces.find(|piece| piece.rank == self.rank)?))
        })
    }

    /// The ranges of all members that are in this rank's slice; empty for members that are others'.
    pub fn extents(&self) -> Vec<Extent> {
        let extent = |member: &Member| {
            let own = pieces(&member.place, self.slice).find(|piece| piece.rank == self.rank);
            let (elements, in_slice) = own.map_or((0..0, 0..0), |own| (own.in_member, own.in_slice));
            Extent { name: member.name.clone(), dims: member.dims.clone(), elements, in_slice }
        };
        self.members.iter().map(extent).collect()
    }

    /// Bytes of a slice where it travels.
    pub(super) fn slice_bytes(&self) -> usize {
        self.slice * self.dtype.size()
    }

    fn bytes(&self, elements: &Range<usize>) -> Range<usize> {
        let size = self.dtype.size();
        elements.start * size..elements.end * size
    }

    /// Gives the model the weights: `slices` are the bytes of all ranks' in rank order. They are in memory already if `are_here`.
    pub(super) fn fill<'s, T: Tensor>(
        &self,
        model: &mut (impl Weights<T> + ?Sized),
        slices: impl Fn(usize) -> &'s [u8],
        are_here: bool,
    ) -> Result<()> {
        for Member { dims, index, place, .. } in &self.members {
            if !are_here {
                model.come(*index, dims)?;
            }
            model.with(*index, |weight| {
                weight.write(|weight| {
                    for Piece { rank, in_slice, in_member } in pieces(place, self.slice) {
                        copy_slice(&mut weight[self.bytes(&in_member)], &slices(rank)[self.bytes(&in_slice)]);
                    }
                })
            })?;
        }
        Ok(())
    }

    /// Takes the weights from the model, and their memory with them.
    ///
    /// # Errors
    /// The library's.
    pub fn release<T: Tensor>(&self, model: &mut (impl Weights<T> + ?Sized)) -> Result<()> {
        self.members.iter().try_for_each(|member| model.go(member.index))
    }
}

impl<S: Tensor> Flat<S> {
    /// Passes this rank's slice, as it travels, to `use_it`.
    pub(super) fn with_slice<R>(&self, use_it: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let from = self.shard.dtype();
        if from == self.dtype {
            return self.shard.read(use_it);
        }
        let mut slice = Array::zeros(self.dtype, &[self.slice], &())?;
        slice.write(|slice| self.shard.read(|shard| convert(from, shard, self.dtype, slice)))??;
        slice.read(use_it)
    }

    /// Whether the model has what this rank's slice is now.
    pub(super) fn is_fresh<T: Tensor>(&self, model: &mut (impl Weights<T> + ?Sized)) -> Result<bool> {
        self.with_slice(|slice| {
            for (member, piece) in self.own() {
                let (here, there) = (self.bytes(&piece.in_member), self.bytes(&piece.in_slice));
                let is_fresh =
                    model.with(member.index, |weight| weight.read(|weight| weight[here] == slice[there]))?;
                if !is_fresh {
                    return Ok(false);
                }
            }
            Ok(true)
        })?
    }
}

/// Rank 0's weights end to end, with zeros up to `len`.
fn laid<E: Element, T: Tensor, W: Borrow<T>>(taken: Vec<Taken<W>>, len: usize) -> Result<Vec<E>> {
    let mut all = vec![E::zeroed(); len];
    let mut rest = &mut all[..];
    for Taken { initial, .. } in taken {
        let (initial, from) = (initial.borrow(), initial.borrow().dtype());
        initial.read(|weight| {
            let (place, behind) = std::mem::take(&mut rest).split_at_mut(weight.len() / from.size());
            convert(from, cast_slice(weight), E::DTYPE, cast_slice_mut(place));
            rest = behind;
        })?;
    }
    Ok(all)
}
