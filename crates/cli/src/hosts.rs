//! This host among those of a job.

use crate::cli::Hosts;
use phalanx_core::{Error, Result};
use phalanx_launch::{Node, Secret, read_secret, secret_of_environment};

/// The host that the flags speak of; `None`: the job has no other.
pub(crate) fn node(flags: Hosts) -> Result<Option<Node>> {
    let Hosts { nnodes, node_rank, rendezvous, secret_file } = flags;
    let Some(count) = nnodes else {
        let alone = node_rank.is_none() && rendezvous.is_none();
        return if alone { Ok(None) } else { Err(missing("--nnodes, the number of hosts")) };
    };
    if count == 1 && node_rank.is_none_or(|rank| rank == 0) {
        return Ok(None);
    }
    let rank = node_rank.ok_or_else(|| missing("--node-rank, the number of this one"))?;
    let rendezvous =
        rendezvous.ok_or_else(|| missing("--rendezvous, where the command of node rank 0 listens"))?;
    Node::new(rank, count, rendezvous, secret(secret_file)?).map(Some)
}

fn secret(file: Option<String>) -> Result<Secret> {
    if let Some(file) = file {
        return read_secret(&file);
    }
    let set = secret_of_environment(|name| std::env::var(name).ok())?;
    set.ok_or_else(|| {
        missing("--secret-file, by which they know each other (or PHALANX_SECRET_FILE, or PHALANX_SECRET)")
    })
}

fn missing(what: &str) -> Error {
    Error::config(format!("a job over several hosts needs {what}"))
}
