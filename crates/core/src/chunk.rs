//! Which rank owns which part of a buffer.

use crate::Signature;
use std::ops::Range;

/// How many blocks [`Layout::describe`] tells one by one.
const LENS_TOLD: usize = 4;

/// The range of chunk `index` when `len` elements are dealt to `parts` owners as evenly as possible.
///
/// Chunks are contiguous, in order, cover `0..len` exactly, and differ by at most one element.
///
/// # Panics
/// If `index >= parts`.
///
/// # Examples
/// ```
/// use phalanx_core::chunk;
///
/// assert_eq!([chunk(0, 3, 10), chunk(1, 3, 10), chunk(2, 3, 10)], [0..3, 3..6, 6..10]);
/// ```
pub fn chunk(index: usize, parts: usize, len: usize) -> Range<usize> {
    assert!(index < parts, "chunk {index} of {parts}");
    boundary(index, parts, len)..boundary(index + 1, parts, len)
}

/// The element at which chunk `index` begins, and the one before it ends.
fn boundary(index: usize, parts: usize, len: usize) -> usize {
    match index.checked_mul(len) {
        Some(product) => product / parts,
        None => (index as u128 * len as u128 / parts as u128) as usize,
    }
}

/// The place of each rank's block in a buffer that holds one block a rank, in rank order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout(Blocks);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Blocks {
    /// `len` elements dealt as evenly as [`chunk`] does: `each` for everybody, and `rest` that are left. Needs no memory: most calls are of this
    /// kind. Where nothing is left, a block is found without a division, of which some processors make ten in the time of a small operation.
    Even { world_size: usize, len: usize, each: usize, rest: usize },
    /// `starts[r]..starts[r + 1]` is the block of rank `r`.
    Given { starts: Vec<usize> },
}

impl Layout {
    /// `len` elements dealt as evenly as [`chunk`] does.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Layout;
    ///
    /// let layout = Layout::even(3, 10);
    /// assert_eq!([layout.block(0), layout.block(1), layout.block(2)], [0..3, 3..6, 6..10]);
    /// ```
    pub const fn even(world_size: usize, len: usize) -> Self {
        let (each, rest) = match len.checked_div(world_size) {
            Some(each) => (each, len - each * world_size),
            None => (0, 0),
        };
        Self(Blocks::Even { world_size, len, each, rest })
    }

    /// The layout of blocks of `each` elements.
    ///
    /// # Panics
    /// If all together are more than `usize::MAX` elements.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Layout;
    ///
    /// assert_eq!(Layout::equal(3, 2), Layout::even(3, 6));
    /// ```
    pub const fn equal(world_size: usize, each: usize) -> Self {
        let len = each.checked_mul(world_size).expect("the blocks together have at most usize::MAX elements");
        let each = if world_size == 0 { 0 } else { each };
        Self(Blocks::Even { world_size, len, each, rest: 0 })
    }

    /// The layout of one block of `counts[r]` elements for each rank `r`.
    ///
    /// # Panics
    /// If the sum of the counts is more than `usize::MAX`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Layout;
    ///
    /// let layout = Layout::from_counts(&[2, 0, 3]);
    /// assert_eq!([layout.block(0), layout.block(1), layout.block(2)], [0..2, 2..2, 2..5]);
    /// ```
    pub fn from_counts(counts: &[usize]) -> Self {
        let mut starts = vec![0];
        starts.extend(counts.iter().scan(0usize, |sum, n| {
            *sum = sum.checked_add(*n).expect("the sum of the counts is at most usize::MAX");
            Some(*sum)
        }));
        Self(Blocks::Given { starts })
    }

    /// Number of blocks.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::Layout::from_counts(&[2, 0, 3]).world_size(), 3);
    /// ```
    pub fn world_size(&self) -> usize {
        match &self.0 {
            Blocks::Even { world_size, .. } => *world_size,
            Blocks::Given { starts } => starts.len() - 1,
        }
    }

    /// Elements in all blocks together.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::Layout::from_counts(&[2, 0, 3]).len(), 5);
    /// ```
    pub fn len(&self) -> usize {
        match &self.0 {
            Blocks::Even { len, .. } => *len,
            Blocks::Given { starts } => *starts.last().expect("a layout has at least one boundary"),
        }
    }

    /// Whether all blocks are empty.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Layout;
    ///
    /// assert!(Layout::even(4, 0).is_empty());
    /// assert!(!Layout::from_counts(&[0, 1]).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block of `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::Layout::from_counts(&[2, 0, 3]).block(2), 2..5);
    /// ```
    #[inline]
    pub fn block(&self, rank: usize) -> Range<usize> {
        match &self.0 {
            // Most blocks that are asked for, and in the time of a small operation a call of `blocks` counts.
            &Blocks::Even { world_size, each, rest: 0, .. } if rank < world_size => {
                rank * each..(rank + 1) * each
            }
            _ => self.blocks(rank..rank + 1),
        }
    }

    /// Elements of the longest block. Of even blocks in no time; of given ones in a look at each.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Layout;
    ///
    /// assert_eq!([Layout::even(3, 10).longest(), Layout::from_counts(&[2, 0, 3]).longest()], [4, 3]);
    /// ```
    pub fn longest(&self) -> usize {
        match &self.0 {
            Blocks::Even { each, rest, .. } => each + usize::from(*rest > 0),
            Blocks::Given { starts } => starts.windows(2).map(|block| block[1] - block[0]).max().unwrap_or(0),
        }
    }

    /// 64 bits over where the blocks lie. Of even blocks in no time; of given ones in a look at each.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Layout;
    ///
    /// assert_eq!(Layout::even(2, 5).fingerprint(), Layout::even(2, 5).fingerprint());
    /// assert_ne!(Layout::from_counts(&[2, 3]).fingerprint(), Layout::from_counts(&[3, 2]).fingerprint());
    /// ```
    pub fn fingerprint(&self) -> u64 {
        let mix =
            |state: u64, n: usize| (state.rotate_left(29) ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match &self.0 {
            Blocks::Even { world_size, len, .. } => mix(mix(1, *world_size), *len),
            Blocks::Given { starts } => starts.iter().fold(2, |hash, start| mix(hash, *start)),
        }
    }

    /// All blocks in words: `4 blocks of 250`, `3 blocks of 3, 4, 3`. Different for different layouts; of many blocks, but the first few stand as
    /// a hash.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Layout;
    ///
    /// assert_eq!(Layout::even(4, 1000).describe(), "4 blocks of 250");
    /// assert_eq!(Layout::from_counts(&[3, 4, 3]).describe(), "3 blocks of 3, 4, 3");
    /// ```
    pub fn describe(&self) -> String {
        let lens: Vec<usize> = (0..self.world_size()).map(|rank| self.block(rank).len()).collect();
        let (count, told) = (lens.len(), lens.len().min(LENS_TOLD));
        if lens.iter().all(|len| *len == lens[0]) {
            return format!("{count} blocks of {}", lens.first().unwrap_or(&0));
        }
        let first: Vec<_> = lens[..told].iter().map(usize::to_string).collect();
        let first = first.join(", ");
        if told == count {
            return format!("{count} blocks of {first}");
        }
        format!("{count} blocks of {first}, … [{:08x}]", Signature::detail_of(&lens) as u32)
    }

    /// The blocks of `ranks` (consecutive, in order) as one range.
    ///
    /// # Panics
    /// If there are no such ranks.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::Layout::from_counts(&[2, 0, 3, 1]).blocks(1..3), 2..5);
    /// ```
    #[inline]
    pub fn blocks(&self, ranks: Range<usize>) -> Range<usize> {
        match &self.0 {
            &Blocks::Even { world_size, each, rest, .. } => {
                assert!(ranks.end <= world_size, "blocks {ranks:?} of {world_size}");
                let start_of = |rank| match rest {
                    0 => rank * each,
                    _ => rank * each + boundary(rank, world_size, rest),
                };
                start_of(ranks.start)..start_of(ranks.end)
            }
            Blocks::Given { starts } => starts[ranks.start]..starts[ranks.end],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_blocks_are_the_chunks() {
        for parts in 1..20 {
            for len in (0..60).chain([usize::MAX / 3, usize::MAX - 1, usize::MAX]) {
                let layout = Layout::even(parts, len);
                assert!(
                    (0..parts).all(|rank| layout.block(rank) == chunk(rank, parts, len)),
                    "{len} for {parts}"
                );
                let longest = (0..parts).map(|rank| layout.block(rank).len()).max();
                assert_eq!(Some(layout.longest()), longest, "{len} for {parts}");
            }
        }
    }

    #[test]
    fn chunks_cover_and_are_even() {
        for parts in 1..20 {
            for len in 0..60 {
                let layout = Layout::even(parts, len);
                let mut end = 0;
                for i in 0..parts {
                    let range = chunk(i, parts, len);
                    assert_eq!(range, layout.block(i));
                    assert_eq!(range.start, end);
                    assert!(range.len() == len / parts || range.len() == len / parts + 1);
                    end = range.end;
                }
                assert_eq!(end, len);
            }
        }
    }

    #[test]
    fn chunks_of_huge_buffers_do_not_overflow() {
        assert_eq!(chunk(9_999, 10_000, usize::MAX).end, usize::MAX);
    }

    #[test]
    fn counts_become_blocks() {
        let layout = Layout::from_counts(&[2, 0, 3]);
        assert_eq!((layout.block(0), layout.block(1), layout.block(2)), (0..2, 2..2, 2..5));
        assert_eq!((layout.len(), layout.world_size()), (5, 3));
    }

    #[test]
    fn different_layouts_are_described_differently() {
        let of = |counts: &[usize]| Layout::from_counts(counts).describe();
        let fingerprints = [[2, 3], [3, 2]].map(|counts| Layout::from_counts(&counts).fingerprint());
        assert_ne!(fingerprints[0], fingerprints[1]);
        assert_ne!(Layout::even(2, 5).fingerprint(), Layout::even(5, 2).fingerprint());
        assert_eq!(Layout::even(4, 1000).describe(), "4 blocks of 250");
        assert_eq!(of(&[3, 4, 3]), "3 blocks of 3, 4, 3");
        let (one, other) = (of(&[1, 2, 1, 1, 1, 2]), of(&[1, 2, 1, 1, 2, 1]));
        assert!(one.starts_with("6 blocks of 1, 2, 1, 1, … [") && one != other, "{one}, {other}");
        assert_eq!(of(&[2, 2, 3, 2, 3]), Layout::even(5, 12).describe());
    }
}
