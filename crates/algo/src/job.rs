//! One collective on all ranks at once: what a checker or a simulator runs.

use crate::{Algorithm, Buffers, Shape, Step, Volume};
use phalanx_core::{Layout, OpKind};

/// A collective as seen from above: the operation, the blocks, the root.
#[derive(Debug, Clone)]
pub struct Job {
    op: OpKind,
    /// What each rank passes as layout: of `all_to_all` its input, otherwise the same on all ranks.
    layouts: Vec<Layout>,
    /// Where each rank of `all_to_all` receives; empty for other operations.
    outputs: Vec<Layout>,
    root: usize,
}

impl Job {
    /// `op` on `layout.world_size()` ranks, all with the same layout. In `all_to_all` every rank sends the same counts.
    ///
    /// # Panics
    /// If `root` is not one of the ranks.
    pub fn new(op: OpKind, layout: Layout, root: usize) -> Self {
        let world_size = layout.world_size();
        assert!(root < world_size, "root {root} of {world_size}");
        let layouts = vec![layout; world_size];
        if op == OpKind::AllToAll {
            Self::all_to_all(layouts)
        } else {
            Self { op, layouts, outputs: vec![], root }
        }
    }

    /// `all_to_all` in which rank `r` sends the block `s` of `inputs[r]` to rank `s`.
    ///
    /// # Panics
    /// If a layout has not one block for each rank.
    pub fn all_to_all(inputs: Vec<Layout>) -> Self {
        let world_size = inputs.len();
        assert!(
            inputs.iter().all(|l| l.world_size() == world_size),
            "one block for each of {world_size} ranks"
        );
        let column = |rank| inputs.iter().map(|l| l.block(rank).len()).collect::<Vec<_>>();
        let outputs = (0..world_size).map(|rank| Layout::from_counts(&column(rank))).collect();
        Self { op: OpKind::AllToAll, layouts: inputs, outputs, root: 0 }
    }

    /// The operation.
    pub fn op(&self) -> OpKind {
        self.op
    }

    /// Ranks.
    pub fn world_size(&self) -> usize {
        self.layouts.len()
    }

    /// The special rank.
    pub fn root(&self) -> usize {
        self.root
    }

    /// What `rank` sees of it.
    pub fn shape(&self, rank: usize) -> Shape<'_> {
        Shape {
            rank,
            world_size: self.world_size(),
            layout: &self.layouts[rank],
            recv_layout: self.outputs.get(rank),
            root: self.root,
        }
    }

    /// The schedules of all ranks.
    ///
    /// # Panics
    /// If the algorithm is for another operation or does not support the world size.
    pub fn schedules(&self, algorithm: Algorithm) -> Vec<Vec<Step>> {
        assert_eq!(algorithm.op(), self.op, "{algorithm} performs another operation");
        (0..self.world_size()).map(|rank| algorithm.steps(&self.shape(rank))).collect()
    }

    /// The job whose elements the spans of `algorithm` index: this one, or the gathering of the [rows](Buffers::Contributions) that it
    /// combines.
    pub fn of_spans(&self, algorithm: Algorithm) -> Self {
        match algorithm.buffers() {
            Buffers::InPlace | Buffers::Separate => self.clone(),
            Buffers::Contributions => {
                let rows = self.world_size() * self.layouts[0].len();
                Self::new(OpKind::AllGather, Layout::even(self.world_size(), rows), 0)
            }
        }
    }

    /// Its size, for cost formulas.
    pub fn volume(&self) -> Volume {
        let world_size = self.world_size();
        let len = self.layouts.iter().map(Layout::len).max().unwrap_or(0);
        let block = match self.op {
            OpKind::AllReduce | OpKind::Broadcast | OpKind::Reduce => len.div_ceil(world_size),
            _ => {
                self.layouts.iter().flat_map(|l| (0..world_size).map(|r| l.block(r).len())).max().unwrap_or(0)
            }
        };
        Volume { world_size, len: len as f64, block: block as f64 }
    }
}
