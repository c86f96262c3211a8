//! One result as a line of CSV.

use crate::op::Op;
use crate::timing::Timing;
use phalanx::ProcessGroup;
use std::fmt;

/// `peer,transport,op,world,bytes,median µs,GB/s (bytes / median),mean µs,back to back µs,min µs,samples`.
pub(crate) struct Line<'a> {
    pub(crate) peer: &'a str,
    pub(crate) group: &'a ProcessGroup,
    pub(crate) op: Op,
    pub(crate) bytes: usize,
    pub(crate) timing: Timing,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, group, op, bytes, timing } = self;
        write!(f, "{peer},{},{},{},{bytes}", group.backend_name(), op.name(), group.world_size())?;
        let us = |seconds: f64| seconds * 1e6;
        let algbw = *bytes as f64 / timing.median / 1e9;
        write!(f, ",{:.3},{algbw:.4},{:.3}", us(timing.median), us(timing.mean))?;
        write!(f, ",{:.3},{:.3},{}", us(timing.back_to_back), us(timing.min), timing.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::SimulatedBackend;

    #[test]
    fn columns_are_those_of_the_peers() {
        let group = &SimulatedBackend::create_group(1)[0];
        let timing = Timing { median: 2e-6, mean: 3e-6, min: 1e-6, back_to_back: 4e-6, samples: 9 };
        let line = Line { peer: "phalanx", group, op: Op::Broadcast, bytes: 4000, timing };
        assert_eq!(line.to_string(), "phalanx,thread,broadcast,1,4000,2.000,2.0000,3.000,4.000,1.000,9");
    }
}
