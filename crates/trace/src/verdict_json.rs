//! The verdict as JSON, for programs that read it; pure.

use super::diagnosis::{lines, told_causes};
use super::finding::{Finding, Group, Left, Place};
use super::merge::Merged;
use phalanx_core::Signature;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What [`verdict`](crate::verdict()) says, in fields: `world_size`, `traces` (the ranks that have left one), `unread` (files that tell nothing),
/// `causes` (what ranks were told went wrong first, that of most ranks first), and for each of `groups` its `finding`, as a name, with the ranks and the
/// calls that belong to it. `words` has the lines of the text. What is not known is `null`.
///
/// # Examples
/// ```
/// use phalanx_trace::{Merged, Unread};
///
/// let merged = Merged { traces: Vec::new(), unread: vec![Unread::new("trace_rank_0.json", "it is empty")] };
/// assert_eq!(phalanx_trace::verdict_json(&merged)["unread"][0]["rank"], 0);
/// ```
pub fn json(merged: &Merged) -> Value {
    let Merged { traces, unread } = merged;
    let ids: BTreeSet<&str> =
        traces.iter().flat_map(|trace| trace.pg_config.keys().map(String::as_str)).collect();
    let groups = ids.into_iter().map(|id| group(id, &Group::of(id, traces, unread)));
    json!({
        "world_size": traces.first().map(|trace| trace.world_size),
        "traces": traces.iter().map(|trace| trace.rank).collect::<Vec<_>>(),
        "unread": unread.iter().map(|it| json!({ "file": it.file, "rank": it.rank, "why": it.why })).collect::<Vec<_>>(),
        "causes": told_causes(traces).into_iter().map(|(cause, ranks)| json!({ "cause": cause, "ranks": ranks })).collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
        "words": lines(merged),
    })
}

fn group(id: &str, group: &Group<'_>) -> Value {
    let finding = group.finding();
    let words = finding.to_string();
    let (kind, mut fields) = match finding {
        Finding::Diverged { seq, sides } => {
            let side = |(ranks, of): (Vec<usize>, Signature)| json!({ "ranks": ranks, "call": call(&of) });
            (
                "diverged",
                json!({ "operation": seq, "sides": sides.into_iter().map(side).collect::<Vec<_>>() }),
            )
        }
        Finding::Missing { seq, call: of, waiting, waited_ns, missing } => {
            let missing = missing.into_iter().map(|absent| {
                let last = if let Left::Last(Some((seq, of))) = &absent.left {
                    Some(json!({ "operation": seq, "call": call(of) }))
                } else {
                    None
                };
                json!({ "rank": absent.rank, "last": last, "words": absent.to_string() })
            });
            let missing: Vec<Value> = missing.collect();
            let seconds = waited_ns as f64 / 1e9;
            (
                "missing",
                json!({ "operation": seq, "call": call(&of), "waiting": waiting, "waited_seconds": seconds, "missing": missing }),
            )
        }
        Finding::Stuck { seq, call: of, ranks, waited_ns } => (
            "stuck",
            json!({ "operation": seq, "call": call(&of), "unfinished": ranks, "waited_seconds": waited_ns as f64 / 1e9 }),
        ),
        Finding::UnderWay { places } => {
            let place = |(ranks, place): (Vec<usize>, Place)| {
                let (state, seq, of) = match &place {
                    Place::In { seq, call } => ("in", *seq, Some(call)),
                    Place::After { seq, call } => ("after", Some(*seq), Some(call)),
                    Place::Nowhere => ("before_the_first", None, None),
                };
                json!({ "ranks": ranks, "state": state, "operation": seq, "call": of.map(call) })
            };
            ("under_way", json!({ "places": places.into_iter().map(place).collect::<Vec<_>>() }))
        }
        Finding::Agreed { ranks: _, seqs } => {
            let (first, last) = seqs.unzip();
            ("agreed", json!({ "first_operation": first, "last_operation": last }))
        }
    };
    let failed = group.failed().map(|(rank, cause)| json!({ "cause": cause, "told_to": rank }));
    fields["id"] = json!(id);
    fields["ranks"] = json!(group.ranks());
    fields["finding"] = json!(kind);
    fields["words"] = json!(words);
    fields["failed"] = json!(failed);
    fields["latest"] = json!(group.latest().map(|latest| latest.to_string()));
    fields
}

fn call(of: &Signature) -> Value {
    json!({ "op": of.op.name(), "file": of.site.file, "line": of.site.line, "words": of.to_string() })
}
