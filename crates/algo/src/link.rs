//! What moving and combining cost on some machine: the constants that turn a [`Cost`] into seconds.

use crate::Cost;
use serde::{Deserialize, Serialize};

/// What moving and combining cost between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Seconds from sending a short message to having it (α).
    pub latency_s: f64,
    /// Bytes a second through one connection, each way (1 / β).
    pub bandwidth_bytes_per_s: f64,
    /// Bytes a second through the combining kernels, and at which fresh scratch memory is first touched (1 / γ).
    pub combine_bytes_per_s: f64,
    /// Seconds until a rank that shares its core gets its turn, for each other rank there.
    pub turn_s: f64,
    /// Ranks that share a core; at most 1 where each has its own.
    pub ranks_per_core: f64,
}

/// Part of the longest path that other cores can't take over while ranks share cores. Fitted to all_reduce and broadcast of
/// 64 B to 256 KiB by 4 and 8 ranks on 2 cores.
const PATH_SHARE: f64 = 0.1;

impl Link {
    /// TCP within a rack: 15 µs, 3 GB/s, 8 GB/s.
    pub const TCP: Self = Self {
        latency_s: 15e-6,
        bandwidth_bytes_per_s: 3e9,
        combine_bytes_per_s: 8e9,
        turn_s: 8e-6,
        ranks_per_core: 1.0,
    };

    /// TCP within a host: 4 µs, 4 GB/s, 15 GB/s.
    pub const LOOPBACK: Self =
        Self { latency_s: 4e-6, bandwidth_bytes_per_s: 4e9, combine_bytes_per_s: 15e9, ..Self::TCP };

    /// Shared memory, as `docs/design/shared-memory.md` has it measured between far cores: 64 to 256 B take 0.55 µs, 64 KiB 4.4 µs; combining is
    /// that of [`LOOPBACK`](Self::LOOPBACK). For explanations: what is taken there is decided by thresholds.
    pub const MEMORY: Self =
        Self { latency_s: 0.5e-6, bandwidth_bytes_per_s: 15e9, combine_bytes_per_s: 15e9, ..Self::TCP };

    /// Predicted seconds of something that costs `cost` bytes on `world_size` ranks.
    ///
    /// Where each rank has a core, the longest path counts. Where they share cores, somebody always works: then all the work
    /// counts, divided among the cores, and at every hop the wait for one's turn.
    pub fn seconds(&self, world_size: usize, cost: &Cost) -> f64 {
        let path = cost.rounds * self.latency_s
            + cost.moved / self.bandwidth_bytes_per_s
            + (cost.combined + cost.scratch) / self.combine_bytes_per_s;
        if self.ranks_per_core <= 1.0 {
            return path;
        }
        let work = cost.messages * self.latency_s + cost.traffic / self.bandwidth_bytes_per_s;
        let turns = cost.hops * (self.ranks_per_core - 1.0) * self.turn_s;
        work * self.ranks_per_core / world_size as f64 + PATH_SHARE * path + turns
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::TCP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowded_ranks_pay_for_every_message_and_others_for_rounds() {
        let few_messages = Cost { rounds: 14.0, hops: 2.0, messages: 14.0, ..Cost::default() };
        let few_rounds = Cost { rounds: 3.0, hops: 3.0, messages: 24.0, ..Cost::default() };
        let crowded = Link { ranks_per_core: 4.0, ..Link::LOOPBACK };
        assert!(Link::LOOPBACK.seconds(8, &few_rounds) < Link::LOOPBACK.seconds(8, &few_messages));
        assert!(crowded.seconds(8, &few_messages) < crowded.seconds(8, &few_rounds));
    }
}
