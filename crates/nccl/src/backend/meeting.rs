//! Before NCCL is asked, the ranks compare what they have: it would hang, or go wrong much later.

use crate::comm::Communicator;
use crate::device::Device;
use crate::id::UniqueId;
use crate::load::Nccl;
use phalanx_core::{Cause, Context, Error, OpKind, Peer, Result};
use phalanx_group::ProcessGroup;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the others must know of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    /// Of NCCL, and where it comes from.
    version: String,
    library: String,
    /// Of the device, and how it is called.
    uuid: String,
    device: String,
}

/// All ranks have a library of one version, and each has a device of its own. Collective.
pub(crate) fn check(
    group: &ProcessGroup,
    nccl: Result<Nccl>,
    device: Result<Device>,
) -> Result<(Nccl, Device)> {
    let mine = nccl.and_then(|nccl| Ok((nccl, device?)));
    let facts = mine.as_ref().map_err(ToString::to_string).map(|(nccl, device)| Facts {
        version: nccl.version().to_string(),
        library: nccl.to_string(),
        uuid: device.uuid(),
        device: device.to_string(),
    });
    let all = group.all_gather_object(&facts)?;
    let (nccl, device) = mine?;
    compare(&all, |rank| group.peer(rank))?;
    Ok((nccl, device))
}

/// The same answer on all ranks that have everything.
fn compare(all: &[Result<Facts, String>], peer: impl Fn(usize) -> Peer) -> Result<()> {
    let mut known: Vec<(usize, &Facts)> = Vec::new();
    for (rank, facts) in all.iter().enumerate() {
        let facts = facts.as_ref().map_err(|trouble| Error::Unavailable {
            what: format!("NCCL on {}", peer(rank)),
            tried: trouble.clone(),
        })?;
        if let Some((other, theirs)) = known.iter().find(|(_, theirs)| theirs.uuid == facts.uuid) {
            return Err(Error::config(format!(
                "{} and {} have one device, {}: give each rank one of its own, as by its local rank",
                peer(*other),
                peer(rank),
                theirs.device
            )));
        }
        if let Some((other, theirs)) = known.first().filter(|(_, theirs)| theirs.version != facts.version) {
            return Err(Error::config(format!(
                "the ranks have different versions of NCCL: {} has {}, but {} has {}",
                peer(*other),
                theirs.library,
                peer(rank),
                facts.library
            )));
        }
        known.push((rank, facts));
    }
    Ok(())
}

/// Connects the ranks of `control`, within the time limit of `group`. NCCL's id goes over the group, which knows who belongs to it. Collective.
pub(crate) fn connect(
    control: &ProcessGroup,
    group: &ProcessGroup,
    nccl: Nccl,
    device: &Device,
) -> Result<Communicator> {
    let id = if control.rank() == 0 { Some(UniqueId::new(nccl)) } else { None };
    let mut words = id.map(|id| id.map(|id| id.as_bytes().to_vec()).map_err(|error| error.to_string()));
    words = group.broadcast_object(words, 0).map(Some)?;
    let bytes = match words {
        Some(Ok(bytes)) => bytes,
        Some(Err(trouble)) => {
            return Err(Error::Unavailable {
                what: format!("an id of NCCL from {}", control.peer(0)),
                tried: trouble,
            });
        }
        None => return Err(Error::Internal { what: "a broadcast without a value".into() }),
    };
    let id = bytes.try_into().map(UniqueId::from_bytes);
    let id = id.map_err(|_| Error::Internal { what: "an id of NCCL of another length".into() })?;
    let failed = |cause| Err(error(control, cause));
    let is_wanted = || control.failure().map_or(Ok(()), failed);
    let (rank, world_size) = (control.rank(), control.world_size());
    let comm = Communicator::init_while(is_wanted, nccl, device, &id, rank, world_size, group.timeout());
    // All others wait for this rank, which must tell them that it won't come.
    comm.inspect_err(|error| {
        control.fail(Cause::Aborted { peer: control.peer(rank), reason: error.to_string() });
    })
}

/// The error of init when another rank has failed it.
fn error(control: &ProcessGroup, cause: Cause) -> Error {
    let context = Context {
        op: OpKind::Init,
        seq: 0,
        group: control.id(),
        rank: control.members()[control.rank()],
        world_size: control.world_size(),
        bytes: (0, 0),
        elapsed: Duration::ZERO,
    };
    Error::from_cause(cause, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, uuid: &str) -> Result<Facts, String> {
        let (version, uuid) = (version.to_owned(), uuid.to_owned());
        Ok(Facts {
            library: format!("NCCL {version} (/x)"),
            device: format!("device 0 ({uuid})"),
            version,
            uuid,
        })
    }

    fn told(all: &[Result<Facts, String>]) -> String {
        compare(all, |rank| Peer { rank, host: "node:1".into() }).unwrap_err().to_string()
    }

    #[test]
    fn what_does_not_fit_is_named_with_both_ranks() {
        let (a, b, c) = (facts("2.28.9", "a"), facts("2.28.9", "b"), facts("2.27.3", "c"));
        assert!(compare(&[a.clone(), b.clone()], |rank| Peer { rank, host: String::new() }).is_ok());
        assert_eq!(
            told(&[a.clone(), b.clone(), c]),
            "configuration: the ranks have different versions of NCCL: rank 0 (node:1) has NCCL 2.28.9 (/x), but rank 2 (node:1) has NCCL \
             2.27.3 (/x)"
        );
        assert_eq!(
            told(&[a.clone(), b.clone(), b]),
            "configuration: rank 1 (node:1) and rank 2 (node:1) have one device, device 0 (b): give each rank one of its own, as by its \
             local rank"
        );
        assert_eq!(told(&[a, Err("why".into())]), "NCCL on rank 1 (node:1) is not available (tried: why)");
    }
}
