//! `phalanx run`.

use crate::cli::Run;
use crate::complaint;
use crate::hosts::{listed, node, of_environment};
use crate::json_report::JsonFile;
use crate::rank_count::RankCount;
use phalanx_core::{Error, Result};
use phalanx_launch::{Launch, Outcome, Report, TimeLimits, serve_agent};
use std::env::VarError;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Runs a job and returns the code to exit with.
pub(crate) fn run(mut flags: Run) -> Result<i32> {
    let json = flags.json.take().map(|path| JsonFile::create(&path)).transpose()?;
    let (grace, timeout) = (flags.grace, flags.timeout);
    let report = perform(flags);
    if let Some(Err(error)) = json.map(|file| file.write(&report)) {
        complaint::complain(&error);
    }
    let outcome = report?.outcome;
    if !outcome.is_success() {
        let is_asked = match &outcome {
            Outcome::Interrupted { .. } => true,
            Outcome::Failure(failure) => failure.interrupted,
            _ => false,
        };
        let is_to_end = timeout.is_some() || is_asked;
        complain(&outcome, if is_to_end { grace } else { Duration::MAX });
    }
    Ok(outcome.exit_code())
}

/// Runs a job to its end.
fn perform(flags: Run) -> Result<Report> {
    let Run {
        ranks,
        max_restarts,
        elastic,
        log_dir,
        json: _,
        job_id,
        timeout,
        grace,
        no_prefix,
        tag_output: _,
        timestamps,
        encrypt,
        env,
        passed,
        wdir,
        backend,
        op_timeout,
        heartbeat,
        stdin,
        bind_to,
        hosts,
        command,
    } = flags;
    let settings = settings(backend, op_timeout, heartbeat)?;
    let env = [env, variables(&passed)?].concat();
    let listed = listed(&hosts, ranks.and_then(RankCount::number))?;
    let (shell, rendezvous) = (hosts.ssh.clone(), hosts.rendezvous.clone());
    let here = if listed.is_some() { None } else { of_environment()? };
    let member = if listed.is_some() { None } else { node(hosts, here.as_ref())? };
    // A file that launchers share goes with the second.
    let (node, _shared) = member.unzip();
    let is_alone = node.is_none() && listed.is_none();
    let ranks = match &listed {
        Some((ranks, _)) => Some(*ranks),
        None => match ranks {
            Some(ranks) => Some(ranks.here()?),
            None => here.and_then(|here| here.ranks.filter(|_| node.is_some())),
        },
    };
    if ranks.is_none() && (elastic.is_none() || !is_alone) {
        let is_behind = command.iter().skip(1).any(|word| word == "-n" || word == "-np");
        let behind = if is_behind {
            "; it stands before the program, to which all that follows is passed"
        } else {
            ""
        };
        let what = format!("how many ranks are to be started here? -n N says so, or -n auto{behind}");
        return Err(Error::config(what));
    }
    let mut command = command.into_iter();
    let program = command.next().unwrap_or_default();
    let mut launch = Launch::new(program).args(command).prefix(!no_prefix).timestamps(timestamps);
    launch = launch.grace(grace).timeout(timeout).stdin(stdin == "0").bind_to(bind_to.parse()?);
    if let Some(folder) = wdir {
        launch = launch.working_dir(folder);
    }
    if let (Some(ranks), Some(size)) = (ranks, elastic)
        && ranks != size.max()
        && is_alone
    {
        let what =
            format!("an elastic job of {size} begins with {} ranks, not {ranks}: leave out -n", size.max());
        return Err(Error::config(what));
    }
    if let Some(node) = node {
        launch = launch.node(node);
    }
    if let Some((_, others)) = listed {
        let agent =
            std::env::current_exe().map_err(|error| Error::io("asking where this program is", error))?;
        let shell = shell.unwrap_or_default();
        let shell = shell.split_whitespace().map(String::from);
        launch = launch.remote_hosts(others, [agent.into_os_string(), "agent".into()], shell, rendezvous);
    }
    if let Some(ranks) = ranks {
        launch = launch.ranks(ranks);
    }
    if let Some(restarts) = max_restarts {
        launch = launch.max_restarts(restarts);
    }
    if let Some(size) = elastic {
        launch = launch.elastic(size);
    }
    if let Some(folder) = log_dir {
        launch = launch.log_dir(folder);
    }
    if let Some(id) = job_id {
        launch = launch.job_id(id);
    }
    // A flag goes before a variable.
    let env: Vec<_> = env.into_iter().chain(settings).collect();
    let said = env.iter().rev().find(|(name, _)| name == "PHALANX_ENCRYPT").map(|(_, value)| value.into());
    let requires_encryption =
        said.or_else(|| std::env::var_os("PHALANX_ENCRYPT")).is_some_and(|it| it == "require");
    for (name, value) in env {
        launch = launch.env(name, value);
    }
    if encrypt && !requires_encryption {
        launch = launch.env("PHALANX_ENCRYPT", "1");
    }
    launch.report()
}

/// The variables that flags stand for. What ranks would refuse is refused here.
fn settings(
    backend: Option<String>,
    op_timeout: Option<String>,
    heartbeat: Option<String>,
) -> Result<Vec<(String, String)>> {
    let all = [("PHALANX_BACKEND", backend), (OP_TIMEOUT, op_timeout), (HEARTBEAT, heartbeat)];
    let set = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let set: Vec<(String, String)> = set.collect();
    let value = |wanted: &str| set.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    TimeLimits::from_lookup(value)?;
    Ok(set)
}

const OP_TIMEOUT: &str = "PHALANX_TIMEOUT_S";
const HEARTBEAT: &str = "PHALANX_HEARTBEAT_TIMEOUT_S";

/// The variables of `-x`: `NAME=VALUE`, or `NAME` of one that is set.
fn variables(passed: &[String]) -> Result<Vec<(String, String)>> {
    let variable = |word: &String| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(word) {
            Ok(value) => Ok((word.clone(), value)),
            Err(VarError::NotPresent) => Err(Error::config(format!(
                "-x {word}: that variable is not set here; -x {word}=VALUE sets it"
            ))),
            Err(VarError::NotUnicode(_)) => Err(Error::config(format!("-x {word}: its value is not UTF-8"))),
        },
    };
    passed.iter().map(variable).collect()
}

/// Is the agent of this host, for a launcher that has started it through ssh. That reports what becomes of the job.
pub(crate) fn agent() -> Result<i32> {
    serve_agent(std::io::stdin()).map(|outcome| outcome.exit_code())
}

/// Tells the user how the job ended, on a thread that is waited for so long: what has a time limit, or what somebody wants to end, has to
/// end also if stderr is a full pipe that nobody reads.
fn complain(outcome: &Outcome, limit: Duration) {
    let text = complaint::with_headline(&outcome.to_string());
    let (done, told) = channel::<()>();
    let tell = move || {
        complaint::complain(&text);
        drop(done);
    };
    // Without a thread, or when time is over, it stays unsaid; the exit code says the most of it.
    let _ = thread::Builder::new().spawn(tell);
    let _ = told.recv_timeout(limit);
}
