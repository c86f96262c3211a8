//! Which rank came last to operations, from traces; pure.

use super::Entry;
use std::collections::BTreeMap;
use std::fmt;

/// A rank that comes later than this after the first is called late. Times of small operations are known to a few milliseconds only.
const LATE_NS: u64 = 20_000_000;
/// So many late operations tell something even if no rank was last in most of them.
const MANY: usize = 4;

/// One operation to which a rank came late.
#[derive(Debug, Clone, Copy)]
struct Late<'t> {
    seq: u64,
    entry: &'t Entry,
    rank: usize,
    by_ns: u64,
}

/// Which rank came last, among the operations that all ranks remember.
#[derive(Debug)]
pub(super) enum Latest<'t> {
    /// One rank was last in more than half of the late operations; where it was latest.
    One { rank: usize, times: usize, of: usize, at: (u64, &'t Entry), by_ns: u64 },
    /// Now this rank was last, now that.
    Nobody { of: usize },
}

impl<'t> Latest<'t> {
    /// From who called what at each place; `None` if nobody was late.
    pub(super) fn of(places: impl Iterator<Item = (u64, Vec<(usize, &'t Entry)>)>) -> Option<Self> {
        let late: Vec<Late<'t>> = places.filter_map(|(seq, calls)| Late::of(seq, &calls)).collect();
        let mut times: BTreeMap<usize, usize> = BTreeMap::new();
        late.iter().for_each(|late| *times.entry(late.rank).or_default() += 1);
        let (&rank, &most) = times.iter().max_by_key(|(_, times)| **times)?;
        if 2 * most <= late.len() {
            return (late.len() >= MANY).then_some(Self::Nobody { of: late.len() });
        }
        let worst = late.iter().filter(|late| late.rank == rank).max_by_key(|late| late.by_ns)?;
        let at = (worst.seq, worst.entry);
        Some(Self::One { rank, times: most, of: late.len(), at, by_ns: worst.by_ns })
    }
}

impl<'t> Late<'t> {
    fn of(seq: u64, calls: &[(usize, &'t Entry)]) -> Option<Self> {
        let first = calls.iter().map(|(_, entry)| entry.time_created_ns).min()?;
        let &(rank, entry) = calls.iter().max_by_key(|(_, entry)| entry.time_created_ns)?;
        let by_ns = entry.time_created_ns - first;
        (by_ns >= LATE_NS).then_some(Self { seq, entry, rank, by_ns })
    }
}

impl fmt::Display for Latest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { rank, times, of, at: (seq, entry), by_ns } => {
                write!(f, "latest was rank {rank}, ")?;
                if *of > 1 {
                    write!(f, "in {times} of the {of} operations to which a rank came late, at most ")?;
                }
                let seconds = *by_ns as f64 / 1e9;
                write!(f, "{seconds:.3} s after the first, at #{seq} {}", entry.signature)
            }
            Self::Nobody { of } => {
                write!(f, "ranks came late to {of} operations, and none was the last in most of them")
            }
        }
    }
}
