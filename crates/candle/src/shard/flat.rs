//! Weights laid end to end, of which each rank keeps one slice.

use crate::Result;
use crate::element::{bytes_mut, read, replace, with_element};
use bytemuck::Zeroable;
use candle_core::{CpuStorage, DType, Device, Tensor, Var, WithDType};
use phalanx::ProcessGroup;
use std::ops::Range;

/// A weight, as the model was given it.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
    /// The range of the member's elements in the flat.
    pub(crate) place: Range<usize>,
}

/// Weights laid end to end and cut into equal slices, one for each rank. Zeros make the last one full.
#[derive(Debug)]
pub(crate) struct Flat {
    /// For people.
    pub(crate) name: String,
    /// The members, in the order in which the model took them.
    pub(crate) members: Vec<Member>,
    /// The type in which the model computes, and in which elements travel.
    pub(crate) dtype: DType,
    /// This rank's slice, as the optimizer has it.
    pub(crate) shard: Var,
    /// Elements of a slice.
    pub(crate) slice: usize,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Whether its weights are whole always, and not only while a unit works.
    pub(crate) stays: bool,
}

/// A weight that belongs to no flat yet.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
    /// The weight with which this rank begins, in the type in which weights are kept.
    pub(crate) initial: Tensor,
}

/// A run of a member's elements that lies in one slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) rank: usize,
    pub(crate) in_slice: Range<usize>,
    pub(crate) in_member: Range<usize>,
}

/// The pieces of `place`, a range of a flat, in slices of `slice` elements, in order.
pub(crate) fn pieces(place: &Range<usize>, slice: usize) -> impl Iterator<Item = Piece> + use<> {
    let Range { start, end } = place.clone();
    let ranks = if start < end { start / slice..(end - 1) / slice + 1 } else { 0..0 };
    ranks.map(move |rank| {
        let (from, to) = (start.max(rank * slice), end.min((rank + 1) * slice));
        Piece { rank, in_slice: from - rank * slice..to - rank * slice, in_member: from - start..to - start }
    })
}

/// Deals weights to flats of one type and at most so many bytes each, in their order; a larger one has a flat for itself.
pub(crate) fn cut(taken: Vec<Taken>, cap_bytes: usize) -> Vec<Vec<Taken>> {
    let mut flats: Vec<Vec<Taken>> = Vec::new();
    let mut bytes = 0;
    for one in taken {
        let more = one.tensor.elem_count() * one.tensor.dtype().size_in_bytes();
        match flats.last_mut() {
            Some(last) if bytes + more <= cap_bytes && last[0].tensor.dtype() == one.tensor.dtype() => {
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

/// The type in which weights of this type are kept: what an update adds to a weight is often too little for 16 bits.
pub(crate) fn kept(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

impl Flat {
    /// Deals out what rank 0 begins with. Collective.
    pub(crate) fn new(name: String, taken: Vec<Taken>, stays: bool, group: &ProcessGroup) -> Result<Self> {
        let dtype = taken[0].tensor.dtype();
        let (rank, world_size) = (group.rank(), group.world_size());
        let mut members = Vec::new();
        let mut end = 0;
        for Taken { name, tensor, .. } in &taken {
            let start = end;
            end += tensor.elem_count();
            members.push(Member { name: name.clone(), tensor: tensor.clone(), place: start..end });
        }
        let slice = end.div_ceil(world_size).max(1);
        let shard = with_element!(kept(dtype),
            T => {
                let mut all = Vec::new();
                if rank == 0 {
                    all.reserve_exact(slice * world_size);
                    for Taken { initial, .. } in &taken {
                        read::<T, _>(initial, |values| all.extend_from_slice(values))?;
                    }
                    all.resize(slice * world_size, T::zeroed());
                }
                drop(taken);
                let mut own = vec![T::zeroed(); slice];
                group.scatter((rank == 0).then_some(&all[..]), &mut own, 0)?;
                Var::from_vec(own, slice, &Device::Cpu)?
            },
            _ => unreachable!("weights are floats"),
        );
        Ok(Self { name, members, dtype, shard, slice, rank, world_size, stays })
    }

    /// This rank's pieces of the members, in their order.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&Member, Piece)> {
        self.members.iter().filter_map(|member| {
            let mut pieces = pieces(&member.place, self.slice);
            Some((member, pieces.find(|piece| piece.rank == self.rank)?))
        })
    }

    /// Bytes of a slice where it travels.
    pub(crate) fn slice_bytes(&self) -> usize {
        self.slice * self.dtype.size_in_bytes()
    }

    /// Passes this rank's slice, as it travels, to `use_it`.
    pub(crate) fn with_slice<R>(&self, use_it: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let slice = self.shard.as_detached_tensor().to_dtype(self.dtype)?;
        Ok(with_element!(self.dtype,
            T => read::<T, _>(&slice, |values| use_it(bytemuck::cast_slice(values)))?,
            _ => unreachable!("weights are floats"),
        ))
    }

    /// Whether the model has what this rank's slice is now.
    pub(crate) fn is_fresh(&self) -> Result<bool> {
        let size = self.dtype.size_in_bytes();
        let bytes = |range: &Range<usize>| range.start * size..range.end * size;
        let mut fresh = true;
        self.with_slice(|slice| -> Result<()> {
            for (member, piece) in self.own() {
                fresh &= bytes_mut(&member.tensor, |weights| {
                    weights[bytes(&piece.in_member)] == slice[bytes(&piece.in_slice)]
                })?;
            }
            Ok(())
        })??;
        Ok(fresh)
    }

    /// Gives the model the weights: `slices` are the bytes of all ranks' in rank order. They are in memory already if `are_here`.
    pub(crate) fn fill<'s>(&self, slices: impl Fn(usize) -> &'s [u8], are_here: bool) -> Result<()> {
        let size = self.dtype.size_in_bytes();
        for Member { tensor, place, .. } in &self.members {
            if !are_here {
                replace(tensor, zeros(self.dtype, place.len()))?;
            }
            bytes_mut(tensor, |weights| {
                for Piece { rank, in_slice, in_member } in pieces(place, self.slice) {
                    weights[in_member.start * size..in_member.end * size]
                        .copy_from_slice(&slices(rank)[in_slice.start * size..in_slice.end * size]);
                }
            })?;
        }
        Ok(())
    }

    /// Takes the weights from the model, and their memory with them. What it computes with them from now on is an error of candle: their
    /// memory has a type that no operation takes.
    pub(crate) fn release(&self) -> Result<()> {
        for member in &self.members {
            replace(&member.tensor, CpuStorage::F4(Vec::new()))?;
        }
        Ok(())
    }
}

fn zeros(dtype: DType, elements: usize) -> CpuStorage {
    with_element!(dtype,
        T => T::to_cpu_storage_owned(vec![T::zeroed(); elements]),
        _ => unreachable!("weights are floats"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_make_the_whole_and_stay_in_their_slices(
            start in 0usize..50, len in 0usize..50, slice in 1usize..40,
        ) {
            let mut next = 0;
            for piece in pieces(&(start..start + len), slice) {
                prop_assert!(!piece.in_slice.is_empty() && piece.in_slice.end <= slice);
                prop_assert_eq!(piece.in_member.start, next);
                prop_assert_eq!(piece.rank * slice + piece.in_slice.start, start + next);
                prop_assert_eq!(piece.in_slice.len(), piece.in_member.len());
                next = piece.in_member.end;
            }
            prop_assert_eq!(next, len);
        }
    }
}
