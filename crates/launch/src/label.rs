//! What stands in front of each line that a rank writes.

use std::time::SystemTime;

/// `[3] `, `[3 node-b] `, `[3 2026-11-24T17:52:35.123Z] `, or nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// Rank and host; empty: they are not shown.
    pub(crate) who: String,
    /// Whether the time is shown at which the launcher has read the line.
    pub(crate) time: bool,
}

impl Label {
    /// In front of lines that are read now.
    pub(crate) fn at(&self, now: SystemTime) -> String {
        let Self { who, time } = self;
        let time = time.then(|| humantime::format_rfc3339_millis(now).to_string());
        match (who.is_empty(), time) {
            (true, None) => String::new(),
            (false, None) => format!("[{who}] "),
            (true, Some(time)) => format!("[{time}] "),
            (false, Some(time)) => format!("[{who} {time}] "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rank_host_and_time_stand_in_one_pair_of_brackets() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_542_755_123);
        for (who, time, label) in [
            ("", false, ""),
            ("3", false, "[3] "),
            ("3 node-b", false, "[3 node-b] "),
            ("3", true, "[3 2026-11-24T17:52:35.123Z] "),
            ("", true, "[2026-11-24T17:52:35.123Z] "),
        ] {
            assert_eq!(Label { who: who.into(), time }.at(now), label);
        }
    }
}
