//! Running a power-of-two algorithm on any number of ranks.

use crate::plan::{recv, send};
use crate::{Action, Shape, Step};

/// The largest power of two among `world_size` ranks, and whether ranks are left over.
pub(crate) fn core_of(world_size: usize) -> (usize, bool) {
    let core = 1 << world_size.ilog2();
    (core, core < world_size)
}

/// An all_reduce of which `core` is the part among the first 2ᵏ ranks.
///
/// Each rank beyond the core hands its whole contribution to one core rank before and gets the result back after,
/// so both move the whole buffer twice more: good for few bytes, a reason to take another algorithm for many.
pub(crate) fn all_reduce(shape: &Shape<'_>, core: impl FnOnce(&Shape<'_>) -> Vec<Step>) -> Vec<Step> {
    let (core_size, _) = core_of(shape.world_size);
    let (rank, whole) = (shape.rank, 0..shape.layout.len());
    if rank >= core_size {
        let helper = rank - core_size;
        return [send(helper, whole.clone()), recv(helper, whole, Action::Copy)]
            .into_iter()
            .flatten()
            .collect();
    }
    let guest = rank + core_size;
    let (before, after) = if guest < shape.world_size {
        (recv(guest, whole.clone(), Action::Combine), send(guest, whole))
    } else {
        (None, None)
    };
    let core = core(&Shape { world_size: core_size, ..*shape });
    before.into_iter().chain(core).chain(after).collect()
}
