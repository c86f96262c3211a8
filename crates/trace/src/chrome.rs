//! Traces as Chrome and Perfetto draw them: a process a rank, a thread a group; argument names are Kineto's; pure.

use super::{Entry, State, Trace};
use phalanx_core::DType;
use serde_json::{Value, json};

/// A timeline of all ranks, for ui.perfetto.dev or chrome://tracing.
///
/// # Examples
/// ```
/// let timeline = phalanx_trace::chrome(&[]); // write it to a file, and open that in chrome://tracing or Perfetto
/// assert!(timeline["traceEvents"].is_array());
/// ```
pub fn json(traces: &[Trace]) -> Value {
    // Whole numbers of nanoseconds since 1970 are too large for the microseconds of the viewers, which count in doubles.
    let all = traces.iter().flat_map(|trace| &trace.entries);
    let origin = all.map(|entry| entry.time_created_ns).min().unwrap_or(0);
    let mut events = Vec::new();
    for trace in traces {
        events.push(name("process_name", trace.rank, 0, &format!("rank {} ({})", trace.rank, trace.host)));
        for (id, group) in trace.pg_config.keys().enumerate() {
            events.push(name("thread_name", trace.rank, 2 * id, group));
            events.push(name("thread_name", trace.rank, 2 * id + 1, &format!("{group}, messages")));
        }
        let begun = trace.entries.iter().filter(|entry| entry.state != State::Scheduled);
        events.extend(begun.map(|entry| event(trace, entry, origin)));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": origin })
}

fn name(what: &str, rank: usize, thread: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": rank, "tid": thread, "args": { "name": name } })
}

fn event(trace: &Trace, entry: &Entry, origin: u64) -> Value {
    let begun = entry.time_discovered_started_ns.unwrap_or(entry.time_created_ns);
    // What has not ended lasts until now.
    let ended = match entry.time_discovered_completed_ns {
        None if !entry.retired => trace.time_dumped_ns,
        ended => ended.unwrap_or(begun),
    };
    let group = &entry.process_group.0;
    let thread = trace.pg_config.keys().position(|name| name == group).unwrap_or(0);
    let elements = |sizes: &[Vec<u64>]| sizes.iter().flatten().fold(0u64, |sum, n| sum.saturating_add(*n));
    let members = trace.pg_config.get(group).map(|config| &config.ranks[..]).unwrap_or_default();
    json!({
        "ph": "X",
        "cat": "communication",
        "name": entry.profiling_name,
        "pid": trace.rank,
        "tid": 2 * thread + usize::from(entry.is_p2p),
        "ts": begun.saturating_sub(origin) as f64 / 1e3,
        "dur": ended.saturating_sub(begun) as f64 / 1e3,
        "args": {
            "Collective name": entry.signature.op.name(),
            "dtype": entry.signature.dtype.map(DType::name),
            "In msg nelems": elements(&entry.input_sizes),
            "Out msg nelems": elements(&entry.output_sizes),
            "Group size": members.len(),
            "Process Group Name": group,
            "Process Group Description": entry.process_group.1,
            "Process Group Ranks": members,
            "Rank": trace.rank,
            "Seq": entry.op_id,
            "state": entry.state,
            "site": entry.signature.site.to_string(),
        }
    })
}
