//! Before NCCL is asked, the ranks compare what they have: it would hang, or go wrong much later.

use super::in_flight::HEARSAY_TIME;
use crate::comm::Communicator;
use crate::device::Device;
use crate::encryption;
use crate::fallback::{ENABLE_FALLBACK, Fallback};
use crate::id::UniqueId;
use crate::load::Nccl;
use crate::wait::wait_until;
use phalanx_core::{Cause, Context, Deadline, Error, OpKind, Peer, Result};
use phalanx_group::ProcessGroup;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Major and minor, which are in order as they are.
type Capability = (u32, u32);

/// The facts about a rank that the others must know.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    fallback: Fallback,
    /// Why there is none, where there is none.
    nccl: Result<Named, String>,
    device: Result<Named, String>,
    /// The compute capability of its device; 0 without one.
    capability: Capability,
    clear: Clear,
    /// The rank's process, and whether NCCL lets devices of ranks there use each other's memory directly.
    process: u64,
    is_direct: bool,
}

/// A number that no other process has.
fn this_process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// NCCL lets them, unless it is told not to.
fn is_direct() -> bool {
    let is_off = |variable| std::env::var(variable).is_ok_and(|value| !matches!(value.trim(), "" | "0"));
    !["NCCL_P2P_DIRECT_DISABLE", "NCCL_P2P_DISABLE"].into_iter().any(is_off)
}

/// The traffic that a rank's NCCL would send in the clear although the job encrypts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Clear {
    /// Why all of it would be.
    all: Option<String>,
    /// Why the traffic between hosts would be.
    between_hosts: Option<String>,
    /// On which host.
    boot: Option<String>,
    /// The rank won't have that.
    is_refused: bool,
}

impl Clear {
    fn of(group: &ProcessGroup, nccl: &Result<Nccl>) -> Self {
        let (Some(encryption), Ok(nccl)) = (group.encryption(), nccl) else { return Self::default() };
        // Not the name, which several hosts may have.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let (all, between_hosts) = (encryption::lack(*nccl), encryption::lack_of_network());
        Self { all, between_hosts, boot, is_refused: encryption.is_required() }
    }

    /// Why something would be sent in the clear, for each rank.
    fn reasons(all: &[Facts]) -> impl Iterator<Item = Option<&str>> {
        let boot = &all[0].clear.boot;
        let is_one_host = boot.is_some() && all.iter().all(|facts| facts.clear.boot == *boot);
        all.iter().map(move |Facts { clear, .. }| {
            let between_hosts = clear.between_hosts.as_deref().filter(|_| !is_one_host);
            clear.all.as_deref().or(between_hosts)
        })
    }
}

/// The result of the comparison: what all ranks have.
pub(crate) struct Common {
    pub(crate) nccl: Nccl,
    /// The least of all devices.
    pub(crate) capability: Capability,
    /// Whether NCCL gets the job's key.
    pub(crate) is_keyed: bool,
}

/// A thing by its key, which no other has, and its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Named {
    key: String,
    name: String,
}

/// Checks that each rank has a device of its own, and that all have a library of one version, which is returned. Where the data goes over the host it is not, and neither is needed. Collective.
pub(crate) fn check(
    group: &ProcessGroup,
    nccl: Result<Nccl>,
    device: Result<Device>,
    fallback: Fallback,
) -> Result<(Option<Common>, Device)> {
    let of_nccl = |nccl: &Nccl| Named { key: nccl.version().to_string(), name: nccl.to_string() };
    // As NCCL tells devices apart: by their host too, of which NCCL_HOSTID may say that it is another.
    let host = std::env::var("NCCL_HOSTID").unwrap_or_default();
    let of_device = |device: &Device| Named { key: device.uuid() + &host, name: device.to_string() };
    let facts = Facts {
        fallback,
        nccl: nccl.as_ref().map(of_nccl).map_err(ToString::to_string),
        device: device.as_ref().map(of_device).map_err(ToString::to_string),
        capability: device.as_ref().map(Device::compute_capability).unwrap_or_default(),
        clear: if fallback == Fallback::Always { Clear::default() } else { Clear::of(group, &nccl) },
        process: this_process(),
        is_direct: is_direct(),
    };
    let all = group.all_gather_object(&facts)?;
    let device = device?;
    let over_host = compare(&all, group.rank(), |rank| group.peer(rank))?;
    if over_host {
        return Ok((None, device));
    }
    let capability = all.iter().map(|facts| facts.capability).min().unwrap_or_default();
    let is_keyed = group.encryption().is_some() && all.iter().all(|facts| facts.clear.all.is_none());
    if group.rank() == 0 {
        warn_of_clear(&all, |rank| group.peer(rank));
    }
    Ok((Some(Common { nccl: nccl?, capability, is_keyed }), device))
}

/// The job encrypts, and NCCL won't, or not all. Of several ranks whose NCCL won't, one is named.
fn warn_of_clear(all: &[Facts], peer: impl Fn(usize) -> Peer) {
    if let Some((rank, why)) = Clear::reasons(all).enumerate().find_map(|(rank, why)| Some((rank, why?))) {
        let hint = "PHALANX_ENCRYPT=require refuses that";
        phalanx_group::warn(
            "nccl",
            &format!("what NCCL sends is not encrypted: on {}: {why}; {hint}", peer(rank)),
        );
    }
}

/// Whether the data goes over the host: the same answer on all ranks that have a device.
fn compare(all: &[Facts], me: usize, peer: impl Fn(usize) -> Peer) -> Result<bool> {
    let lacks = |what: &str, rank, tried| {
        let what = format!("{what} on {}", peer(rank));
        Err(Error::Unavailable { what, tried })
    };
    let wanted = all[0].fallback;
    let (mut devices, mut libraries, mut lacking) = (Vec::new(), Vec::new(), None);
    let is_clear_refused = all.iter().any(|facts| facts.clear.is_refused);
    let nccls: Vec<Result<Named, String>> = all
        .iter()
        .zip(Clear::reasons(all))
        .map(|(facts, why)| match (&facts.nccl, why) {
            (Ok(_), Some(why)) if is_clear_refused => {
                Err(format!("PHALANX_ENCRYPT=require refuses to send in the clear: {why}"))
            }
            (nccl, _) => nccl.clone(),
        })
        .collect();
    for (rank, (facts, nccl)) in all.iter().zip(&nccls).enumerate() {
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
        match nccl {
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
            let (rank, trouble) = nccls[me].as_ref().err().map_or(other, |own| (me, own));
            let hint =
                format!("a HybridGroup can do without, over the host: {ENABLE_FALLBACK}=1 on all ranks");
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
        let beside =
            |other: &Facts| other.process == all[rank].process && (other.is_direct || all[rank].is_direct);
        if let Some(other) = all[..rank].iter().position(beside) {
            return Err(Error::config(format!(
                "{} and {} are threads of one process: NCCL would let their devices use each other's buffers directly, and those are in memory of the \
                 driver's pool, which only their own device reaches; make each rank a process, or set NCCL_P2P_DIRECT_DISABLE=1",
                peer(other),
                peer(rank)
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

/// Connects the ranks of `control`, within the time that the ranks of `group` have to come together. NCCL's id goes over the group, which knows who belongs to it. Collective.
pub(crate) fn connect(
    control: &ProcessGroup,
    group: &ProcessGroup,
    Common { nccl, is_keyed, .. }: Common,
    device: &Device,
) -> Result<Communicator> {
    let give_key = || match group.encryption() {
        Some(encryption) if is_keyed => encryption::give_key(nccl, encryption),
        _ => Ok(()),
    };
    let mut words = None;
    if control.rank() == 0 {
        let id = give_key().and_then(|()| UniqueId::new(nccl));
        words = Some(id.map(|id| id.as_bytes().to_vec()).map_err(|error| error.to_string()));
    }
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
    let limit = group.init_timeout();
    let init = || Communicator::init_while(is_wanted, nccl, device, &id, rank, world_size, limit);
    give_key().and_then(|()| init()).or_else(|trouble| {
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
        Facts {
            fallback,
            nccl: nccl.map_err(str::to_owned),
            device,
            capability: (9, 0),
            clear: Clear::default(),
            process: next(),
            is_direct: true,
        }
    }

    fn next() -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
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
    fn what_is_sent_in_the_clear_is_refused_where_one_rank_says_so() {
        let rank = |uuid, boot: &str, between_hosts: Option<&str>| {
            let (all, between_hosts) = (None, between_hosts.map(str::to_owned));
            let clear = Clear { all, between_hosts, boot: Some(boot.into()), is_refused: uuid == "b" };
            Facts { clear, ..facts(Fallback::Never, Ok("2.32.3"), uuid) }
        };
        let why = Some("why");
        assert_eq!(outcome(&[rank("a", "one", None), rank("b", "other", None)]), Ok(false));
        // On one host nothing goes between hosts.
        assert_eq!(outcome(&[rank("a", "one", why), rank("b", "one", why)]), Ok(false));
        let error = outcome(&[rank("a", "one", why), rank("b", "other", None)]).unwrap_err();
        assert_eq!(
            error,
            "NCCL on rank 0 (node:1) is not available (tried: PHALANX_ENCRYPT=require refuses to send in the clear: why; a HybridGroup can \
             do without, over the host: PHALANX_ENABLE_GPU_FALLBACK=1 on all ranks)"
        );
        // Nobody refuses.
        assert_eq!(outcome(&[rank("a", "one", why), rank("c", "other", why)]), Ok(false));
    }

    #[test]
    fn threads_of_one_process_are_named_unless_their_devices_leave_each_other_alone() {
        let has =
            |uuid, is_direct| Facts { process: 7, is_direct, ..facts(Fallback::Never, Ok("2.28.9"), uuid) };
        let other = facts(Fallback::Never, Ok("2.28.9"), "a");
        assert_eq!(outcome(&[other.clone(), has("b", true)]), Ok(false));
        assert_eq!(outcome(&[has("a", false), has("b", false)]), Ok(false));
        assert_eq!(
            outcome(&[other, has("b", true), has("c", true)]).unwrap_err(),
            "configuration: rank 1 (node:1) and rank 2 (node:1) are threads of one process: NCCL would let their devices use each other's buffers \
             directly, and those are in memory of the driver's pool, which only their own device reaches; make each rank a process, or set \
             NCCL_P2P_DIRECT_DISABLE=1"
        );
        // Over the host no device uses another's memory.
        let over_host = |uuid| Facts { fallback: Fallback::Always, ..has(uuid, true) };
        assert_eq!(outcome(&[over_host("a"), over_host("b")]), Ok(true));
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
            "NCCL on rank 1 (node:1) is not available (tried: why; a HybridGroup can do without, over the host: \
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
