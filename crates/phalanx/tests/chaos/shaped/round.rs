//! One round: a job is started, its victim hurts itself, and all that is said of the end must name it.

use super::plan::{Harm, Plan};
use super::words::culprits;
use crate::left;
use crate::round::{PLAN, TAG, finish, tag};
use crate::support::{self, Output};
use phalanx::launch::{Failure, NamedBy, Outcome};
use phalanx_group::trace::{merged, verdict};
use std::path::Path;
use std::time::Duration;

/// How long an operation may take where a rank hangs.
const TIMEOUT: Duration = Duration::from_secs(4);
/// How long a rank may be silent where one is stopped.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// What no rank of a sound job waits for, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);
/// Between the launcher's SIGTERM and its SIGKILL, where a rank must be killed. The survivors know before.
const GRACE: Duration = Duration::from_secs(6);
/// A job that has not ended by then hangs.
const HANG: Duration = Duration::from_secs(50);

/// How a round went.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Survivors that named the victim.
    pub(crate) named: usize,
    /// Survivors that named nobody.
    pub(crate) nobody: usize,
    pub(crate) trace_named_nobody: bool,
    /// Everything that was not as it must be.
    pub(crate) troubles: Vec<String>,
}

pub(crate) fn perform(plan: &Plan) -> Report {
    let mut report = Report::default();
    let (folder, logs) = (temporary(), temporary());
    let tag = tag();
    let (launch, output) = support::job("shaped", plan.ranks, folder.path());
    let seconds = |is_short, short: Duration| if is_short { short } else { LONG }.as_secs().to_string();
    let running = launch
        .env(PLAN, plan.to_text())
        .env(TAG, &tag)
        .env("PHALANX_BACKEND", plan.backend.to_string())
        .env("PHALANX_TIMEOUT_S", seconds(plan.harm == Harm::Hang, TIMEOUT))
        .env("PHALANX_HEARTBEAT_TIMEOUT_S", seconds(plan.harm == Harm::Stop, HEARTBEAT))
        .job_id("job")
        .log_dir(logs.path())
        .grace(if matches!(plan.harm, Harm::Hang | Harm::Stop) { GRACE } else { LONG })
        .spawn()
        .expect("the job starts");
    match finish(running, HANG) {
        Ok(Outcome::Failure(failure)) => {
            survivors(plan, &output, &mut report);
            report.troubles.extend(launcher(plan, &failure));
            trace(plan, &logs.path().join("job/attempt_0"), &mut report);
        }
        Ok(other) => report.troubles.push(format!("the job did not fail: {other}")),
        Err(stacks) => report.troubles.push(format!("the job hangs:\n{stacks}")),
    }
    if !report.troubles.is_empty() {
        report.troubles.push(format!("the ranks said:\n{}", output.text()));
    }
    report.troubles.extend(left::of_job(&tag, folder.path()));
    report
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Each survivor has failed once, and its error names the victim, or nobody.
fn survivors(plan: &Plan, output: &Output, report: &mut Report) {
    if output.said(plan.victim, "dying").is_empty() {
        report.troubles.push("the victim did nothing".into());
    }
    for rank in (0..plan.ranks).filter(|&rank| rank != plan.victim) {
        let said = output.said(rank, "failed");
        match said.as_slice() {
            [one] if one.starts_with(&format!("{} ", plan.victim)) => report.named += 1,
            [one] if one.starts_with("nobody ") => report.nobody += 1,
            other => report.troubles.push(format!("rank {rank} said {other:?}")),
        }
    }
}

/// The launcher names the victim and how it ended, or says that no single rank is at fault; it exits as docs/reference/launcher.md says.
fn launcher(plan: &Plan, failure: &Failure) -> Vec<String> {
    let mut troubles = Vec::new();
    let headline = failure.to_string();
    let first = headline.lines().next().unwrap_or_default();
    let names_it = first.starts_with(&format!("rank {} of {} (pid ", plan.victim, plan.ranks));
    let names_nobody =
        failure.named_by == NamedBy::Nobody && first.starts_with("no single rank is at fault: ");
    if !names_it && !names_nobody {
        troubles.push(format!("the launcher names another rank: {headline}"));
    }
    if names_it && failure.exit != plan.exit() {
        troubles.push(format!("the launcher says {:?}, not {:?}: {headline}", failure.exit, plan.exit()));
    }
    let code = failure.exit_code;
    if names_it && !plan.exit_codes().contains(&code) || code == 0 {
        troubles.push(format!("the launcher exits with {code}, not {:?}: {headline}", plan.exit_codes()));
    }
    troubles
}

/// What `phalanx trace` prints begins with a root cause that names the victim, and no rank has heard another name.
fn trace(plan: &Plan, folder: &Path, report: &mut Report) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_trace = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("trace_rank_"))
    };
    let read = |path: std::path::PathBuf| {
        (path.display().to_string(), std::fs::read(&path).map_err(|error| error.to_string()))
    };
    let mut files: Vec<_> = entries.filter(is_trace).collect();
    files.sort();
    let text = match merged(files.into_iter().map(read)) {
        Ok(merged) => verdict(&merged),
        Err(error) => return report.troubles.push(format!("there is no trace: {error}")),
    };
    let first = text.lines().next().unwrap_or_default();
    match first.strip_prefix("root cause: ").map(culprits).as_deref() {
        Some([one]) if *one == plan.victim => {}
        Some([]) => report.trace_named_nobody = true,
        _ => report.troubles.push(format!("the trace names another root cause:\n{text}")),
    }
    let heard = text.lines().filter(|line| line.starts_with("but "));
    for line in heard {
        let names = line.split_once(" heard: ").map(|(_, words)| culprits(words)).unwrap_or_default();
        if names.iter().any(|&name| name != plan.victim) {
            report.troubles.push(format!("the trace: {line}"));
        }
    }
}
