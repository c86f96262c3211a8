//! Traces in words: the job's first cause, then what is to be said of each group; pure.

use super::Trace;
use super::finding::{Finding, Group, STUCK_NS, is_open_message, list};
use super::merge::{Merged, Unread};
use std::collections::{BTreeMap, BTreeSet};

/// Messages listed that somebody waits for.
const MESSAGES_MAX: usize = 8;
/// Members of a group that are listed; of more it is said how many they are.
const MEMBERS_MAX: usize = 16;
/// A trace that is older by this than the newest was hardly written for the same reason.
const OLD_NS: u64 = 60_000_000_000;

/// All that can be said of a job by its traces, a line each: what went wrong first; then for each group who called something else than
/// the others and where, who did not come, who was late.
///
/// A job in which nothing has failed and nobody has waited for two seconds is said to be well, with where each rank is.
///
/// # Examples
/// ```
/// use phalanx_trace::{Merged, Unread};
///
/// let merged = Merged { traces: Vec::new(), unread: vec![Unread::new("trace_rank_0.json", "it is empty")] };
/// assert!(phalanx_trace::verdict(&merged).contains("trace_rank_0.json"));
/// ```
pub fn text(merged: &Merged) -> String {
    lines(merged).into_iter().map(|line| line + "\n").collect()
}

/// The same, line by line.
pub(super) fn lines(merged: &Merged) -> Vec<String> {
    let Merged { traces, unread } = merged;
    let mut lines = first_causes(traces);
    lines.extend(files(traces, unread));
    let ids: BTreeSet<&str> =
        traces.iter().flat_map(|trace| trace.pg_config.keys().map(String::as_str)).collect();
    let groups: Vec<(&str, Group<'_>)> =
        ids.into_iter().map(|id| (id, Group::of(id, traces, unread))).collect();
    let names: BTreeMap<&str, String> =
        groups.iter().map(|(id, group)| (*id, name(id, group, &groups))).collect();
    let messages = messages(traces, &groups, &names);
    let findings: Vec<_> = groups.iter().map(|(id, group)| (*id, group, group.finding())).collect();
    let is_well = |(_, group, finding): &(&str, &Group<'_>, Finding)| {
        group.failed().is_none() && matches!(finding, Finding::UnderWay { .. } | Finding::Agreed { .. })
    };
    let all_told = traces.first().is_some_and(|trace| traces.len() == trace.world_size);
    let none_failed = traces.iter().all(|trace| trace.first_cause.is_none());
    let is_at_work = findings.iter().any(|(.., finding)| matches!(finding, Finding::UnderWay { .. }));
    if all_told && none_failed && is_at_work && messages.is_empty() && findings.iter().all(is_well) {
        let seconds = STUCK_NS / 1_000_000_000;
        lines.push(format!(
            "nothing is wrong: no group has failed, and no rank had waited for {seconds} s in one operation"
        ));
    }
    let first = traces.iter().find_map(|trace| trace.first_cause.as_deref());
    let mut quiet = 0;
    for (id, group, finding) in &findings {
        let (name, latest) = (&names[id], group.latest());
        let failed = group.failed();
        if *id != "world" && failed.is_none() && latest.is_none() && matches!(finding, Finding::Agreed { .. })
        {
            quiet += 1;
            continue;
        }
        lines.push(format!("{name}: {finding}"));
        lines.extend(latest.map(|latest| format!("{name}: {latest}")));
        let own = failed.filter(|(_, cause)| Some(*cause) != first);
        lines.extend(own.map(|(rank, cause)| format!("{name}: failed, as rank {rank} was told: {cause}")));
    }
    if quiet > 0 {
        lines.push(format!("{quiet} other group{}: all ranks agree", if quiet == 1 { "" } else { "s" }));
    }
    lines.extend(messages);
    lines
}

/// What went wrong first, by the word of most ranks; and who was told something else.
fn first_causes(traces: &[Trace]) -> Vec<String> {
    let line = |(i, (cause, ranks)): (usize, (&str, Vec<usize>))| match i {
        0 => format!("root cause: {cause}"),
        _ => format!("but {} heard: {cause}", list(&ranks)),
    };
    told_causes(traces).into_iter().enumerate().map(line).collect()
}

/// What ranks were told went wrong first, with those that were: that of most ranks first.
pub(super) fn told_causes(traces: &[Trace]) -> Vec<(&str, Vec<usize>)> {
    let mut told: Vec<(&str, Vec<usize>)> = Vec::new();
    for trace in traces {
        let Some(cause) = trace.first_cause.as_deref() else { continue };
        match told.iter_mut().find(|(other, _)| *other == cause) {
            Some((_, ranks)) => ranks.push(trace.rank),
            None => told.push((cause, vec![trace.rank])),
        }
    }
    // The lowest rank is as near to the arbiter as any.
    told.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks[0]));
    told
}

/// The ranks whose trace is not there, can't be used, is old, or was written for another reason.
fn files(traces: &[Trace], unread: &[Unread]) -> Vec<String> {
    let mut lines: Vec<_> =
        unread.iter().map(|Unread { file, why, .. }| format!("{file} can't be used: {why}")).collect();
    let world_size = traces.first().map_or(0, |trace| trace.world_size);
    let is_absent = |&rank: &usize| {
        traces.iter().all(|trace| trace.rank != rank) && unread.iter().all(|file| file.rank != Some(rank))
    };
    let absent: Vec<usize> = (0..world_size).filter(is_absent).collect();
    if !absent.is_empty() {
        lines.push(format!("no trace of {} (of {world_size})", list(&absent)));
    }
    let newest = traces.iter().map(|trace| trace.time_dumped_ns).max().unwrap_or(0);
    for trace in traces {
        let age = newest - trace.time_dumped_ns;
        if age > OLD_NS {
            let (rank, age) = (trace.rank, age / 1_000_000_000);
            lines.push(format!(
                "the trace of rank {rank} was written {age} s before the newest: it may be of an earlier job"
            ));
        }
    }
    // What led to a failure is said as its cause.
    let mut reasons: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for trace in traces {
        reasons.entry(&trace.reason).or_default().push(trace.rank);
    }
    let failed = traces.iter().filter(|trace| trace.first_cause.is_some()).count();
    if reasons.len() > 1 && failed < traces.len() {
        let told = reasons.iter().map(|(reason, ranks)| format!("{}: {reason}", list(ranks)));
        lines.push(format!("written at different moments: {}", told.collect::<Vec<_>>().join("; ")));
    }
    lines
}

/// A group by its members: `the group of ranks 1, 4, 7`; with its id, if several groups have these members.
fn name(id: &str, group: &Group<'_>, groups: &[(&str, Group<'_>)]) -> String {
    let ranks = group.ranks();
    if id == "world" || ranks.is_empty() {
        return id.to_owned();
    }
    let listed: Vec<_> = ranks.iter().take(MEMBERS_MAX).map(usize::to_string).collect();
    let rest =
        if ranks.len() > MEMBERS_MAX { format!(", … ({} ranks)", ranks.len()) } else { String::new() };
    let twins = groups.iter().filter(|(other, group)| *other != "world" && group.ranks() == ranks).count();
    let id = if twins > 1 { format!(" ({id})") } else { String::new() };
    format!("the group of ranks {}{rest}{id}", listed.join(", "))
}

/// Messages that did not come or go: in groups that have failed, or for long.
fn messages(traces: &[Trace], groups: &[(&str, Group<'_>)], names: &BTreeMap<&str, String>) -> Vec<String> {
    let mut lines = Vec::new();
    for (id, group) in groups {
        for trace in traces {
            for entry in trace.entries.iter().filter(|entry| is_open_message(entry, id)) {
                let waited_ns = trace.time_dumped_ns.saturating_sub(entry.time_created_ns);
                if group.failed().is_none() && waited_ns < STUCK_NS {
                    continue;
                }
                let what = entry.profiling_name.strip_prefix("phalanx:").unwrap_or(&entry.profiling_name);
                let (name, tag, seconds) = (&names[id], entry.tag.unwrap_or(0), waited_ns as f64 / 1e9);
                let call = &entry.signature;
                lines.push(format!("{name}: unfinished {what}, tag {tag}, after {seconds:.3} s: {call}"));
            }
        }
    }
    if lines.len() > MESSAGES_MAX {
        let more = lines.len() - MESSAGES_MAX;
        lines.truncate(MESSAGES_MAX);
        lines.push(format!("and {more} more unfinished messages"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Absent, Left};
    use crate::{Entry, GroupConfig, GroupStatus, State};
    use phalanx_core::{CallSite, Method, OpKind, Signature};
    use proptest::prelude::*;

    fn call(line: u32) -> Signature {
        let site = CallSite { file: "a.rs".into(), line };
        let (dtype, count) = (None, u64::from(line));
        Signature {
            op: OpKind::Barrier,
            dtype,
            count,
            reduce: None,
            root: None,
            detail: 0,
            method: Method::UNSAID,
            site,
        }
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
            first_cause: None,
            pg_config: [("world".to_owned(), config)].into(),
            pg_status: [("world".to_owned(), GroupStatus::default())].into(),
            entries: entries.collect(),
        }
    }

    fn text(traces: &[Trace]) -> String {
        super::text(&Merged { traces: traces.to_vec(), unread: Vec::new() })
    }

    fn finding(traces: &[Trace]) -> Finding {
        Group::of("world", traces, &[]).finding()
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
        assert_eq!((seq, missing), (3, vec![Absent { rank: 2, left: Left::Nothing }]));
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
    fn nobody_is_named_the_latest_who_was_not_last_in_most_operations() {
        // Rank 1 is last in most; rank 0 once, and by more.
        let late = |whom: &[usize]| {
            let mut traces = [0, 1, 2].map(|rank| trace(rank, 3, 1, &[7; 5], true));
            for (at, &rank) in whom.iter().enumerate() {
                traces[rank].entries[at].time_created_ns += if rank == 0 { 300_000_000 } else { 50_000_000 };
            }
            text(&traces)
        };
        let said = late(&[1, 1, 0, 1]);
        let expected = "world: latest was rank 1, in 3 of the 4 operations to which a rank came late, at most 0.050 s after";
        assert!(said.contains(expected), "{said}");
        let said = late(&[1, 0, 2, 1]);
        let expected = "world: ranks came late to 4 operations, and none was the last in most of them\n";
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn a_healthy_job_is_said_to_be_well_with_where_everybody_is() {
        let mut traces =
            [trace(0, 3, 1, &[7, 8], false), trace(1, 3, 1, &[7], true), trace(2, 3, 1, &[7, 8], false)];
        for trace in &mut traces {
            trace.time_dumped_ns = 2_004_000_000;
        }
        assert_eq!(
            text(&traces),
            "nothing is wrong: no group has failed, and no rank had waited for 2 s in one operation\n\
             world: ranks 0, 2 are in operation #2 barrier() at a.rs:8; \
             rank 1 is between operations, after #1 barrier() at a.rs:7\n"
        );
        traces[0].time_dumped_ns += STUCK_NS;
        let said = text(&traces);
        assert!(
            said.starts_with("world: rank 1 missing at operation #2, where ranks 0, 2 waited for 2.004 s"),
            "{said}"
        );
    }

    #[test]
    fn whom_a_message_waited_for_is_missing_in_no_collective() {
        // Rank 0 was late in a receive from rank 2; rank 1 has not come to the barrier.
        let mut traces =
            [trace(0, 3, 1, &[7, 8], false), trace(1, 3, 1, &[7], true), trace(2, 3, 1, &[7, 8], false)];
        traces[0].pg_status.get_mut("world").unwrap().missing = vec![2];
        traces[0].pg_status.get_mut("world").unwrap().missing_at = Some(9);
        let Finding::Missing { missing, .. } = finding(&traces) else { panic!() };
        assert_eq!(missing.iter().map(|absent| absent.rank).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_cause_of_the_job_comes_first_and_groups_are_named_by_their_members() {
        let mut traces = [0, 1, 2].map(|rank| trace(rank, 4, 1, &[7, 8], rank == 1));
        let lost = "rank 3 (h) died";
        for trace in &mut traces {
            trace.first_cause = Some(lost.into());
            trace.pg_status.get_mut("world").unwrap().failed = Some(lost.into());
            let mut group = trace.pg_config["world"].clone();
            group.ranks = vec![0, 1, 2];
            trace.pg_config.insert("group 1dffa1e8".into(), group);
            trace.pg_status.insert("group 1dffa1e8".into(), GroupStatus::default());
        }
        traces[1].pg_status.remove("group 1dffa1e8");
        let mut barrier = traces[0].entries[1].clone();
        barrier.process_group.0 = "group 1dffa1e8".into();
        barrier.collective_seq_id = 1;
        traces[0].entries.push(barrier);
        let unread = vec![Unread::new("d/trace_rank_3.json", "it is empty")];
        let said = super::text(&Merged { traces: traces.to_vec(), unread });
        assert_eq!(
            said,
            "root cause: rank 3 (h) died\n\
             d/trace_rank_3.json can't be used: it is empty\n\
             the group of ranks 0, 1, 2: ranks 1-2 missing at operation #1, where rank 0 waited for 98.000 s in barrier() at a.rs:8; \
             rank 1 had dropped this group when it wrote its trace; rank 2 had called nothing\n\
             world: rank 3 missing at operation #2, where ranks 0, 2 waited for 98.000 s in barrier() at a.rs:8; \
             the trace of rank 3 can't be used (d/trace_rank_3.json: it is empty)\n"
        );
        traces[2].first_cause = Some("rank 0 (h) panicked".into());
        let said = text(&traces);
        assert!(
            said.starts_with("root cause: rank 3 (h) died\nbut rank 2 heard: rank 0 (h) panicked\n"),
            "{said}"
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
