//! From what the ranks of a job wrote to one list.

use super::Trace;
use phalanx_core::{Error, Result};
use std::collections::BTreeMap;

/// Ranks of the largest job of which anything is said.
const WORLD_SIZE_MAX: usize = 1 << 20;

/// One trace a rank, in rank order, from the contents of files with their names.
///
/// # Errors
/// [`Error::Config`] that names the file that is no trace, of another job than the first, or of a rank that another is of.
pub fn merged(files: impl IntoIterator<Item = Result<(String, Vec<u8>)>>) -> Result<Vec<Trace>> {
    let mut traces: BTreeMap<usize, (String, Trace)> = BTreeMap::new();
    for file in files {
        let (name, text) = file?;
        let trace: Trace = serde_json::from_slice(&text)
            .map_err(|error| Error::config(format!("{name} is not what a rank wrote: {error}")))?;
        let (rank, world_size) = (trace.rank, trace.world_size);
        if rank >= world_size || world_size > WORLD_SIZE_MAX {
            return Err(Error::config(format!(
                "{name} is from rank {rank} of {world_size}: no job has that"
            )));
        }
        if let Some((other, first)) = traces.values().next()
            && first.world_size != world_size
        {
            let size = first.world_size;
            let what = format!("{name} is from a job of {world_size} ranks, {other} from one of {size}");
            return Err(Error::config(what));
        }
        if let Some((other, _)) = traces.insert(rank, (name.clone(), trace)) {
            return Err(Error::config(format!("{name} and {other} are both from rank {rank}")));
        }
    }
    Ok(traces.into_values().map(|(_, trace)| trace).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(rank: usize, world_size: usize) -> Result<(String, Vec<u8>)> {
        let text = serde_json::json!({
            "version": "", "comm_lib_version": "", "rank": rank, "world_size": world_size, "host": "", "reason": "",
            "time_dumped_ns": 0, "pg_config": {}, "pg_status": {}, "entries": [],
        });
        Ok((format!("file {rank}"), text.to_string().into_bytes()))
    }

    #[test]
    fn traces_of_one_job_are_put_in_order_and_others_refused() {
        let ranks =
            |files: Vec<_>| merged(files).map(|traces| traces.iter().map(|t| t.rank).collect::<Vec<_>>());
        assert_eq!(ranks(vec![file(2, 3), file(0, 3)]).unwrap(), [0, 2]);
        for (files, why) in [
            (vec![file(0, 2), file(1, 3)], "from one of 2"),
            (vec![file(1, 2), file(1, 2)], "both from rank 1"),
            (vec![file(2, 2)], "no job has that"),
            // Whoever listed the absent ranks of such a job would be at it for years.
            (vec![file(0, usize::MAX)], "no job has that"),
            (vec![Ok(("x".into(), b"{}".to_vec()))], "x is not what a rank wrote"),
        ] {
            let error = ranks(files).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
