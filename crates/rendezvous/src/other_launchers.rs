//! Other launchers: by which variables they are known, and which of their processes this is.
//!
//! Without them each of N processes under `mpirun` or `srun` would be a job of one rank: N models that know
//! nothing of each other, and all succeed. Where a launcher has a channel the ranks meet through that ([`Channel`]); a job that has none is refused.

use crate::channel::Channel;
use crate::slurm;
use phalanx_core::{Error, Result};

/// Says that a process is a job of its own on purpose, whatever another launcher's variables say.
pub(crate) const ALONE: &str = "PHALANX_ALONE";

/// The processes that a launcher starts: the ranks themselves, or one on each host (a pod, a node) that is to start the ranks there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Starts {
    Ranks,
    Hosts,
}

/// A launcher, and the variables that it sets.
struct Launcher {
    name: &'static str,
    starts: Starts,
    /// The number of this process, and of all of them.
    rank: &'static str,
    size: Option<&'static str>,
    /// Variables for the rank within its host, and for the address of rank 0, as far as one variable says it.
    more: &'static [(&'static str, &'static str)],
}

const OPEN_MPI: &str = "Open MPI";
const PMI: &str = "PMI (MPICH, Intel MPI)";
const SRUN: &str = "Slurm's srun";

/// The first that says that there are several processes is believed. Those that others start come before these.
const LAUNCHERS: &[Launcher] = &[
    Launcher {
        name: OPEN_MPI,
        starts: Starts::Ranks,
        rank: "OMPI_COMM_WORLD_RANK",
        size: Some("OMPI_COMM_WORLD_SIZE"),
        more: &[
            ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
            ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ],
    },
    Launcher {
        name: "MVAPICH2",
        starts: Starts::Ranks,
        rank: "MV2_COMM_WORLD_RANK",
        size: Some("MV2_COMM_WORLD_SIZE"),
        more: &[
            ("LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
            ("LOCAL_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ],
    },
    Launcher {
        name: PMI,
        starts: Starts::Ranks,
        rank: "PMI_RANK",
        size: Some("PMI_SIZE"),
        more: &[("LOCAL_RANK", "MPI_LOCALRANKID"), ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS")],
    },
    Launcher {
        name: SRUN,
        starts: Starts::Ranks,
        rank: "SLURM_PROCID",
        size: Some("SLURM_STEP_NUM_TASKS"),
        more: &[("LOCAL_RANK", "SLURM_LOCALID")],
    },
    Launcher { name: "PMIx", starts: Starts::Ranks, rank: "PMIX_RANK", size: None, more: &[] },
    Launcher {
        name: "the launcher of a PET_* environment (Kubeflow)",
        starts: Starts::Hosts,
        rank: "PET_NODE_RANK",
        size: Some("PET_NNODES"),
        more: &[("MASTER_ADDR", "PET_MASTER_ADDR"), ("MASTER_PORT", "PET_MASTER_PORT")],
    },
    Launcher {
        name: "SkyPilot",
        starts: Starts::Hosts,
        rank: "SKYPILOT_NODE_RANK",
        size: Some("SKYPILOT_NUM_NODES"),
        more: &[],
    },
    // It says nothing of Kubernetes: PyTorchJob names pods in this way.
    Launcher {
        name: "whoever set RANK and WORLD_SIZE (a PyTorchJob?)",
        starts: Starts::Hosts,
        rank: "RANK",
        size: Some("WORLD_SIZE"),
        more: &[],
    },
    Launcher {
        name: "an indexed Job of Kubernetes",
        starts: Starts::Hosts,
        rank: "JOB_COMPLETION_INDEX",
        size: None,
        more: &[],
    },
];

/// The program that asks whether it is part of a foreign job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// A process that no variable of ours, nor of torchrun's, tells its rank.
    Init,
    /// A launcher of ranks on one host.
    Launcher,
}

/// Refuses to be a job of its own where another launcher's variables say that there are several processes.
///
/// A launcher that is started by a rank of `phalanx run` or of torchrun is not refused: it makes a job within.
///
/// # Errors
/// [`Error::Config`] with the variables that were seen, what to set instead, and that `PHALANX_ALONE=1` says that it is on purpose;
/// or that `PHALANX_ALONE` makes no sense.
///
/// # Examples
/// ```
/// use phalanx_rendezvous::{Asking, refuse_foreign_job};
///
/// let srun = |name: &str| match name {
///     "SLURM_STEP_ID" | "SLURM_PROCID" => Some("0".to_owned()),
///     "SLURM_STEP_NUM_TASKS" => Some("4".to_owned()),
///     _ => None,
/// };
/// let error = refuse_foreign_job(Asking::Init, srun).unwrap_err().to_string();
/// assert!(error.contains("SLURM_STEP_NUM_TASKS=4") && error.contains("PHALANX_ALONE=1"));
/// assert!(refuse_foreign_job(Asking::Init, |_| None).is_ok());
/// ```
pub fn refuse_foreign_job(asking: Asking, lookup: impl Fn(&str) -> Option<String>) -> Result<()> {
    let set = trimmed(lookup);
    if is_alone(set(ALONE))? || is_within_a_job(asking, &set) {
        return Ok(());
    }
    match find(asking, &set) {
        Some((launcher, size)) => Err(Error::config(launcher.refusal(asking, size, &set))),
        None => Ok(()),
    }
}

/// Reads `PHALANX_ALONE`.
pub(crate) fn is_alone(value: Option<String>) -> Result<bool> {
    match value.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(text) => Err(Error::config(format!("{ALONE} is {text:?}, neither 0 nor 1"))),
    }
}

/// Whether this launcher makes a job within a rank of ours or of torchrun's.
fn is_within_a_job(asking: Asking, set: &impl Fn(&str) -> Option<String>) -> bool {
    asking == Asking::Launcher && is_within_a_rank(set)
}

/// The variables of `lookup` without the space around their values; an empty one is not set.
pub(crate) fn trimmed(lookup: impl Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    move |name| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Whether the environment is that of a rank of ours or of torchrun's.
pub(crate) fn is_within_a_rank(set: &impl Fn(&str) -> Option<String>) -> bool {
    ["PHALANX_RANK", "TORCHELASTIC_RUN_ID"].iter().any(|name| set(name).is_some())
}

/// A process among several that a launcher has started as ranks.
#[derive(Debug)]
pub(crate) struct Launched {
    /// The launcher's name.
    pub(crate) by: &'static str,
    /// This process, and how many there are.
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The same within this host.
    pub(crate) local: Option<(usize, usize)>,
    /// This host.
    pub(crate) node: Option<usize>,
    /// How the processes can meet; `None`: the launcher leaves that to others. The error is of those who need the channel.
    pub(crate) channel: Result<Option<Channel>>,
}

/// What a launcher says of the process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    rank: usize,
    size: usize,
}

/// This process among those that another launcher has started as ranks; `None` if none says that there are several.
///
/// # Errors
/// [`Error::Config`]: its variables make no sense, or two launchers disagree.
pub(crate) fn launched(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>> {
    let set = trimmed(lookup);
    let mut told: Vec<(&Launcher, Number)> = Vec::new();
    for launcher in LAUNCHERS.iter().filter(|launcher| launcher.starts == Starts::Ranks) {
        let Some(size) = launcher.size(&set) else { continue };
        let Some(rank) = set(launcher.rank) else {
            if size == 1 {
                continue;
            }
            return Err(Error::config(format!(
                "{} is {size}, but {} is not set, so {} does not say which process this is; {ALONE}=1 says that it is a job of its own",
                launcher.size.unwrap_or_default(),
                launcher.rank,
                launcher.name
            )));
        };
        let number = |text: &str| text.parse::<u32>().ok().map(|number| number as usize);
        let (Some(rank), Ok(size)) = (number(&rank), u32::try_from(size)) else {
            let size_name = launcher.size.unwrap_or_default();
            let what = format!(
                "{} is {rank:?} and {size_name} is {size}: not two numbers of 32 bits",
                launcher.rank
            );
            return Err(Error::config(what));
        };
        let size = size as usize;
        told.push((launcher, Number { rank, size }));
    }
    let Some(&(launcher, number)) = told.iter().find(|(_, number)| number.size > 1) else { return Ok(None) };
    if number.rank >= number.size {
        let (Number { rank, size }, name) = (number, launcher.name);
        return Err(Error::config(format!(
            "rank {rank} of a world of {size} (from {name}): ranks count from 0"
        )));
    }
    if let Some((other, theirs)) = told.iter().find(|(other, theirs)| contradicts(other, *theirs, number)) {
        return Err(Error::config(disagreement((launcher, number), (other, *theirs))));
    }
    let is_this = |rank_name: &str| set(rank_name).and_then(|rank| rank.parse().ok()) == Some(number.rank);
    if launcher.name == OPEN_MPI && set("PMIX_RANK").is_some() && !is_this("PMIX_RANK") {
        return Err(Error::config(format!(
            "{} is {}, but PMIX_RANK is {}: unset the one that is wrong",
            launcher.rank,
            number.rank,
            set("PMIX_RANK").unwrap_or_default()
        )));
    }
    let says_the_same =
        |name: &str| told.iter().any(|(other, theirs)| other.name == name && *theirs == number);
    let in_step = says_the_same(SRUN);
    let descriptor = set("PMI_FD").filter(|_| says_the_same(PMI));
    let channel = match descriptor {
        Some(text) => match text.parse::<i32>().ok().filter(|number| *number >= 0) {
            Some(descriptor) => Ok(Some(Channel::Pmi(descriptor))),
            None => Err(Error::config(format!("PMI_FD is {text:?}, not the number of a descriptor"))),
        },
        None if is_this("PMIX_RANK") => Ok(Some(Channel::Pmix)),
        None if in_step => slurm::meeting_file(&set).map(|file| file.map(Channel::File)),
        None => Ok(None),
    };
    let pair = |launcher: &Launcher| {
        let named =
            |ours| launcher.more.iter().find(|(name, _)| *name == ours).and_then(|(_, theirs)| set(theirs));
        Some((named("LOCAL_RANK")?.parse().ok()?, named("LOCAL_WORLD_SIZE")?.parse().ok()?))
    };
    let local = told.iter().filter(|(_, theirs)| *theirs == number).find_map(|(launcher, _)| pair(launcher));
    Ok(Some(Launched {
        by: launcher.name,
        rank: number.rank,
        world_size: number.size,
        local: local.or_else(|| in_step.then(|| slurm::local(&set))?),
        node: in_step.then(|| set("SLURM_NODEID")?.parse().ok()).flatten(),
        channel,
    }))
}

/// Whether another launcher makes something else of this process. A step of Slurm with fewer processes is that of another launcher's daemons.
fn contradicts(other: &Launcher, theirs: Number, ours: Number) -> bool {
    theirs != ours && !(other.name == SRUN && theirs.size < ours.size)
}

fn disagreement(one: (&Launcher, Number), other: (&Launcher, Number)) -> String {
    let says = |(launcher, Number { rank, size }): (&Launcher, Number)| {
        let sizes = launcher.size.map(|name| format!(", {name}={size}")).unwrap_or_default();
        format!(
            "{} says that this is process {rank} of {size} ({}={rank}{sizes})",
            launcher.name, launcher.rank
        )
    };
    format!(
        "{}, but {}: set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and PHALANX_SECRET, which count more than both; or set {ALONE}=1 if each \
         is meant to be a job of its own",
        says(one),
        says(other)
    )
}

/// The first launcher that says that there are several processes, and how many if it does. One that does not tell the number counts if no other
/// of its kind does.
fn find(asking: Asking, set: &impl Fn(&str) -> Option<String>) -> Option<(&'static Launcher, Option<u64>)> {
    let asked = || LAUNCHERS.iter().filter(move |l| l.rank != "RANK" || asking == Asking::Launcher);
    let sizes: Vec<_> = asked().filter_map(|launcher| Some((launcher, launcher.size(set)?))).collect();
    if let Some((launcher, size)) = sizes.iter().find(|(_, size)| *size > 1) {
        return Some((*launcher, Some(*size)));
    }
    let is_told = |starts| sizes.iter().any(|(launcher, _)| launcher.starts == starts);
    let is_numbered = |l: &Launcher| set(l.rank).is_some_and(|rank| rank.parse::<u64>().is_ok());
    asked().find(|l| l.size.is_none() && is_numbered(l) && !is_told(l.starts)).map(|l| (l, None))
}

impl Launcher {
    /// How many processes it says there are.
    fn size(&self, set: &impl Fn(&str) -> Option<String>) -> Option<u64> {
        let name = self.size?;
        if name == "SLURM_STEP_NUM_TASKS" {
            slurm::step(set)?;
        }
        let size = set(name)?;
        // `PET_NNODES` may be a range.
        size.rsplit(':').next()?.parse().ok()
    }

    fn refusal(&self, asking: Asking, size: Option<u64>, set: &impl Fn(&str) -> Option<String>) -> String {
        let names = [Some(self.rank), self.size].into_iter().flatten();
        let seen: Vec<String> = names.filter_map(|name| Some(format!("{name}={}", set(name)?))).collect();
        let seen = seen.join(", ");
        let among =
            size.map_or_else(|| "one of several processes".into(), |n| format!("one of {n} processes"));
        let who = match asking {
            Asking::Init => "this process",
            Asking::Launcher => "this launcher",
        };
        let trouble = match asking {
            Asking::Init => "but nothing tells it where the others are, so each would be a job of its own",
            Asking::Launcher => "and starts ranks on its own host only, so each would make a job of its own",
        };
        let each = match (asking, self.starts, size) {
            // `init` reads the others itself.
            (Asking::Init, Starts::Ranks, Some(_)) => String::new(),
            _ => format!("{} for each, and ", self.assignments(set).join(" ")),
        };
        let start = match (asking, self.starts) {
            (Asking::Init, _) => String::new(),
            (Asking::Launcher, Starts::Ranks) => "let it start the program itself, and ".into(),
            (Asking::Launcher, Starts::Hosts) => "start the program itself on each, as one rank, and ".into(),
        };
        let both: Vec<&str> = ["MASTER_ADDR", "MASTER_PORT"]
            .into_iter()
            .filter(|name| !self.more.iter().any(|(ours, theirs)| ours == name && set(theirs).is_some()))
            .chain(["PHALANX_SECRET"])
            .collect();
        let name = self.name;
        let both = both.join(", ");
        let launchers = match (asking, self.starts) {
            (Asking::Init, _) => "",
            (Asking::Launcher, Starts::Ranks) => {
                "; or start one launcher on each host, with --nnodes, --node-rank, --rendezvous and --secret-file"
            }
            (Asking::Launcher, Starts::Hosts) => {
                "; or make one job of all launchers: what these variables do not say of --nnodes, --node-rank, --rendezvous and --secret-file (or \
                 PHALANX_SECRET) has to be given"
            }
        };
        format!(
            "{who} is {among} of {name} ({seen}), {trouble}: {start}set {each}{both} to the same for all{launchers}; or set \
             {ALONE}=1 if each is meant to be a job of its own"
        )
    }

    /// `RANK=$PMI_RANK` and so on: for a shell that starts the program.
    fn assignments(&self, set: &impl Fn(&str) -> Option<String>) -> Vec<String> {
        if self.rank == "RANK" {
            return vec!["RANK and WORLD_SIZE".into()];
        }
        let size =
            self.size.map_or_else(|| "WORLD_SIZE=<processes in all>".into(), |n| format!("WORLD_SIZE=${n}"));
        let more = self.more.iter().filter(|(_, theirs)| set(theirs).is_some());
        let more = more.map(|(ours, theirs)| format!("{ours}=${theirs}"));
        [format!("RANK=${}", self.rank), size].into_iter().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(asking: Asking, variables: &str) -> Option<String> {
        let pairs: Vec<_> = variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        let lookup =
            |name: &str| pairs.iter().rev().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        match refuse_foreign_job(asking, lookup) {
            Ok(()) => None,
            Err(Error::Config { what }) => Some(what),
            Err(other) => panic!("{variables}: {other}"),
        }
    }

    /// What each launcher sets, as seen on the real ones where they can be had, and what the error says besides these values.
    const SEVERAL: &[(&str, &[&str])] = &[
        (
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=2",
            &[
                "one of 4 processes of Open MPI",
                "RANK=$OMPI_COMM_WORLD_RANK",
                "LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
        ),
        ("MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2", &["one of 2 processes of MVAPICH2"]),
        (
            "PMI_RANK=3 PMI_SIZE=4 PMI_FD=5 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
            &["MPICH", "RANK=$PMI_RANK", "LOCAL_RANK=$MPI_LOCALRANKID"],
        ),
        (
            "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_LOCALID=1",
            &["srun", "RANK=$SLURM_PROCID", "WORLD_SIZE=$SLURM_STEP_NUM_TASKS", "LOCAL_RANK=$SLURM_LOCALID"],
        ),
        ("SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 PMI_RANK=0 PMI_SIZE=2", &["PMI"]),
        ("PMIX_RANK=0 PMIX_NAMESPACE=prun-1", &["one of several processes of PMIx", "<processes in all>"]),
        (
            "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=job-0 PET_MASTER_PORT=29500",
            &["PET_NODE_RANK=1", "MASTER_ADDR=$PET_MASTER_ADDR", "and PHALANX_SECRET to"],
        ),
        ("PET_NNODES=1:4", &["PET_NNODES=1:4", "one of 4"]),
        (
            "SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_RANK=0",
            &["SkyPilot", "MASTER_ADDR, MASTER_PORT, PHALANX_SECRET"],
        ),
        ("JOB_COMPLETION_INDEX=0", &["indexed Job", "RANK=$JOB_COMPLETION_INDEX"]),
        ("JOB_COMPLETION_INDEX=7", &["JOB_COMPLETION_INDEX=7"]),
        // An inner job of one process in an outer one of several.
        ("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 SLURM_STEP_ID=3 SLURM_STEP_NUM_TASKS=2", &["srun"]),
        ("PMI_SIZE=1 PMI_RANK=0 JOB_COMPLETION_INDEX=1", &["indexed Job"]),
    ];

    const ALONE_ANYWAY: &[&str] = &[
        "",
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0",
        "MV2_COMM_WORLD_SIZE=1",
        "PMI_RANK=0 PMI_SIZE=1",
        "PMI_SIZE= PMI_RANK=",
        "PMI_SIZE=many",
        "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4 PMIX_RANK=0",
        // The shell of sbatch and salloc, with and without the numbers of the steps that these are: batch, extern, interactive, pending.
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_JOB_ID=7",
        "SLURM_STEP_NUM_TASKS=4",
        "SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=2",
        "SLURM_STEP_ID=4294967291 SLURM_STEP_NUM_TASKS=2",
        "SLURM_STEP_ID=4294967292 SLURM_STEP_NUM_TASKS=2",
        "SLURM_STEP_ID=4294967293 SLURM_STEP_NUM_TASKS=2",
        "SLURM_STEP_ID=4294967294 SLURM_STEP_NUM_TASKS=2",
        "SLURM_STEP_ID=batch SLURM_STEP_NUM_TASKS=2",
        "PET_NNODES=1 PET_NODE_RANK=0 JOB_COMPLETION_INDEX=0",
        "PET_NNODES=1:1",
        "SKYPILOT_NUM_NODES=1 SKYPILOT_NODE_RANK=0",
        "JOB_COMPLETION_INDEX=",
        "JOB_COMPLETION_INDEX=a",
    ];

    #[test]
    fn several_processes_of_another_launcher_are_refused_by_name() {
        for asking in [Asking::Init, Asking::Launcher] {
            for (variables, words) in SEVERAL {
                let what = ask(asking, variables).unwrap_or_else(|| panic!("{variables}: not refused"));
                // `init` reads the variables of those who start ranks itself.
                let is_asked = |word: &&&str| {
                    asking == Asking::Launcher
                        || !["=$OMPI", "=$PMI", "=$MPI", "=$SLURM"].iter().any(|of| word.contains(of))
                };
                for word in words.iter().filter(is_asked).chain(&["PHALANX_ALONE=1", "PHALANX_SECRET"]) {
                    assert!(what.contains(word), "{variables}: {what:?} does not say {word:?}");
                }
                assert_eq!(what.contains("the program itself"), asking == Asking::Launcher, "{what}");
                assert_eq!(ask(asking, &format!("{variables} PHALANX_ALONE=1")), None, "{variables}");
                assert!(ask(asking, &format!("{variables} PHALANX_ALONE=0")).is_some(), "{variables}");
            }
        }
    }

    #[test]
    fn one_process_is_alone() {
        for asking in [Asking::Init, Asking::Launcher] {
            for variables in ALONE_ANYWAY {
                assert_eq!(ask(asking, variables), None, "{variables}");
            }
        }
    }

    #[test]
    fn a_launcher_in_a_pod_of_several_is_refused_and_one_within_a_rank_is_not() {
        let pod = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456";
        let what = ask(Asking::Launcher, pod).unwrap();
        assert!(what.contains("RANK=1, WORLD_SIZE=2") && what.contains("PyTorchJob"), "{what}");
        assert_eq!(ask(Asking::Launcher, "RANK=0 WORLD_SIZE=1"), None);
        // Ranks have what their launchers were given, too.
        for (outer, _) in SEVERAL {
            let torchrun = format!("{outer} {pod} LOCAL_RANK=1 TORCHELASTIC_RUN_ID=none");
            assert_eq!(ask(Asking::Launcher, &torchrun), None);
            assert_eq!(ask(Asking::Launcher, &format!("{outer} {pod} PHALANX_RANK=1")), None);
        }
        // `init` in that pod is a rank of two.
        assert_eq!(ask(Asking::Init, pod), None);
    }

    #[test]
    fn alone_is_a_switch() {
        let what = ask(Asking::Init, "PHALANX_ALONE=yes").unwrap();
        assert!(what.contains("PHALANX_ALONE is \"yes\", neither 0 nor 1"), "{what}");
    }
}
