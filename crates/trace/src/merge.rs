//! From what the ranks of a job wrote to one list.

use super::Trace;
use phalanx_core::{Error, Result};
use std::collections::BTreeMap;

/// Ranks of the largest job of which anything is said.
const WORLD_SIZE_MAX: usize = 1 << 20;

/// What the files of a job hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merged {
    /// One trace a rank, in rank order.
    pub traces: Vec<Trace>,
    /// The files that hold no trace of this job.
    pub unread: Vec<Unread>,
}

/// A file that is there and tells nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its path.
    pub file: String,
    /// The rank that wrote it, if its name says so: `trace_rank_4.json`.
    pub rank: Option<usize>,
    /// What is wrong with it.
    pub why: String,
}

impl Unread {
    /// A file with this path, of which this is wrong.
    ///
    /// # Examples
    /// ```
    /// use phalanx_trace::Unread;
    /// assert_eq!(Unread::new("logs/trace_rank_4.json", "the file is empty").rank, Some(4));
    /// ```
    pub fn new(file: impl Into<String>, why: impl Into<String>) -> Self {
        let file = file.into();
        let name = file.rsplit(['/', '\\']).next().unwrap_or(&file);
        let rank = name.strip_prefix("trace_rank_").and_then(|rest| rest.strip_suffix(".json"));
        Self { rank: rank.and_then(|rank| rank.parse().ok()), file, why: why.into() }
    }
}

/// One trace a rank from the contents of files with their names; a file is given as what is wrong with it if it can't be read.
///
/// The trace that was written last says how large the job is. Files of other jobs, and files that hold no trace, are in
/// [`unread`](Merged::unread).
///
/// # Errors
/// [`Error::Config`] if two files are from one rank, or no file holds a trace.
///
/// # Examples
/// ```
/// let file = br#"{
///     "version": "2.10", "comm_lib_version": "", "rank": 0, "world_size": 1, "host": "node7:4211", "reason": "asked",
///     "time_dumped_ns": 0, "pg_config": {}, "pg_status": {}, "entries": []
/// }"#;
/// let files = [("trace_rank_0.json".to_owned(), Ok(file.to_vec())), ("notes.json".to_owned(), Err("no right to read it".to_owned()))];
/// let merged = phalanx_trace::merged(files)?;
/// assert_eq!((merged.traces.len(), merged.unread[0].file.as_str()), (1, "notes.json"));
/// # Ok::<(), phalanx_core::Error>(())
/// ```
pub fn merged(files: impl IntoIterator<Item = (String, Result<Vec<u8>, String>)>) -> Result<Merged> {
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for (file, text) in files {
        match text.and_then(|text| parsed(&text)) {
            Ok(trace) => found.push((file, trace)),
            Err(why) => unread.push(Unread::new(file, why)),
        }
    }
    let last = found.iter().max_by_key(|(_, trace)| trace.time_dumped_ns);
    let Some((named_by, world_size)) = last.map(|(file, trace)| (file.clone(), trace.world_size)) else {
        let why = unread.iter().map(|Unread { file, why, .. }| format!("{file}: {why}"));
        let why = why.collect::<Vec<_>>().join("; ");
        return Err(Error::config(format!("no file holds a trace: {why}")));
    };
    let mut traces: BTreeMap<usize, (String, Trace)> = BTreeMap::new();
    for (file, trace) in found {
        if trace.world_size != world_size {
            let why = format!(
                "it is from a job of {} ranks, {named_by} from one of {world_size}",
                trace.world_size
            );
            unread.push(Unread::new(file, why));
            continue;
        }
        let rank = trace.rank;
        if let Some((other, _)) = traces.insert(rank, (file.clone(), trace)) {
            return Err(Error::config(format!("{file} and {other} are both from rank {rank}")));
        }
    }
    Ok(Merged { traces: traces.into_values().map(|(_, trace)| trace).collect(), unread })
}

/// The trace in a file, or what is wrong with it.
fn parsed(text: &[u8]) -> Result<Trace, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    let trace: Trace =
        serde_json::from_slice(text).map_err(|error| format!("it is not what a rank wrote: {error}"))?;
    let (rank, world_size) = (trace.rank, trace.world_size);
    if rank >= world_size || world_size > WORLD_SIZE_MAX {
        return Err(format!("it is from rank {rank} of {world_size}: no job has that"));
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    type File = (String, Result<Vec<u8>, String>);

    fn file(rank: usize, world_size: usize) -> File {
        let text = serde_json::json!({
            "version": "", "comm_lib_version": "", "rank": rank, "world_size": world_size, "host": "", "reason": "",
            "time_dumped_ns": 10 - rank, "pg_config": {}, "pg_status": {}, "entries": [],
        });
        (format!("dir/trace_rank_{rank}.json"), Ok(text.to_string().into_bytes()))
    }

    #[test]
    fn traces_of_one_job_are_put_in_order_and_others_refused() {
        let ranks = |files: Vec<_>| {
            merged(files).map(|merged| merged.traces.iter().map(|t| t.rank).collect::<Vec<_>>())
        };
        assert_eq!(ranks(vec![file(2, 3), file(0, 3)]).unwrap(), [0, 2]);
        for (files, why) in [
            (vec![file(1, 2), file(1, 2)], "both from rank 1"),
            (vec![file(2, 2)], "no job has that"),
            // Whoever listed the absent ranks of such a job would be at it for years.
            (vec![file(0, usize::MAX)], "no job has that"),
            (vec![("x".into(), Ok(b"{}".to_vec()))], "x: it is not what a rank wrote"),
        ] {
            let error = ranks(files).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_file_that_tells_nothing_keeps_no_other_from_it() {
        let cut_off = ("dir/trace_rank_4.json".into(), Ok(b"{\"version\":".to_vec()));
        let locked = ("dir/trace_rank_5.json".into(), Err("permission denied".into()));
        let merged = merged(vec![file(1, 9), cut_off, file(0, 6), locked, file(2, 6)]).unwrap();
        assert!(merged.traces.iter().map(|trace| trace.rank).eq([0, 2]));
        let unread: Vec<_> = merged.unread.iter().map(|u| (u.rank, u.why.as_str())).collect();
        assert_eq!(unread.len(), 3, "{unread:?}");
        assert!(unread[0].0 == Some(4) && unread[0].1.contains("EOF"), "{unread:?}");
        assert_eq!(unread[1], (Some(5), "permission denied"));
        let other = "it is from a job of 9 ranks, dir/trace_rank_0.json from one of 6";
        assert_eq!(unread[2], (Some(1), other), "the file that was written last counts");
    }
}
