//! Before NCCL is asked, the ranks compare what they have: it would hang, or go wrong much later.

use super::flight::HEARSAY_TIME;
use crate::comm::Communicator;
use crate::device::Device;
use crate::fallback::{ENABLE_FALLBACK, Fallback};
use crate::id::UniqueId;
use crate::load::Nccl;
use crate::wait::wait_until;
use phalanx_core::{Cause, Context, Deadline, Error, OpKind, Peer, Result};
use phalanx_group::ProcessGroup;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Major and minor, which are in order as they are.
type Capability = (u32, u32);

/// What the others must know of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    fallback: Fallback,
    /// Why there is none, where there is none.
    nccl: Result<Named, String>,
    device: Result<Named, String>,
    /// Of its device; 0 without one.
    capability: Capability,
}

/// What tells it from others, and how it is called.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Named {
    key: String,
    name: String,
}

/// Each rank has a device of its own, and all have a library of one version, which is returned with the least compute capability of all devices. Where the
/// data goes over the host it is not, and neither is needed. Collective.
pub(crate) fn check(
    group: &ProcessGroup,
    nccl: Result<Nccl>,
    device: Result<Device>,
    fallback: Fallback,
) -> Result<(Option<(Nccl, Capability)>, Device)> {
    let of_nccl = |nccl: &Nccl| Named { key: nccl.version().to_string(), name: nccl.to_string() };
    // As NCCL tells devices apart: by their host too, of which NCCL_HOSTID may say that it is another.
    let host = std::env::var("NCCL_HOSTID").unwrap_or_default();
    let of_device = |device: &Device| Named { key: device.uuid() + &host, name: device.to_string() };
    let facts = Facts {
        fallback,
        nccl: nccl.as_ref().map(of_nccl).map_err(ToString::to_string),
        device: device.as_ref().map(of_device).map_err(ToString::to_string),
        capability: device.as_ref().map(Device::compute_capability).unwrap_or_default(),
    };
    let all = group.all_gather_object(&facts)?;
    let device = device?;
    let over_host = compare(&all, group.rank(), |rank| group.peer(rank))?;
    let least = all.iter().map(|facts| facts.capability).min().unwrap_or_default();
    Ok((if over_host { None } else { Some((nccl?, least)) }, device))
}

/// Whether the data goes over the host: the same answer on all ranks that have a device.
fn compare(all: &[Facts], me: usize, peer: impl Fn(usize) -> Peer) -> Result<bool> {
    let lacks = |what: &str, rank, tried| {
        let what = format!("{what} on {}", peer(rank));
        Err(Error::Unavailable { what, tried })
    };
    let wanted = all[0].fallback;
    let (mut devices, mut libraries, mut lacking) = (Vec::new(), Vec::new(), None);
    for (rank, facts) in all.iter().enumerate() {
        if facts.fallback != wanted {
            return Err(Error::config(format!(
                "the ranks differ in what they do without NCCL: {} has {wanted}, but {} has {}; set {ENABLE_FALLBACK} alike",
                peer(0),
                peer(rank),
                facts.fallback
            )));
        }
        match &facts.device {
            Ok(device) => devices.push(device),
            Err(trouble) => return lacks("a device", rank, trouble.clone()),
        }
        match &facts.nccl {
            Ok(nccl) => libraries.push(nccl),
            Err(trouble) => lacking = lacking.or(Some((rank, trouble))),
        }
    }
    match (wanted, lacking) {
        (Fallback::Always, _) => return Ok(true),
        (Fallback::WithoutNccl, Some((rank, trouble))) => {
            tracing::warn!(rank = %peer(rank), trouble, "no NCCL: device memory goes over the host on all ranks");
            return Ok(true);
        }
        (Fallback::Never, Some(other)) => {
            // Who has none himself needs not be told of others.
            let (rank, trouble) = all[me].nccl.as_ref().err().map_or(other, |own| (me, own));
            let hint =
                format!("a HybridBackend can do without, over the host: {ENABLE_FALLBACK}=1 on all ranks");
            return lacks("NCCL", rank, format!("{trouble}; {hint}"));
        }
        (_, None) => {}
    }
    for (rank, (device, nccl)) in devices.iter().zip(&libraries).enumerate() {
        if let Some(other) = devices[..rank].iter().position(|other| other.key == device.key) {
            return Err(Error::config(format!(
                "{} and {} have one device, {}: give each rank one of its own, as by its local rank",
                peer(other),
                peer(rank),
                device.name
            )));
        }
        if nccl.key != libraries[0].key {
            return Err(Error::config(format!(
                "the ranks have different versions of NCCL: {} has {}, but {} has {}",
                peer(0),
                libraries[0].name,
                peer(rank),
                nccl.name
            )));
        }
    }
    Ok(false)
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
    comm.or_else(|trouble| {
        // That is often the loss of a rank, of which the group will tell better.
        let hearsay = Deadline::after(Instant::now(), HEARSAY_TIME);
        wait_until(&hearsay, || Ok(control.failure().is_some()))?;
        // All others wait for this rank, which must tell them that it won't come.
        match control.fail(Cause::Aborted { peer: control.peer(rank), reason: trouble.to_string() }) {
            Cause::Aborted { peer, .. } if peer == control.peer(rank) => Err(trouble),
            first => Err(error(control, first)),
        }
    })
}

/// The error of init when another rank has failed it.
fn error(control: &ProcessGroup, cause: Cause) -> Error {
    let context = Context {
        op: OpKind::Init,
        seq: 0,
        site: None,
        envelope: None,
        group: control.id(),
        members: control.members().to_vec(),
        rank: control.members()[control.rank()],
        bytes: (0, 0),
        elapsed: Duration::ZERO,
        through: None,
    };
    Error::from_cause(cause, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(fallback: Fallback, version: Result<&str, &str>, uuid: &str) -> Facts {
        let nccl = version.map(|version| Named { key: version.into(), name: format!("NCCL {version} (/x)") });
        let device = Ok(Named { key: uuid.into(), name: format!("device 0 ({uuid})") });
        Facts { fallback, nccl: nccl.map_err(str::to_owned), device, capability: (9, 0) }
    }

    fn outcome(all: &[Facts]) -> Result<bool, String> {
        let peer = |rank| Peer { rank, host: "node:1".into() };
        let on_each = all.iter().enumerate().map(|(me, _)| compare(all, me, peer).map_err(|e| e.to_string()));
        on_each
            .reduce(|one, other| if one == other { one } else { panic!("{one:?}, but {other:?}") })
            .unwrap()
    }

    #[test]
    fn what_does_not_fit_is_named_with_both_ranks() {
        let has = |version, uuid| facts(Fallback::Never, Ok(version), uuid);
        let (a, b, c) = (has("2.28.9", "a"), has("2.28.9", "b"), has("2.27.3", "c"));
        assert_eq!(outcome(&[a.clone(), b.clone()]), Ok(false));
        assert_eq!(
            outcome(&[a.clone(), b.clone(), c]).unwrap_err(),
            "configuration: the ranks have different versions of NCCL: rank 0 (node:1) has NCCL 2.28.9 (/x), but rank 2 (node:1) has NCCL \
             2.27.3 (/x)"
        );
        assert_eq!(
            outcome(&[a, b.clone(), b]).unwrap_err(),
            "configuration: rank 1 (node:1) and rank 2 (node:1) have one device, device 0 (b): give each rank one of its own, as by its \
             local rank"
        );
    }

    #[test]
    fn all_ranks_go_the_same_way() {
        let rank = |fallback, has_nccl, uuid| {
            facts(fallback, if has_nccl { Ok("2.28.9") } else { Err("why") }, uuid)
        };
        let all = |fallback, second| [rank(fallback, true, "a"), rank(fallback, second, "b")];
        assert_eq!(outcome(&all(Fallback::WithoutNccl, true)), Ok(false));
        assert_eq!(outcome(&all(Fallback::WithoutNccl, false)), Ok(true));
        assert_eq!(outcome(&all(Fallback::Always, true)), Ok(true));
        assert_eq!(
            outcome(&all(Fallback::Never, false)).unwrap_err(),
            "NCCL on rank 1 (node:1) is not available (tried: why; a HybridBackend can do without, over the host: \
             PHALANX_ENABLE_GPU_FALLBACK=1 on all ranks)"
        );
        // Over the host two ranks may have one device.
        let one = [rank(Fallback::Always, true, "a"), rank(Fallback::Always, true, "a")];
        assert_eq!(outcome(&one), Ok(true));
        let differ = [rank(Fallback::Never, true, "a"), rank(Fallback::WithoutNccl, true, "b")];
        assert_eq!(
            outcome(&differ).unwrap_err(),
            "configuration: the ranks differ in what they do without NCCL: rank 0 (node:1) has no fallback, but rank 1 (node:1) has a \
             fallback without NCCL; set PHALANX_ENABLE_GPU_FALLBACK alike"
        );
    }
}
