//! What the traces tell about one group: who called something else, who is missing, who did not finish; pure.

use super::latecomers::Latest;
use super::merge::Unread;
use super::{Entry, GroupStatus, State, Trace};
use phalanx_core::Signature;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A rank that has waited for less than this in a group that has not failed may wait for one that is on its way.
pub(super) const STUCK_NS: u64 = 2_000_000_000;

/// What the traces tell about one group.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Finding {
    /// At this place ranks called different things: who called what.
    Diverged { seq: u64, sides: Vec<(Vec<usize>, Signature)> },
    /// Some ranks waited in an operation for others.
    Missing { seq: u64, call: Signature, waiting: Vec<usize>, waited_ns: u64, missing: Vec<Absent> },
    /// All came to an operation, and these did not finish it.
    Stuck { seq: u64, call: Signature, ranks: Vec<usize>, waited_ns: u64 },
    /// Some ranks were in operations, none for long, and the group has not failed.
    UnderWay { places: Vec<(Vec<usize>, Place)> },
    /// All agree on what they all remember.
    Agreed { ranks: usize, seqs: Option<(u64, u64)> },
}

/// Where a rank is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Place {
    /// In this operation, or in a message.
    In { seq: Option<u64>, call: Signature },
    /// In none; its last collective was this.
    After { seq: u64, call: Signature },
    /// It has called nothing.
    Nowhere,
}

/// A rank that did not come to an operation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Absent {
    pub(super) rank: usize,
    pub(super) left: Left,
}

/// What a rank left of itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Left {
    /// No file.
    Nothing,
    /// A file that can't be used, and why.
    Unread(String),
    /// A trace in which the group does not occur.
    OtherGroups,
    /// Its last collective in the group; `None` if it had called nothing.
    Last(Option<(u64, Signature)>),
}

/// One rank's collectives in a group.
pub(super) struct Side<'t> {
    pub(super) rank: usize,
    trace: &'t Trace,
    pub(super) status: &'t GroupStatus,
    calls: BTreeMap<u64, &'t Entry>,
}

impl Side<'_> {
    fn last(&self) -> u64 {
        self.calls.keys().next_back().copied().unwrap_or(0)
    }

    fn is_unfinished(&self, seq: u64) -> bool {
        self.calls.get(&seq).is_some_and(|entry| entry.state != State::Completed)
    }

    /// For how long it has been in this operation.
    fn waited_ns(&self, seq: u64) -> u64 {
        let since = self.calls.get(&seq).and_then(|entry| entry.time_discovered_started_ns);
        since.map_or(0, |since| self.trace.time_dumped_ns.saturating_sub(since))
    }

    /// Where it is in the group.
    fn place(&self, name: &str) -> Place {
        let message = self.trace.entries.iter().rfind(|entry| is_open_message(entry, name));
        match (self.calls.iter().next_back(), message) {
            (Some((&seq, entry)), _) if self.is_unfinished(seq) => {
                Place::In { seq: Some(seq), call: entry.signature.clone() }
            }
            (_, Some(entry)) => Place::In { seq: None, call: entry.signature.clone() },
            (Some((&seq, entry)), _) => Place::After { seq, call: entry.signature.clone() },
            (None, None) => Place::Nowhere,
        }
    }
}

/// Whether somebody still waits in this message of a group.
pub(super) fn is_open_message(entry: &Entry, group: &str) -> bool {
    entry.is_p2p && !entry.retired && entry.process_group.0 == group
}

/// A group as all who left a trace saw it.
pub(super) struct Group<'t> {
    name: &'t str,
    ranks: &'t [usize],
    pub(super) sides: Vec<Side<'t>>,
    traces: &'t [Trace],
    unread: &'t [Unread],
}

impl<'t> Group<'t> {
    pub(super) fn of(name: &'t str, traces: &'t [Trace], unread: &'t [Unread]) -> Self {
        let side = |trace: &'t Trace| {
            let begun = |entry: &&Entry| !entry.is_p2p && entry.state != State::Scheduled;
            let own = trace.entries.iter().filter(|entry| entry.process_group.0 == name).filter(begun);
            let calls = own.map(|entry| (entry.collective_seq_id, entry)).collect();
            Some(Side { rank: trace.rank, trace, status: trace.pg_status.get(name)?, calls })
        };
        let config = traces.iter().find_map(|trace| trace.pg_config.get(name));
        let ranks = config.map_or(&[][..], |config| &config.ranks[..]);
        Self { name, ranks, sides: traces.iter().filter_map(side).collect(), traces, unread }
    }

    /// The members, as ranks of the job.
    pub(super) fn ranks(&self) -> &'t [usize] {
        self.ranks
    }

    /// What went wrong first, by which rank's word.
    pub(super) fn failed(&self) -> Option<(usize, &'t str)> {
        self.sides.iter().find_map(|side| Some((side.rank, side.status.failed.as_deref()?)))
    }

    pub(super) fn finding(&self) -> Finding {
        let stands_still = || self.on_timeout().or_else(|| self.stop());
        self.divergence().or_else(stands_still).unwrap_or_else(|| {
            let first = self.sides.iter().filter_map(|side| side.calls.keys().next()).max();
            let last = self.sides.iter().map(Side::last).min();
            let seqs = first.copied().zip(last).filter(|(first, last)| first <= last);
            Finding::Agreed { ranks: self.sides.len(), seqs }
        })
    }

    fn divergence(&self) -> Option<Finding> {
        self.seqs().into_iter().find_map(|seq| {
            let mut sides: Vec<(Vec<usize>, Signature)> = Vec::new();
            for (rank, call) in self.at(seq) {
                match sides.iter_mut().find(|(_, other)| other.matches(&call.signature)) {
                    Some((ranks, _)) => ranks.push(rank),
                    None => sides.push((vec![rank], call.signature.clone())),
                }
            }
            (sides.len() > 1).then_some(Finding::Diverged { seq, sides })
        })
    }

    fn seqs(&self) -> BTreeSet<u64> {
        self.sides.iter().flat_map(|side| side.calls.keys().copied()).collect()
    }

    /// Everybody's call at one place.
    fn at(&self, seq: u64) -> impl Iterator<Item = (usize, &'t Entry)> {
        self.sides.iter().filter_map(move |side| Some((side.rank, *side.calls.get(&seq)?)))
    }

    /// The ranks that others were told to be missing at an operation; else those that have not come to where others wait.
    fn on_timeout(&self) -> Option<Finding> {
        let waits = |side: &&Side<'_>| side.is_unfinished(side.last());
        let seq = self.sides.iter().filter(waits).map(Side::last).min()?;
        let told = self.sides.iter().filter(|side| side.status.missing_at.is_none_or(|at| at == seq));
        let mut missing: BTreeSet<usize> =
            told.flat_map(|side| side.status.missing.iter().copied()).collect();
        if missing.is_empty() {
            let came: BTreeSet<usize> = self.at(seq).map(|(rank, _)| rank).collect();
            missing = self.ranks.iter().copied().filter(|rank| !came.contains(rank)).collect();
        }
        let (_, call) = self.at(seq).next()?;
        let waits = |side: &&Side<'_>| side.is_unfinished(seq) && !missing.contains(&side.rank);
        let waiting: Vec<&Side<'_>> = self.sides.iter().filter(waits).collect();
        if missing.is_empty() || waiting.is_empty() {
            return None;
        }
        let waited_ns = waiting.iter().map(|side| side.waited_ns(seq)).max().unwrap_or(0);
        if let Some(healthy) = self.under_way(waited_ns) {
            return Some(healthy);
        }
        Some(Finding::Missing {
            seq,
            call: call.signature.clone(),
            waited_ns,
            waiting: waiting.iter().map(|side| side.rank).collect(),
            missing: missing.into_iter().map(|rank| Absent { rank, left: self.left(rank) }).collect(),
        })
    }

    /// What `rank` left of itself.
    fn left(&self, rank: usize) -> Left {
        if let Some(side) = self.sides.iter().find(|side| side.rank == rank) {
            let last = side.calls.iter().next_back();
            return Left::Last(last.map(|(&seq, entry)| (seq, entry.signature.clone())));
        }
        if self.traces.iter().any(|trace| trace.rank == rank) {
            return Left::OtherGroups;
        }
        let unread = self.unread.iter().find(|file| file.rank == Some(rank));
        unread.map_or(Left::Nothing, |Unread { file, why, .. }| Left::Unread(format!("{file}: {why}")))
    }

    fn stop(&self) -> Option<Finding> {
        let seq = self.sides.iter().map(Side::last).min()?;
        let stuck: Vec<&Side<'_>> = self.sides.iter().filter(|side| side.is_unfinished(seq)).collect();
        let (_, call) = self.at(seq).next()?;
        let waited_ns = stuck.iter().map(|side| side.waited_ns(seq)).max()?;
        let ranks = stuck.iter().map(|side| side.rank).collect();
        let call = call.signature.clone();
        self.under_way(waited_ns).or(Some(Finding::Stuck { seq, call, ranks, waited_ns }))
    }

    /// Where everybody is, if the group is well and nobody has waited for longer than this, which is not long.
    fn under_way(&self, waited_ns: u64) -> Option<Finding> {
        if self.failed().is_some() || waited_ns >= STUCK_NS {
            return None;
        }
        let mut places: Vec<(Vec<usize>, Place)> = Vec::new();
        for side in &self.sides {
            let place = side.place(self.name);
            match places.iter_mut().find(|(_, other)| *other == place) {
                Some((ranks, _)) => ranks.push(side.rank),
                None => places.push((vec![side.rank], place)),
            }
        }
        Some(Finding::UnderWay { places })
    }

    /// The rank that came last to operations that all remember.
    pub(super) fn latest(&self) -> Option<Latest<'t>> {
        let all = |seq: u64| {
            let calls: Vec<_> = self.at(seq).collect();
            (calls.len() >= self.ranks.len()).then_some((seq, calls))
        };
        Latest::of(self.seqs().into_iter().filter_map(all))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Diverged { seq, sides } => {
                write!(f, "ranks disagree at operation #{seq}: ")?;
                sides.iter().enumerate().try_for_each(|(i, (ranks, call))| {
                    let but = if i > 0 { ", but " } else { "" };
                    write!(f, "{but}{} called {call}", list(ranks))
                })
            }
            Self::Missing { seq, call, waiting, waited_ns, missing } => {
                let ranks: Vec<usize> = missing.iter().map(|absent| absent.rank).collect();
                let seconds = *waited_ns as f64 / 1e9;
                let (missing_ranks, waiting) = (list(&ranks), list(waiting));
                write!(
                    f,
                    "{missing_ranks} missing at operation #{seq}, where {waiting} waited for {seconds:.3} s in {call}"
                )?;
                missing.iter().try_for_each(|absent| write!(f, "; {absent}"))
            }
            Self::Stuck { seq, call, ranks, waited_ns } => {
                let (ranks, seconds) = (list(ranks), *waited_ns as f64 / 1e9);
                write!(
                    f,
                    "all came to operation #{seq} {call}, and {ranks} did not finish it in {seconds:.3} s"
                )
            }
            Self::UnderWay { places } => places.iter().enumerate().try_for_each(|(i, (ranks, place))| {
                let semicolon = if i > 0 { "; " } else { "" };
                let is = if ranks.len() == 1 { "is" } else { "are" };
                write!(f, "{semicolon}{} {is} {place}", list(ranks))
            }),
            Self::Agreed { ranks, seqs: Some((first, last)) } => {
                write!(f, "all {ranks} ranks agree, from operation #{first} to #{last}")
            }
            Self::Agreed { ranks, seqs: None } => {
                write!(f, "{ranks} ranks, and no operation that all of them remember")
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In { seq: Some(seq), call } => write!(f, "in operation #{seq} {call}"),
            Self::In { seq: None, call } => write!(f, "in {call}"),
            Self::After { seq, call } => write!(f, "between operations, after #{seq} {call}"),
            Self::Nowhere => f.write_str("before the first operation"),
        }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self.rank;
        match &self.left {
            Left::Nothing => write!(f, "rank {rank} left no trace"),
            Left::Unread(why) => write!(f, "the trace of rank {rank} can't be used ({why})"),
            Left::OtherGroups => write!(f, "rank {rank} had dropped this group when it wrote its trace"),
            Left::Last(None) => write!(f, "rank {rank} had called nothing"),
            Left::Last(Some((seq, call))) => write!(f, "the last of rank {rank} was #{seq} {call}"),
        }
    }
}

/// `rank 3`, `ranks 0-2, 5`; in order.
pub(super) fn list(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let text = runs.into_iter().map(run).collect::<Vec<_>>().join(", ");
    format!("rank{} {text}", if ranks.len() == 1 { "" } else { "s" })
}
