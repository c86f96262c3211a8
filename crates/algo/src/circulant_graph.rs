//! In which round a piece of a buffer reaches which rank, where the pieces of a broadcast go along a circulant graph: in every round each rank
//! sends one piece and receives another.
//!
//! After Träff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and all-reduction",
//! arXiv:2407.18004, 2024. Ranks are counted from the root.

use crate::plan::ceil_log2;

/// Pieces for each of the ⌈log₂P⌉ rounds that the first one takes. More would move fewer bytes on the longest path, in more messages.
const PIECES_A_ROUND: usize = 6;

/// The pieces that a buffer of `len` elements has.
pub(crate) fn pieces(world_size: usize, len: usize) -> usize {
    len.min(PIECES_A_ROUND * ceil_log2(world_size) as usize)
}

/// The most ranks, beside the root, that a piece goes through to reach the last one: found by counting for 2 to 64 ranks.
pub(crate) fn hops(world_size: usize, pieces: usize) -> f64 {
    let detour = world_size > 2 && world_size.is_power_of_two() && pieces > 1;
    f64::from(ceil_log2(world_size) + u32::from(detour))
}

/// The graph: in the rounds k, k + q, k + 2q, … each rank sends to the rank `skips[k]` after it.
pub(crate) struct Circulant {
    world_size: usize,
    /// q of them, and at the end the world size.
    skips: Vec<usize>,
}

/// A piece that travels in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) number: usize,
    /// Whether the root has not sent it before.
    pub(crate) is_new: bool,
}

impl Circulant {
    pub(crate) fn new(world_size: usize) -> Self {
        let mut skips = vec![world_size];
        while skips[skips.len() - 1] > 1 {
            skips.push(skips[skips.len() - 1].div_ceil(2));
        }
        skips.reverse();
        Self { world_size, skips }
    }

    /// ⌈log₂P⌉.
    pub(crate) fn q(&self) -> usize {
        self.skips.len() - 1
    }

    /// Where `rank` sends to in the rounds `k`.
    pub(crate) fn next(&self, rank: usize, k: usize) -> usize {
        (rank + self.skips[k]) % self.world_size
    }

    /// Where it receives from.
    pub(crate) fn previous(&self, rank: usize, k: usize) -> usize {
        (rank + self.world_size - self.skips[k]) % self.world_size
    }

    /// For each round that `pieces` take the round's k, and what `blocks` makes of it: the pieces that travel.
    pub(crate) fn rounds(&self, pieces: usize, blocks: &[isize]) -> Vec<(usize, Option<Piece>)> {
        let q = self.q();
        let idle = (q - (pieces - 1) % q) % q;
        let piece = |round: usize| {
            let number = blocks[round % q] + (round / q * q) as isize - idle as isize;
            let number = usize::try_from(number).ok()?;
            Some(Piece { number: number.min(pieces - 1), is_new: number < pieces })
        };
        (idle..idle + pieces - 1 + q).map(|round| (round % q, piece(round))).collect()
    }

    /// What `rank` receives in the first round of each k, as the number of a piece; a negative one is none yet. The root gets nothing.
    pub(crate) fn received(&self, rank: usize) -> Vec<isize> {
        let q = self.q();
        let own = self.base(rank);
        let mut search = Search {
            skips: &self.skips,
            target: rank + self.world_size,
            nearest: 2 * self.world_size,
            open: (0..=q).map(|skip| skip != own).collect(),
            found: Vec::with_capacity(q),
        };
        search.descend(0, q + 1);
        let piece = |&skip: &usize| if skip == q { own as isize } else { skip as isize - q as isize };
        search.found.iter().map(piece).collect()
    }

    /// What `rank` sends: what the one that it sends to receives.
    pub(crate) fn sent(&self, rank: usize) -> Vec<isize> {
        let to = |k| self.received(self.next(rank, k))[k];
        (0..self.q()).map(to).collect()
    }

    /// The piece that reaches `rank` first: the smallest skip of the shortest way there. The root has all: q.
    fn base(&self, mut rank: usize) -> usize {
        for k in (0..self.q()).rev() {
            if self.skips[k] == rank {
                return k;
            }
            if self.skips[k] < rank {
                rank -= self.skips[k];
            }
        }
        self.q()
    }
}

/// Looks for the ranks from which pieces can have come: sums of skips, each taken at most once, that lie close enough before the rank.
struct Search<'a> {
    skips: &'a [usize],
    target: usize,
    /// The last one that was found. The next lies before it.
    nearest: usize,
    /// The skips that no piece has used.
    open: Vec<bool>,
    found: Vec<usize>,
}

impl Search<'_> {
    /// Goes on from `at` by the open skips below `below`, the largest first.
    fn descend(&mut self, at: usize, below: usize) {
        for skip in (0..below).rev() {
            let k = self.found.len();
            if k + 1 >= self.skips.len() {
                return;
            }
            let there = at + self.skips[skip];
            if !self.open[skip] || there > self.target - self.skips[k] || there >= self.nearest {
                continue;
            }
            if there <= self.target - self.skips[k + 1] {
                self.descend(there, skip);
            }
            let k = self.found.len();
            if k + 1 >= self.skips.len() || at > self.target - self.skips[k + 1] {
                return;
            }
            self.nearest = there;
            self.found.push(skip);
            self.open[skip] = false;
        }
    }
}
