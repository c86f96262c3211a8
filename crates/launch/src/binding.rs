//! On which cores a rank may run.

use phalanx_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Which of the cores that the launcher may use each rank of a host is bound to.
///
/// # Examples
/// ```
/// use phalanx_launch::Binding;
///
/// assert_eq!("numa".parse::<Binding>()?, Binding::Numa);
/// assert!("socket".parse::<Binding>().is_err());
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Binding {
    /// All of them: the system moves ranks as it likes.
    #[default]
    None,
    /// Its share: cores beside each other, a whole number of them as long as there are as many as ranks. A core's hardware threads stay together then.
    Core,
    /// Those of one NUMA node; ranks take the nodes in turn.
    Numa,
}

impl FromStr for Binding {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Self::None),
            "core" => Ok(Self::Core),
            "numa" => Ok(Self::Numa),
            _ => Err(Error::config(format!("ranks are bound to core, numa or none, not {text:?}"))),
        }
    }
}

/// A hardware thread, which the system calls a CPU. They are ordered as they lie in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cpu {
    pub(crate) node: usize,
    pub(crate) package: usize,
    pub(crate) core: usize,
    pub(crate) number: usize,
}

impl Binding {
    /// The numbers of the CPUs for rank `local` of `ranks` on a host with these; `None`: all.
    pub(crate) fn cpus(self, mut all: Vec<Cpu>, local: usize, ranks: usize) -> Option<Vec<usize>> {
        all.sort_unstable();
        if all.is_empty() {
            return None;
        }
        let same_core = |a: &Cpu, b: &Cpu| (a.node, a.package, a.core) == (b.node, b.package, b.core);
        let mine: Vec<&Cpu> = match self {
            Self::None => return None,
            Self::Core => {
                let cores: Vec<&[Cpu]> = all.chunk_by(same_core).collect();
                let units = if cores.len() >= ranks { cores } else { all.chunks(1).collect() };
                let from = local * units.len() / ranks;
                let to = ((local + 1) * units.len() / ranks).max(from + 1);
                units.get(from..to).unwrap_or_default().iter().copied().flatten().collect()
            }
            Self::Numa => {
                let nodes: Vec<&[Cpu]> = all.chunk_by(|a, b| a.node == b.node).collect();
                nodes[local % nodes.len()].iter().collect()
            }
        };
        Some(mine.into_iter().map(|cpu| cpu.number).collect())
    }
}

/// The CPUs that this process may use.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn own_cpus() -> Result<Vec<Cpu>> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(None)
        .map_err(|error| Error::io("asking which cores this process may use", error.into()))?;
    let numbers = (0..CpuSet::MAX_CPU).filter(|&number| allowed.is_set(number));
    let cpu = |number: usize| {
        let folder = format!("/sys/devices/system/cpu/cpu{number}");
        let topology = |name: &str| -> Option<usize> {
            std::fs::read_to_string(format!("{folder}/topology/{name}")).ok()?.trim().parse().ok()
        };
        Cpu {
            node: node(&folder).unwrap_or(0),
            package: topology("physical_package_id").unwrap_or(0),
            // Where the system says nothing, each is a core.
            core: topology("core_id").unwrap_or(number),
            number,
        }
    };
    Ok(numbers.map(cpu).collect())
}

/// The NUMA node of a CPU, to which a link in its folder leads.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn node(folder: &str) -> Option<usize> {
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    names.into_iter().find_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok())
}

/// There is no way to bind processes here.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn own_cpus() -> Result<Vec<Cpu>> {
    Err(Error::config("ranks can be bound to cores (--bind-to) on Linux only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two NUMA nodes of two cores, each with two hardware threads, numbered as Linux does: first one thread of each core.
    fn machine() -> Vec<Cpu> {
        let cpu = |number: usize| Cpu { node: number / 2 % 2, package: 0, core: number % 4, number };
        (0..8).map(cpu).collect()
    }

    fn all(binding: Binding, ranks: usize) -> Vec<Vec<usize>> {
        (0..ranks).map(|local| binding.cpus(machine(), local, ranks).unwrap()).collect()
    }

    #[test]
    fn ranks_share_out_whole_cores_as_long_as_there_are_enough() {
        assert_eq!(all(Binding::Core, 1), [[0, 4, 1, 5, 2, 6, 3, 7]]);
        assert_eq!(all(Binding::Core, 2), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(all(Binding::Core, 3), [vec![0, 4], vec![1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(all(Binding::Core, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    }

    #[test]
    fn more_ranks_than_cores_share_hardware_threads_and_nobody_gets_none() {
        assert_eq!(all(Binding::Core, 8), [[0], [4], [1], [5], [2], [6], [3], [7]]);
        assert_eq!(all(Binding::Core, 16)[..4], [[0], [0], [4], [4]]);
    }

    #[test]
    fn numa_nodes_are_taken_in_turn() {
        assert_eq!(all(Binding::Numa, 3), [[0, 4, 1, 5], [2, 6, 3, 7], [0, 4, 1, 5]]);
        assert_eq!(Binding::None.cpus(machine(), 0, 2), None);
    }
}
