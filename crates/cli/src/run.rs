//! `phalanx run`.

use crate::cli::Run;
use crate::complaint;
use crate::hosts::{listed, node, of_environment};
use phalanx_core::{Error, Result};
use phalanx_launch::{Launch, Outcome, serve_agent};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Runs a job and returns the code to exit with.
pub(crate) fn run(flags: Run) -> Result<i32> {
    let Run {
        ranks,
        max_restarts,
        elastic,
        log_dir,
        job_id,
        timeout,
        grace,
        no_prefix,
        encrypt,
        env,
        hosts,
        command,
    } = flags;
    let listed = listed(&hosts, ranks)?;
    let (shell, rendezvous) = (hosts.ssh.clone(), hosts.rendezvous.clone());
    let here = if listed.is_some() { None } else { of_environment()? };
    let member = if listed.is_some() { None } else { node(hosts, here.as_ref())? };
    // A file that launchers share goes with the second.
    let (node, _shared) = member.unzip();
    let is_alone = node.is_none() && listed.is_none();
    let ranks = match &listed {
        Some((ranks, _)) => Some(*ranks),
        None => ranks.or_else(|| here?.ranks.filter(|_| node.is_some())),
    };
    if ranks.is_none() && (elastic.is_none() || !is_alone) {
        return Err(Error::config("how many ranks are to be started here? -n N says so"));
    }
    let mut command = command.into_iter();
    let program = command.next().unwrap_or_default();
    let mut launch = Launch::new(program).args(command).prefix(!no_prefix).grace(grace).timeout(timeout);
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
    let said = env.iter().rev().find(|(name, _)| name == "PHALANX_ENCRYPT").map(|(_, value)| value.into());
    let requires_encryption =
        said.or_else(|| std::env::var_os("PHALANX_ENCRYPT")).is_some_and(|it| it == "require");
    for (name, value) in env {
        launch = launch.env(name, value);
    }
    if encrypt && !requires_encryption {
        launch = launch.env("PHALANX_ENCRYPT", "1");
    }
    let outcome = launch.run()?;
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

/// Is the agent of this host, for a launcher that has started it through ssh. That reports what becomes of the job.
pub(crate) fn agent() -> Result<i32> {
    serve_agent(std::io::stdin()).map(|outcome| outcome.exit_code())
}

/// Tells the user how the job ended, on a thread that is waited for so long: what has a time limit, or what somebody wants to end, has to
/// end also if stderr is a full pipe that nobody reads.
fn complain(outcome: &Outcome, limit: Duration) {
    let text = outcome.to_string();
    let (done, told) = channel::<()>();
    let tell = move || {
        complaint::complain(&text);
        drop(done);
    };
    // Without a thread, or when time is over, it stays unsaid; the exit code says the most of it.
    let _ = thread::Builder::new().spawn(tell);
    let _ = told.recv_timeout(limit);
}
