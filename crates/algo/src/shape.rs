//! What an algorithm is told: who asks, among how many, and where the blocks lie.

use phalanx_core::Layout;

/// One rank's view of one collective, enough to compute its schedule.
///
/// All ranks of a collective see the same shape but for `rank` (and, in `all_to_all`, their own layouts).
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    /// The rank whose steps are wanted.
    pub rank: usize,
    /// Ranks in the group.
    pub world_size: usize,
    /// Blocks of the buffer, one a rank. `all_reduce`, `broadcast` and `reduce` look only at its total length and deal
    /// the elements out themselves; for `all_to_all` it describes the input: block `r` goes to rank `r`.
    pub layout: &'a Layout,
    /// The output of `all_to_all`: block `r` comes from rank `r`. `None` if it is as the input; other operations ignore it.
    pub recv_layout: Option<&'a Layout>,
    /// The special rank of `broadcast`, `reduce`, `gather` and `scatter`. Other operations ignore it.
    pub root: usize,
}

impl<'a> Shape<'a> {
    /// The same call seen through another layout.
    pub(crate) fn with_layout<'b>(&self, layout: &'b Layout) -> Shape<'b>
    where
        'a: 'b,
    {
        Shape { layout, ..*self }
    }

    /// The elements dealt out evenly to all ranks, for operations whose caller has no blocks in mind.
    pub(crate) fn even_layout(&self) -> Layout {
        Layout::even(self.world_size, self.layout.len())
    }
}

/// Where the spans of an algorithm point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Buffers {
    /// Sends read and receives write one buffer.
    InPlace,
    /// Sends read an input that never changes; receives write an output. The caller copies its own block.
    Separate,
    /// Both index a table that has a row of the whole buffer's length for each rank. Each rank's own contribution stands in its row; the
    /// steps gather the others; then each rank combines the rows, in rank order.
    Contributions,
}
