//! Files that should be what ranks wrote.

use crate::trace::{chrome, merged, verdict};

/// They are refused, or something can be said of them and drawn. No text has a zero byte: it stands between files.
pub fn traces(data: &[u8]) {
    let files = data.split(|&byte| byte == 0).enumerate();
    if let Ok(traces) = merged(files.map(|(i, text)| Ok((i.to_string(), text.to_vec())))) {
        assert!(verdict(&traces).ends_with('\n') || traces.iter().all(|trace| trace.pg_config.is_empty()));
        assert!(chrome(&traces)["traceEvents"].as_array().is_some_and(|events| events.len() >= traces.len()));
    }
}
