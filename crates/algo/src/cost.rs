//! What a schedule costs: the latency, bandwidth and combining terms that every textbook uses (α, β, γ).

/// How large a collective is, for a cost formula. Volumes are in elements, or in bytes for a price in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Volume {
    /// Ranks (`P` in the formulas).
    pub world_size: usize,
    /// Length of the whole buffer (`n`).
    pub len: f64,
    /// Length of the largest block (`b`): `n / P` rounded up when the blocks are even.
    pub block: f64,
}

impl Volume {
    /// All ranks but one, of which each has something for this one.
    pub(crate) fn others(&self) -> f64 {
        self.world_size as f64 - 1.0
    }

    /// All blocks but one.
    pub(crate) fn others_blocks(&self) -> f64 {
        self.others() * self.block
    }
}

/// What an algorithm needs for one [`Volume`]: upper bounds, exact for even blocks on a power of two of ranks.
///
/// The [checker](crate::check()) measures all of it on the schedule itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Transfers that follow one another on the longest path.
    pub rounds: f64,
    /// Most elements that any one rank sends.
    pub sent: f64,
    /// Times that data has to reach another rank before it can go on, on the longest way: however many messages a rank sends
    /// or receives at a time, they count once.
    pub hops: f64,
    /// Messages of all ranks together.
    pub messages: f64,
    /// Elements that all ranks together send.
    pub traffic: f64,
    /// Elements that cross a wire one after the other on the longest path.
    pub moved: f64,
    /// Elements that are combined one after the other on the longest path.
    pub combined: f64,
    /// Most elements of memory that any one rank needs besides the buffers of the call.
    pub scratch: f64,
}

impl Cost {
    /// All ranks do the same: in so many rounds, of which each waits for the one before, a rank sends and receives `moved`.
    pub(crate) fn of_equals(v: Volume, rounds: f64, moved: f64, combined: f64) -> Self {
        let ranks = v.world_size as f64;
        Self {
            rounds,
            sent: moved,
            hops: rounds,
            messages: rounds * ranks,
            traffic: moved * ranks,
            moved,
            combined,
            scratch: 0.0,
        }
    }

    /// The root exchanges one message of `len` with each of the others, one after the other; a rank sends at most `sent`.
    pub(crate) fn of_star(world_size: usize, len: f64, sent: f64) -> Self {
        let others = world_size as f64 - 1.0;
        Self {
            rounds: others,
            sent,
            hops: others.min(1.0),
            messages: others,
            traffic: others * len,
            moved: others * len,
            ..Self::default()
        }
    }
}
