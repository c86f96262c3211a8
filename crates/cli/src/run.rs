//! `phalanx run`.

use crate::cli::Run;
use phalanx_core::{Error, Result};
use phalanx_launch::Launch;

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
        command,
    } = flags;
    let mut command = command.into_iter();
    let program = command.next().unwrap_or_default();
    let mut launch = Launch::new(program).args(command).prefix(!no_prefix).grace(grace).timeout(timeout);
    if let (Some(ranks), Some(size)) = (ranks, elastic)
        && ranks != size.max()
    {
        let what =
            format!("an elastic job of {size} begins with {} ranks, not {ranks}: leave out -n", size.max());
        return Err(Error::config(what));
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
    for (name, value) in env {
        launch = launch.env(name, value);
    }
    if encrypt {
        launch = launch.env("PHALANX_ENCRYPT", "1");
    }
    let outcome = launch.run()?;
    if !outcome.is_success() {
        crate::complain(&outcome);
    }
    Ok(outcome.exit_code())
}
