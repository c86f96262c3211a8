//! The binomial tree, which broadcast and scatter climb down and reduce and gather climb up.

use crate::Span;
use crate::plan::arc;
use phalanx_core::Layout;

/// A rank and everything below it in the tree: `size` consecutive ranks from `top`, going round the circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subtree {
    pub(crate) top: usize,
    pub(crate) size: usize,
}

impl Subtree {
    /// The blocks of all its ranks.
    pub(crate) fn blocks(self, layout: &Layout) -> Span {
        arc(layout, self.top, self.size)
    }
}

/// One rank's place in the tree.
#[derive(Debug)]
pub(crate) struct Place {
    /// Absent at the root.
    pub(crate) parent: Option<usize>,
    /// The rank with everything below it.
    pub(crate) own: Subtree,
    /// Smallest first: 1, 2, 4, … ranks, the last one cut off at the end of the circle.
    pub(crate) children: Vec<Subtree>,
}

/// Where `rank` stands in the binomial tree over `world_size` ranks from `root`.
///
/// Counted from the root, rank `v` hangs under `v` without its lowest set bit.
pub(crate) fn place(rank: usize, world_size: usize, root: usize) -> Place {
    let v = (rank + world_size - root) % world_size;
    let absolute = |v: usize| (v + root) % world_size;
    let reach = if v == 0 { world_size.next_power_of_two() } else { v & v.wrapping_neg() };
    let distances =
        std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|d| *d < reach && v + d < world_size);
    Place {
        parent: (v > 0).then(|| absolute(v - reach)),
        own: Subtree { top: rank, size: reach.min(world_size - v) },
        children: distances
            .map(|d| Subtree { top: absolute(v + d), size: d.min(world_size - v - d) })
            .collect(),
    }
}

/// The ranks of the largest subtree below the root of the binomial tree over `world_size` ranks.
pub(crate) fn largest_subtree(world_size: usize) -> usize {
    // The child that is farthest away has what is left; the one before it has half of its distance.
    let farthest = world_size.next_power_of_two() / 2;
    (world_size - farthest).min(farthest).max(farthest / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_hangs_under_its_parent_exactly_once() {
        for world_size in 1..40 {
            for root in 0..world_size {
                let places: Vec<_> = (0..world_size).map(|rank| place(rank, world_size, root)).collect();
                assert_eq!(places[root].own.size, world_size);
                assert_eq!(places[root].parent, None);
                let below = places.iter().map(|place| place.own.size).filter(|size| *size < world_size);
                assert_eq!(below.max().unwrap_or(0), largest_subtree(world_size));
                for (rank, at) in places.iter().enumerate() {
                    assert_eq!(at.own.size, 1 + at.children.iter().map(|c| c.size).sum::<usize>());
                    for child in &at.children {
                        assert_eq!(places[child.top].parent, Some(rank));
                        assert_eq!(places[child.top].own, *child);
                    }
                }
            }
        }
    }
}
