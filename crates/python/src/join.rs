//! How a Python process becomes a rank.

use crate::errors::exception;
use crate::group::Group;
use crate::interrupt;
use crate::meeting::meeting;
use phalanx::Config;
use phalanx::store::OwnChannel;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

/// Joins the job that the environment describes: ``phalanx run``'s, or that of torchrun with ``PHALANX_SECRET``, mpirun or srun; else a group of one.
/// Collective among the processes of the job.
#[pyfunction]
pub(crate) fn init(py: Python<'_>) -> PyResult<Group> {
    let config = Config::from_env().map_err(|error| exception(py, &error))?;
    join_with(py, config)
}

/// Joins a job of which a library knows the ranks.
///
/// ``variables`` are names and values as in the environment (``PHALANX_RANK``, ``PHALANX_WORLD_SIZE``, …); those of the environment count where they are not
/// given. With ``share`` the ranks meet through it: rank 0 is given the words that the others need, and must see to it that they get them; the others are given
/// ``None`` and return these words. They hold the job's secret. ``channel`` is the name by which errors know it.
#[pyfunction]
#[pyo3(signature = (variables, share=None, channel="a channel of the program's own"))]
pub(crate) fn join(
    py: Python<'_>,
    variables: HashMap<String, String>,
    share: Option<Py<PyAny>>,
    channel: &str,
) -> PyResult<Group> {
    let has_channel = share.is_some();
    let lookup = |name: &str| match variables.get(name) {
        Some(value) => Some(value.clone()),
        // The environment says who this process is in another group, and where that meets.
        None if has_channel && !is_setting(name) => None,
        None => std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
    };
    let config = match share {
        Some(share) => {
            let share = move |words: Option<&str>, _: Duration| {
                let said = Python::try_attach(|py| share.call1(py, (words,))?.extract::<String>(py));
                match said {
                    Some(said) => said.map_err(|error| error.to_string()),
                    None => Err("the interpreter ends".into()),
                }
            };
            Config::from_lookup_through(OwnChannel::new(channel, share), lookup)
        }
        None => Config::from_lookup(lookup),
    };
    join_with(py, config.map_err(|error| exception(py, &error))?)
}

/// Whether a variable of the environment holds for every group of this process.
fn is_setting(name: &str) -> bool {
    const OF_ONE_JOB: [&str; 12] = [
        "PHALANX_RANK",
        "PHALANX_WORLD_SIZE",
        "PHALANX_LOCAL_RANK",
        "PHALANX_LOCAL_WORLD_SIZE",
        "PHALANX_NODE_RANK",
        "PHALANX_STORE",
        "PHALANX_SECRET",
        "PHALANX_SECRET_FILE",
        "PHALANX_JOB_ID",
        "PHALANX_ELASTIC",
        "PHALANX_WORKER",
        "PHALANX_LIFELINE",
    ];
    name.starts_with("PHALANX_") && !OF_ONE_JOB.contains(&name)
}

/// Joins while this thread listens for Ctrl-C: ranks may be late.
fn join_with(py: Python<'_>, config: Config) -> PyResult<Group> {
    interrupt::listen(py)?;
    meeting(py, "phalanx-join", move || phalanx::join(&config)).map(Group::new)
}
