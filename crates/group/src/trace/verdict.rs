//! Who called something else, who is missing, who was late: from traces to sentences; pure.

use super::{Entry, GroupStatus, State, Trace};
use phalanx_core::Signature;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Who comes later than this after the first is called late. Times of small operations are known to a few milliseconds only.
const LATE_NS: u64 = 20_000_000;
/// Messages listed that somebody waits for.
const MESSAGES_MAX: usize = 8;

/// What the traces tell about one group.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Finding {
    /// At this place ranks called different things: who called what.
    Diverged { seq: u64, sides: Vec<(Vec<usize>, Signature)> },
    /// Some ranks waited in an operation for others.
    Missing { seq: u64, call: Signature, waiting: Vec<usize>, waited_ns: u64, missing: Vec<Absent> },
    /// All came to an operation, and these did not finish it.
    Stuck { seq: u64, call: Signature, ranks: Vec<usize> },
    /// All agree on what they all remember.
    Agreed { ranks: usize, seqs: Option<(u64, u64)> },
}

/// A rank that did not come to an operation, and its last one, if it left a trace.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Absent {
    rank: usize,
    left: Option<Option<(u64, Signature)>>,
}

/// One rank's collectives in a group.
struct Side<'t> {
    rank: usize,
    trace: &'t Trace,
    status: &'t GroupStatus,
    calls: BTreeMap<u64, &'t Entry>,
}

impl Side<'_> {
    fn last(&self) -> u64 {
        self.calls.keys().next_back().copied().unwrap_or(0)
    }

    fn is_unfinished(&self, seq: u64) -> bool {
        self.calls.get(&seq).is_some_and(|entry| entry.state != State::Completed)
    }
}

/// A group as all who left a trace saw it.
struct Group<'t> {
    ranks: &'t [usize],
    sides: Vec<Side<'t>>,
}

impl<'t> Group<'t> {
    fn of(name: &str, traces: &'t [Trace]) -> Self {
        let side = |trace: &'t Trace| {
            let begun = |entry: &&Entry| !entry.is_p2p && entry.state != State::Scheduled;
            let own = trace.entries.iter().filter(|entry| entry.process_group.0 == name).filter(begun);
            let calls = own.map(|entry| (entry.collective_seq_id, entry)).collect();
            Some(Side { rank: trace.rank, trace, status: trace.pg_status.get(name)?, calls })
        };
        let config = traces.iter().find_map(|trace| trace.pg_config.get(name));
        let ranks = config.map_or(&[][..], |config| &config.ranks[..]);
        Self { ranks, sides: traces.iter().filter_map(side).collect() }
    }

    fn finding(&self) -> Finding {
        self.divergence().or_else(|| self.absence()).or_else(|| self.stop()).unwrap_or_else(|| {
            let first = self.sides.iter().filter_map(|side| side.calls.keys().next()).max();
            let last = self.sides.iter().map(Side::last).min();
            let seqs = first.copied().zip(last).filter(|(first, last)| first <= last);
            Finding::Agreed { ranks: self.sides.len(), seqs }
        })
    }

    fn divergence(&self) -> Option<Finding> {
        let seqs: BTreeSet<u64> = self.sides.iter().flat_map(|side| side.calls.keys().copied()).collect();
        seqs.into_iter().find_map(|seq| {
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

    /// Everybody's call at one place.
    fn at(&self, seq: u64) -> impl Iterator<Item = (usize, &'t Entry)> {
        self.sides.iter().filter_map(move |side| Some((side.rank, *side.calls.get(&seq)?)))
    }

    /// What ranks were told of who is missing counts; else it is who has not come to where others wait.
    fn absence(&self) -> Option<Finding> {
        let waits = |side: &&Side<'_>| side.is_unfinished(side.last());
        let seq = self.sides.iter().filter(waits).map(Side::last).min()?;
        let mut missing: BTreeSet<usize> =
            self.sides.iter().flat_map(|side| side.status.missing.iter().copied()).collect();
        if missing.is_empty() {
            let came: BTreeSet<usize> = self.at(seq).map(|(rank, _)| rank).collect();
            missing = self.ranks.iter().copied().filter(|rank| !came.contains(rank)).collect();
        }
        let (_, call) = self.at(seq).next()?;
        let waiting: Vec<&Side<'_>> = self
            .sides
            .iter()
            .filter(|side| side.is_unfinished(seq) && !missing.contains(&side.rank))
            .collect();
        if missing.is_empty() || waiting.is_empty() {
            return None;
        }
        let waited = |side: &&Side<'_>| {
            let since = side.calls[&seq].time_discovered_started_ns?;
            Some(side.trace.time_dumped_ns.saturating_sub(since))
        };
        let absent = |rank: usize| {
            let left = self.sides.iter().find(|side| side.rank == rank);
            let last = |side: &Side<'_>| {
                let (&seq, entry) = side.calls.iter().next_back()?;
                Some((seq, entry.signature.clone()))
            };
            Absent { rank, left: left.map(last) }
        };
        Some(Finding::Missing {
            seq,
            call: call.signature.clone(),
            waited_ns: waiting.iter().filter_map(waited).max().unwrap_or(0),
            waiting: waiting.iter().map(|side| side.rank).collect(),
            missing: missing.into_iter().map(absent).collect(),
        })
    }

    fn stop(&self) -> Option<Finding> {
        let seq = self.sides.iter().map(Side::last).min()?;
        let ranks: Vec<usize> =
            self.sides.iter().filter(|side| side.is_unfinished(seq)).map(|side| side.rank).collect();
        let (_, call) = self.at(seq).next()?;
        (!ranks.is_empty()).then(|| Finding::Stuck { seq, call: call.signature.clone(), ranks })
    }

    /// Who came latest after the first, and where, among the operations that all remember.
    fn latest(&self) -> Option<(u64, &'t Entry, usize, u64)> {
        let seqs = self.sides.first()?.calls.keys();
        let late = seqs.filter_map(|&seq| {
            let calls: Vec<_> = self.at(seq).collect();
            if calls.len() < self.ranks.len() {
                return None;
            }
            let begun = |(_, entry): &&(usize, &Entry)| entry.time_created_ns;
            let (first, last) = (calls.iter().min_by_key(begun)?, calls.iter().max_by_key(begun)?);
            Some((last.1.time_created_ns - first.1.time_created_ns, last.1, last.0, seq))
        });
        late.max_by_key(|(late, ..)| *late).filter(|(late, ..)| *late >= LATE_NS)
    }
}

/// All that can be said of a job by its traces, a line each: who called something else than the others and where, who did not come,
/// who was late.
pub fn text(traces: &[Trace]) -> String {
    let mut lines = Vec::new();
    let world_size = traces.first().map_or(0, |trace| trace.world_size);
    let absent: Vec<usize> =
        (0..world_size).filter(|&rank| traces.iter().all(|trace| trace.rank != rank)).collect();
    if !absent.is_empty() {
        lines.push(format!("no trace of {} (of {world_size})", list(&absent)));
    }
    let mut reasons: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for trace in traces {
        reasons.entry(&trace.reason).or_default().push(trace.rank);
    }
    if reasons.len() > 1 {
        let told = reasons.iter().map(|(reason, ranks)| format!("{}: {reason}", list(ranks)));
        lines.push(format!("written at different moments: {}", told.collect::<Vec<_>>().join("; ")));
    }
    let names: BTreeSet<&str> =
        traces.iter().flat_map(|trace| trace.pg_config.keys().map(String::as_str)).collect();
    for name in names {
        let group = Group::of(name, traces);
        lines.push(format!("{name}: {}", group.finding()));
        if let Some((late, entry, rank, seq)) = group.latest() {
            let late = late as f64 / 1e9;
            lines.push(format!(
                "{name}: latest was rank {rank}, {late:.3} s after the first, at #{seq} {}",
                entry.signature
            ));
        }
        let told = group.sides.iter().find_map(|side| Some((side.rank, side.status.failed.as_ref()?)));
        lines.extend(told.map(|(rank, cause)| format!("{name}: failed, as rank {rank} was told: {cause}")));
    }
    lines.extend(messages(traces));
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Messages that did not come or go.
fn messages(traces: &[Trace]) -> Vec<String> {
    let waits = |entry: &&Entry| entry.is_p2p && !entry.retired;
    let line = |entry: &Entry| {
        let (group, name) = (&entry.process_group.0, &entry.profiling_name);
        let name = name.strip_prefix("phalanx:").unwrap_or(name);
        format!("{group}: unfinished {name}, tag {}: {}", entry.tag.unwrap_or(0), entry.signature)
    };
    let mut lines: Vec<_> =
        traces.iter().flat_map(|trace| trace.entries.iter().filter(waits)).map(line).collect();
    if lines.len() > MESSAGES_MAX {
        let more = lines.len() - MESSAGES_MAX;
        lines.truncate(MESSAGES_MAX);
        lines.push(format!("and {more} more unfinished messages"));
    }
    lines
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
                missing.iter().try_for_each(|Absent { rank, left }| match left {
                    None => write!(f, "; rank {rank} left no trace"),
                    Some(None) => write!(f, "; rank {rank} had called nothing"),
                    Some(Some((seq, call))) => write!(f, "; the last of rank {rank} was #{seq} {call}"),
                })
            }
            Self::Stuck { seq, call, ranks } => {
                write!(f, "all came to operation #{seq} {call}, and {} did not finish it", list(ranks))
            }
            Self::Agreed { ranks, seqs: Some((first, last)) } => {
                write!(f, "all {ranks} ranks agree, from operation #{first} to #{last}")
            }
            Self::Agreed { ranks, seqs: None } => {
                write!(f, "{ranks} ranks, and no operation that all of them remember")
            }
        }
    }
}

/// `rank 3`, `ranks 0-2, 5`; in order.
fn list(ranks: &[usize]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::GroupConfig;
    use phalanx_core::{CallSite, OpKind};
    use proptest::prelude::*;

    fn call(line: u32) -> Signature {
        let site = CallSite { file: "a.rs".into(), line };
        let (dtype, count) = (None, u64::from(line));
        Signature { op: OpKind::Barrier, dtype, count, reduce: None, root: None, detail: 0, site }
    }

    /// A rank that has called what these lines say, from `first` on, a second each; the last may be unfinished.
    fn trace(rank: usize, world_size: usize, first: u64, lines: &[u32], done: bool) -> Trace {
        let last = first + lines.len() as u64 - 1;
        let entries = lines.iter().zip(first..).map(|(&line, seq)| {
            let begun = seq * 1_000_000_000;
            let state = if seq < last || done { State::Completed } else { State::Started };
            Entry {
                record_id: seq,
                pg_id: 0,
                process_group: ("world".into(), String::new()),
                collective_seq_id: seq,
                p2p_seq_id: 0,
                op_id: seq,
                profiling_name: "phalanx:barrier".into(),
                time_created_ns: begun,
                time_discovered_started_ns: Some(begun),
                time_discovered_completed_ns: None,
                duration_ms: None,
                input_sizes: Vec::new(),
                input_dtypes: Vec::new(),
                output_sizes: Vec::new(),
                output_dtypes: Vec::new(),
                state,
                timeout_ms: 0,
                is_p2p: false,
                retired: false,
                frames: Vec::new(),
                signature: call(line),
                tag: None,
            }
        });
        let ranks = (0..world_size).collect();
        let config = GroupConfig { name: "world".into(), desc: String::new(), ranks };
        Trace {
            version: String::new(),
            comm_lib_version: String::new(),
            rank,
            world_size,
            host: "h".into(),
            reason: String::new(),
            time_dumped_ns: 100_000_000_000,
            pg_config: [("world".to_owned(), config)].into(),
            pg_status: [("world".to_owned(), GroupStatus::default())].into(),
            entries: entries.collect(),
        }
    }

    fn finding(traces: &[Trace]) -> Finding {
        Group::of("world", traces).finding()
    }

    #[test]
    fn who_did_not_come_is_told_with_its_last_call() {
        let traces = [
            trace(0, 4, 1, &[7, 7, 8], false),
            trace(1, 4, 1, &[7, 7], true),
            trace(3, 4, 1, &[7, 7, 8], false),
        ];
        assert_eq!(
            text(&traces),
            "no trace of rank 2 (of 4)\n\
             world: ranks 1-2 missing at operation #3, where ranks 0, 3 waited for 97.000 s in barrier() at a.rs:8; \
             the last of rank 1 was #2 barrier() at a.rs:7; rank 2 left no trace\n"
        );
    }

    #[test]
    fn what_ranks_were_told_counts_more_than_who_is_behind() {
        let mut traces = [trace(0, 3, 1, &[7, 7, 8], false), trace(1, 3, 1, &[7, 7], true)];
        traces[0].pg_status.get_mut("world").unwrap().missing = vec![2];
        let Finding::Missing { seq, missing, .. } = finding(&traces) else { panic!() };
        assert_eq!((seq, missing), (3, vec![Absent { rank: 2, left: None }]));
    }

    #[test]
    fn an_operation_that_all_came_to_and_some_did_not_finish() {
        let traces = [trace(0, 2, 1, &[7, 8], false), trace(1, 2, 1, &[7, 8, 9], true)];
        assert!(matches!(finding(&traces), Finding::Stuck { seq: 2, ranks, .. } if ranks == [0]));
    }

    #[test]
    fn who_was_late_is_named() {
        let mut traces = [trace(0, 2, 1, &[7, 8], true), trace(1, 2, 1, &[7, 8], true)];
        traces[1].entries[1].time_created_ns += 1_500_000_000;
        assert_eq!(
            text(&traces),
            "world: all 2 ranks agree, from operation #1 to #2\n\
             world: latest was rank 1, 1.500 s after the first, at #2 barrier() at a.rs:8\n"
        );
    }

    #[test]
    fn traces_of_different_moments_are_told_apart() {
        let mut traces = [trace(0, 2, 1, &[7], true), trace(1, 2, 1, &[7], true)];
        assert!(!text(&traces).contains("moments"));
        traces[1].reason = "SIGUSR1 at rank 1".into();
        let said = text(&traces);
        assert!(
            said.starts_with("written at different moments: rank 0: ; rank 1: SIGUSR1 at rank 1\n"),
            "{said}"
        );
    }

    proptest! {
        /// Whatever each remembers of a common past, the verdict is about the place where one of them left it.
        #[test]
        fn the_first_difference_is_found(
            past in proptest::collection::vec(0u32..3, 1..40),
            forgotten in proptest::collection::vec(0usize..40, 2..6),
            place in 0usize..40,
            odd in 0usize..6,
            differs in any::<bool>(),
        ) {
            let world_size = forgotten.len();
            let (place, odd) = (place % past.len(), odd % world_size);
            let traces: Vec<Trace> = (0..world_size).map(|rank| {
                let mut lines = past.clone();
                if differs && rank == odd {
                    lines[place] = 9;
                }
                // All remember the place.
                let first = forgotten[rank].min(place);
                trace(rank, world_size, first as u64 + 1, &lines[first..], true)
            }).collect();
            match finding(&traces) {
                Finding::Diverged { seq, sides } => {
                    prop_assert!(differs && seq == place as u64 + 1);
                    let who = sides.iter().find(|(_, call)| call.site.line == 9).map(|(ranks, _)| ranks.clone());
                    prop_assert_eq!(who, Some(vec![odd]));
                }
                Finding::Agreed { ranks, seqs } => {
                    let first = forgotten.iter().map(|&first| first.min(place)).max().unwrap() as u64 + 1;
                    prop_assert!(!differs && ranks == world_size);
                    prop_assert_eq!(seqs, Some((first, past.len() as u64)));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
