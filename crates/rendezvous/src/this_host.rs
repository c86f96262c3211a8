//! This host among those of a job whose launcher starts one process on each, to start the ranks there.

use crate::location::authority;
use crate::other_launchers::{ALONE, is_alone, is_within_a_rank, trimmed};
use crate::slurm;
use phalanx_core::Result;

/// Where the first host listens, if only its name is known: torchrun's port.
const PORT: u16 = 29500;
/// The ports for steps of Slurm, above those that systems give to connections: one of them for each job and step.
const SLURM_PORTS: std::ops::Range<u64> = 61_440..65_536;

/// What the environment says of this host. `None` is what it does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThisHost {
    /// The launcher, or the variables, that say so.
    pub by: &'static str,
    /// The number of this host, from 0.
    pub rank: Option<usize>,
    /// How many hosts there are.
    pub count: Option<usize>,
    /// How many ranks to start here.
    pub ranks: Option<usize>,
    /// `host:port` of the first.
    pub rendezvous: Option<String>,
}

impl ThisHost {
    /// Looks for the variables of launchers that start one process on each host; the first that says that there are several counts: those of torchrun's flags
    /// (`PET_*`, as Kubeflow sets them), a step of Slurm with one task a node, SkyPilot, `RANK` and `WORLD_SIZE` (a PyTorchJob), an indexed Job of
    /// Kubernetes. `None`: there is no other host, or this process is a rank, or `PHALANX_ALONE` says that it is a job of its own.
    ///
    /// # Errors
    /// [`Error::Config`](phalanx_core::Error::Config): `PHALANX_ALONE` makes no sense.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::ThisHost;
    ///
    /// let pod = |name: &str| match name {
    ///     "PET_NNODES" => Some("3".to_owned()),
    ///     "PET_NODE_RANK" => Some("1".to_owned()),
    ///     "PET_NPROC_PER_NODE" => Some("8".to_owned()),
    ///     "PET_MASTER_ADDR" => Some("job-node-0-0.job".to_owned()),
    ///     "PET_MASTER_PORT" => Some("29400".to_owned()),
    ///     _ => None,
    /// };
    /// let host = ThisHost::from_lookup(pod)?.unwrap();
    /// assert_eq!((host.rank, host.count, host.ranks), (Some(1), Some(3), Some(8)));
    /// assert_eq!(host.rendezvous.as_deref(), Some("job-node-0-0.job:29400"));
    /// assert_eq!(ThisHost::from_lookup(|_| None)?, None);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let set = trimmed(lookup);
        if is_alone(set(ALONE))? || is_within_a_rank(&set) {
            return Ok(None);
        }
        let number = |name: &str| set(name)?.parse::<u32>().ok().map(|number| number as usize);
        let at = |host: &str, port: &str| Some(authority(&set(host)?, number(port)?));
        let pet = Self {
            by: "PET_*",
            rank: number("PET_NODE_RANK"),
            // A range says of no number that it is the one.
            count: number("PET_NNODES"),
            ranks: number("PET_NPROC_PER_NODE"),
            rendezvous: at("PET_MASTER_ADDR", "PET_MASTER_PORT"),
        };
        let sky_pilot = Self {
            by: "SkyPilot",
            rank: number("SKYPILOT_NODE_RANK"),
            count: number("SKYPILOT_NUM_NODES"),
            ranks: number("SKYPILOT_NUM_GPUS_PER_NODE").filter(|gpus| *gpus > 0),
            rendezvous: set("SKYPILOT_NODE_IPS")
                .and_then(|ips| Some(authority(ips.split_whitespace().next()?, PORT))),
        };
        let pods = Self {
            by: "RANK and WORLD_SIZE",
            rank: number("RANK"),
            count: number("WORLD_SIZE"),
            ranks: None,
            rendezvous: at("MASTER_ADDR", "MASTER_PORT"),
        };
        let all = [pet, of_slurm(&set), sky_pilot, pods];
        let several = all.into_iter().find(|host| host.count.is_some_and(|count| count > 1));
        // It does not say how many there are.
        let indexed = || {
            let rank = Some(number("JOB_COMPLETION_INDEX")?);
            Some(Self { by: "JOB_COMPLETION_INDEX", rank, count: None, ranks: None, rendezvous: None })
        };
        Ok(several.or_else(indexed))
    }
}

/// A step of Slurm with one task on each of several nodes: then tasks are numbered as nodes are.
fn of_slurm(set: &impl Fn(&str) -> Option<String>) -> ThisHost {
    let number = |name: &str| set(name)?.parse::<u64>().ok();
    let nodes = number("SLURM_STEP_NUM_NODES").filter(|nodes| number("SLURM_STEP_NUM_TASKS") == Some(*nodes));
    let step = slurm::step(set).filter(|_| nodes.is_some());
    let host = |number: u64| usize::try_from(number).ok();
    let rendezvous = || {
        let (job, step) = (number("SLURM_JOB_ID")?, step?);
        let port = SLURM_PORTS.start + job.wrapping_add(step) % (SLURM_PORTS.end - SLURM_PORTS.start);
        Some(authority(&slurm::first_host(&set("SLURM_STEP_NODELIST")?)?, port))
    };
    ThisHost {
        by: "Slurm's srun",
        rank: number("SLURM_PROCID").filter(|_| step.is_some()).and_then(host),
        count: nodes.filter(|_| step.is_some()).and_then(host),
        ranks: None,
        rendezvous: rendezvous(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(variables: &str) -> Option<ThisHost> {
        let pairs: Vec<_> = variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        let lookup = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.replace(',', "\n"));
        ThisHost::from_lookup(lookup).unwrap()
    }

    #[test]
    fn launchers_of_hosts_say_which_this_is() {
        let slurm =
            "SLURM_PROCID=1 SLURM_STEP_ID=2 SLURM_JOB_ID=4097 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=3";
        for (variables, rank, count, ranks, rendezvous) in [
            (
                "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=j-0 PET_MASTER_PORT=23456 JOB_COMPLETION_INDEX=1",
                Some(1),
                Some(2),
                None,
                Some("j-0:23456"),
            ),
            (&format!("{slurm} SLURM_STEP_NODELIST=gpu[07-08]"), Some(1), Some(3), None, Some("gpu07:61443")),
            (
                "SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_RANK=0 SKYPILOT_NODE_IPS=10.0.0.7,10.0.0.8 SKYPILOT_NUM_GPUS_PER_NODE=8",
                Some(0),
                Some(2),
                Some(8),
                Some("10.0.0.7:29500"),
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=fd00::7 MASTER_PORT=1",
                Some(1),
                Some(2),
                None,
                Some("[fd00::7]:1"),
            ),
            ("JOB_COMPLETION_INDEX=3", Some(3), None, None, None),
            ("PET_NNODES=1:4 JOB_COMPLETION_INDEX=3", Some(3), None, None, None),
        ] {
            let found = host(variables).unwrap_or_else(|| panic!("{variables}: nothing"));
            let found = (found.rank, found.count, found.ranks, found.rendezvous);
            assert_eq!(found, (rank, count, ranks, rendezvous.map(String::from)), "{variables}");
        }
    }

    #[test]
    fn one_host_or_several_ranks_of_one_are_none() {
        for variables in [
            "PET_NNODES=1 PET_NODE_RANK=0",
            "SLURM_PROCID=1 SLURM_STEP_ID=2 SLURM_JOB_ID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2",
            "SLURM_PROCID=0 SLURM_JOB_ID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2",
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
            "PET_NNODES=2 PET_NODE_RANK=1 PHALANX_ALONE=1",
            "PET_NNODES=2 PET_NODE_RANK=1 PHALANX_RANK=1",
            "PET_NNODES=2 PET_NODE_RANK=1 RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none",
        ] {
            assert_eq!(host(variables), None, "{variables}");
        }
    }
}
