//! How a job ended, as JSON: what `phalanx run --json` writes.

use phalanx_core::{Error, Result};
use phalanx_launch::{ExitKind, Failure, NamedBy, Outcome, Report, exit_code};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The file that is to have it.
pub(crate) struct JsonFile {
    file: File,
    path: PathBuf,
}

impl JsonFile {
    /// Creates the file, or empties it: what is in there when no job runs is the end of the last.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path);
        let file = file.map_err(|error| Error::config(format!("--json {}: {error}", path.display())))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes the line.
    pub(crate) fn write(mut self, report: &Result<Report>) -> Result<()> {
        let line = format!("{}\n", report_json(report));
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| Error::io(format!("writing {}", self.path.display()), error))
    }
}

/// All fields are always there; what is not known is `null`.
fn report_json(report: &Result<Report>) -> Value {
    match report {
        Ok(report) => {
            let time = |at: SystemTime| humantime::format_rfc3339_millis(at).to_string();
            let failure = if let Outcome::Failure(failure) = &report.outcome { Some(failure) } else { None };
            json!({
                "outcome": name(&report.outcome),
                "exit_code": report.outcome.exit_code(),
                "words": first_line(&report.outcome.to_string()),
                "job_id": report.job_id,
                "ranks": report.ranks,
                "restarts": report.restarts,
                "started": time(report.started),
                "ended": time(report.started + report.took),
                "seconds": report.took.as_secs_f64(),
                "named": failure.map(|failure| named(failure)),
            })
        }
        Err(error) => json!({
            "outcome": "error",
            "exit_code": exit_code(error),
            "words": error.to_string(),
            "job_id": null, "ranks": null, "restarts": null, "started": null, "ended": null, "seconds": null, "named": null,
        }),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Failure(_) => "failure",
        Outcome::Interrupted { .. } => "interrupted",
        Outcome::TimedOut { .. } => "timed_out",
        Outcome::Led { .. } => "led_elsewhere",
        _ => "unknown",
    }
}

/// The rank of the first line of the report.
fn named(failure: &Failure) -> Value {
    let (ended, code, signal) = match failure.exit {
        ExitKind::Code(code) => ("exited", Some(code), None),
        ExitKind::Signal(signal) => ("killed", None, Some(signal)),
        ExitKind::StillRunning => ("still_running", None, None),
        ExitKind::HostLost => ("host_lost", None, None),
        _ => ("unknown", None, None),
    };
    let by = match failure.named_by {
        NamedBy::Exit => "exit",
        NamedBy::Ranks => "ranks",
        NamedBy::Nobody => "nobody",
        _ => "unknown",
    };
    json!({
        "rank": failure.rank,
        "pid": failure.pid,
        "host": failure.host,
        "host_fault": failure.host_fault,
        "ended": ended,
        "code": code,
        "signal": signal,
        "after_seconds": failure.after.as_secs_f64(),
        "named_by": by,
        "first_cause": failure.first_cause,
        "panic": failure.panic,
        "stderr_tail": failure.stderr_tail,
        "stderr_log": failure.stderr_log.as_ref().map(|log| log.display().to_string()),
        "replacements": failure.spares.map(|spares| json!({
            "used": spares.used, "most": spares.most, "sound": spares.sound, "min": spares.min,
        })),
    })
}
