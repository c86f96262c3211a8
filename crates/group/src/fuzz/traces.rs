//! Files that should be what ranks wrote.

use crate::trace::{chrome, merged, verdict};

/// They are refused, or something can be said of them and drawn. No text has a zero byte: it stands between files.
pub fn traces(data: &[u8]) {
    let files = data.split(|&byte| byte == 0).enumerate();
    if let Ok(merged) = merged(files.map(|(i, text)| (i.to_string(), Ok(text.to_vec())))) {
        let traces = &merged.traces;
        assert!(verdict(&merged).ends_with('\n') || traces.iter().all(|trace| trace.pg_config.is_empty()));
        assert!(chrome(traces)["traceEvents"].as_array().is_some_and(|events| events.len() >= traces.len()));
    }
}
