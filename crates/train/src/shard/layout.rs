//! Which elements of which weight lie in which rank's slice.

use phalanx::DType;
use std::ops::Range;

/// A run of a weight's elements that lies in one slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) rank: usize,
    pub(super) in_slice: Range<usize>,
    pub(super) in_member: Range<usize>,
}

/// The pieces of `place`, a range of weights that lie end to end, in slices of `slice` elements, in order.
pub(super) fn pieces(place: &Range<usize>, slice: usize) -> impl Iterator<Item = Piece> + use<> {
    let Range { start, end } = place.clone();
    let ranks = if start < end { start / slice..(end - 1) / slice + 1 } else { 0..0 };
    ranks.map(move |rank| {
        let (from, to) = (start.max(rank * slice), end.min((rank + 1) * slice));
        Piece { rank, in_slice: from - rank * slice..to - rank * slice, in_member: from - start..to - start }
    })
}

/// The type in which weights of this type are kept: what an update adds to a weight is often too little for 16 bits.
pub fn kept(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
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
