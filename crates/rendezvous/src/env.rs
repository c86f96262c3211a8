//! This process's place in its job, from the environment.

use crate::other_launchers::{self, Asking, Launched};
use crate::{Channel, Elastic, OwnChannel, StoreLocation, secret_file};
use phalanx_core::{Error, LibraryCopy, Result, Staging};
use phalanx_transport::Secret;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Only for ranks that are late although they live: who dies or falls silent is found without it. Loading data, compiling a kernel or
/// writing a checkpoint takes minutes now and then.
const TIMEOUT: Duration = Duration::from_secs(600);
const INIT_TIMEOUT: Duration = Duration::from_secs(120);
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// Operations of each group that are remembered.
pub const TRACE_LEN: usize = 1024;
/// The fewest, for errors name call sites from them, and the most: a hundred megabytes a group.
const TRACE_LENS: std::ops::RangeInclusive<usize> = 64..=1 << 20;
/// The longest time limit that can be set, a year: far from where sums of times overflow.
const TIMEOUT_MAX_S: f64 = 365.0 * 86_400.0;

/// Everything a process must know to join its job.
///
/// | variable | meaning |
/// |---|---|
/// | `PHALANX_RANK`, `PHALANX_WORLD_SIZE` | which of how many processes this is; else `RANK`, `WORLD_SIZE`; else what another launcher says (Open MPI, MPICH, Intel MPI, Slurm); else a group of one |
/// | `PHALANX_ALONE` | `1`: this process is a job of its own, although variables of another launcher (Open MPI, MPICH, Slurm, Kubernetes, …) say that there are several |
/// | `PHALANX_LOCAL_RANK`, `PHALANX_LOCAL_WORLD_SIZE` | the same within this host; else `LOCAL_RANK`, `LOCAL_WORLD_SIZE`; else one rank a host |
/// | `PHALANX_NODE_RANK` | number of this host; else `GROUP_RANK`; else rank / ranks of this host |
/// | `PHALANX_STORE` | `tcp://host:port` of a running server, or `file:///directory`; else rank 0 runs a server at `MASTER_ADDR`, `MASTER_PORT`; else, under another launcher, where its channel (PMI, PMIx) says |
/// | `PHALANX_SECRET` | the job's secret, 64 hexadecimal digits; else, under another launcher, what its channel says |
/// | `PHALANX_SECRET_FILE` | or a file with it, which only its owner can read |
/// | `PHALANX_SHARED_DIR` | a directory that all hosts see: in a step of Slurm without PMI rank 0 leaves the secret and its address there, in a private file, until all have met; else `$HOME/.phalanx` |
/// | `PHALANX_PMIX_LIBRARY` | the file of PMIx, for Open MPI and `srun --mpi=pmix`; else `libpmix.so.2` where the system looks for libraries |
/// | `PHALANX_ENCRYPT` | `1`: all that processes of the job say over TCP is encrypted; the same for all of them. `require`: besides, an NCCL that would send in the clear over its sockets is refused (NVLink between hosts is not looked at) |
/// | `PHALANX_JOB_ID` | tells this run from others; else `TORCHELASTIC_RUN_ID`; must be set with a `file:` store, and different for jobs that run at the same time |
/// | `PHALANX_HOST` | host name or address that the other ranks should use for this one, as `host` or `host:port`; needed on several hosts with a `file:` store; else the one from which this host reaches the store |
/// | `PHALANX_BIND` | address at which this rank listens, `0.0.0.0` for all; else that of `PHALANX_HOST`. Differs from it where addresses are translated on the way |
/// | `PHALANX_INTERFACE` | the network by which the other ranks should reach this one: the name of an interface of this host, or several with commas between them, of which the first that has an address counts |
/// | `PHALANX_PORT` | the port at which the first rank of this host listens, the next ones at the ports after it, for firewalls; or `6000-6063`, of which each rank takes one that is free; else any that are free. A port in `PHALANX_HOST` counts as the first |
/// | `PHALANX_ELASTIC` | `MIN:MAX`: a job that goes on with so many processes when some are lost; set by `phalanx run --elastic` |
/// | `PHALANX_WORKER` | the number of this process among all that the job ever had; set by `phalanx run --elastic`; else the rank |
/// | `PHALANX_LIFELINE` | `host:port` of the launcher that started this process, with which it ends; set by `phalanx run` |
/// | `PHALANX_TIMEOUT_S` | time limit of each operation, 600, unless the program sets another |
/// | `PHALANX_INIT_TIMEOUT_S` | time limit for all ranks to come together, 120 |
/// | `PHALANX_HEARTBEAT_TIMEOUT_S` | a rank that shows no sign of life for so long is lost, 10; `0` waits for ever; the same for all ranks |
/// | `PHALANX_BACKEND` | `shm` or `tcp` for all data, else `auto`: shared memory where ranks share a host; or what the program registered; the same for all ranks |
/// | `PHALANX_HOST_ID` | any text: ranks of one host with different ones share no memory, as if they were on several |
/// | `PHALANX_ALGO` | algorithms to use instead of the recommended ones, each for its operation, as in `all_reduce=ring,broadcast=shm/staged`; `phalanx algo list` has them. One that does not exist is an error; where one can't be taken, the recommended one is, with a warning |
/// | `PHALANX_STAGING` | `own`, `swapped` or `claimed`: where two ranks that share memory and have a core each stage what is small, instead of where `phalanx tune` says that it is faster; the same for all ranks |
/// | `PHALANX_LIBRARY_COPY` | `never`, `write` or `always`: which copies between ranks that share memory are the C library's, instead of those that are measured to be faster so; the same for all ranks |
/// | `PHALANX_KERNEL_COPY` | `1` or `0`: whether ranks that share memory let the kernel copy long messages and large operations from one process to another, instead of where a measurement finds that it copies well; the same for all ranks |
/// | `PHALANX_REPRODUCIBLE` | `1`: reductions add up in the order of the ranks, so that their bits depend on nothing but the world size; the same for all ranks |
/// | `PHALANX_SELF_TEST` | `0`: init does not check that the ranks add up right; the same for all ranks |
/// | `PHALANX_CHECKSUM` | `1`: every frame over TCP has a checksum; the same for all ranks |
/// | `PHALANX_TRACE_DIR` | a folder where each rank writes what it did lately when a group fails; else nothing is written |
/// | `PHALANX_TRACE_BUFFER` | operations of each group that are remembered for that, 1024 |
/// | `PHALANX_TRACE_SIGNAL` | `1`: SIGUSR1 at any rank makes all ranks write; without it phalanx leaves the signal alone |
/// | `PHALANX_NCCL_LIBRARY` | the file of NCCL, for `phalanx-nccl`; else `libnccl.so.2`, `libnccl.so` where the system looks for libraries |
/// | `PHALANX_CUDA_LIBRARY` | the file of the CUDA driver, for `phalanx-nccl`; else `libcuda.so.1`, `libcuda.so` |
/// | `PHALANX_ENABLE_GPU_FALLBACK` | `1`: where a rank has no NCCL, device memory goes over the host, for `phalanx-nccl`; the same for all ranks |
///
/// A variable that is empty counts as not set. Rank and world size come from one family of variables; if the other one is
/// there as well, it must agree. Under torchrun's elastic agent (`TORCHELASTIC_USE_AGENT_STORE`) the agent itself listens on
/// `MASTER_PORT`; the store of rank 0 takes the next port then.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The source of rank and world size.
    pub source: Source,
    /// This process among all of the job, below `world_size`.
    pub rank: usize,
    /// Processes in the job, at least 1.
    pub world_size: usize,
    /// This process among those on its host, below `local_world_size`.
    pub local_rank: usize,
    /// Processes on this host, at most `world_size`.
    pub local_world_size: usize,
    /// This host among the job's.
    pub node_rank: usize,
    /// This process among all that the job ever had: a replacement has a number that nobody had before it.
    pub worker: u64,
    /// How many processes the job goes on with after a loss; `None`: it has `world_size`, and loses none.
    pub elastic: Option<Elastic>,
    /// The address of the launcher that started this process: when that has ended, this process ends as well. `None`: another launcher did.
    pub lifeline: Option<String>,
    /// The store through which the ranks find each other.
    pub store: StoreLocation,
    /// The secret of the job, and whether its processes encrypt; there in every job but a group of one and one that meets through its launcher's channel.
    pub secret: Option<Secret>,
    /// Whether they encrypt, for a secret that is yet to come.
    pub(crate) protection: Protection,
    /// By which name the launcher knows this host.
    pub(crate) node_name: Option<String>,
    /// Tells this run from others that use the same store.
    pub job_id: String,
    /// Host name or address that the other ranks should use for this one.
    pub advertise: Option<String>,
    /// The port that they should use, if it is not the one at which it listens; that of local rank 0.
    pub advertise_port: Option<u16>,
    /// Host name or address at which this rank listens, if not at the one that the others use.
    pub bind: Option<String>,
    /// The interface by which the other ranks should reach this one; several names have commas between them.
    pub interface: Option<String>,
    /// The port at which local rank 0 listens; `None`: any that is free.
    pub port: Option<u16>,
    /// The last port of those that begin with [`port`](Self::port), of which each rank takes one that is free. `None`: each rank has its own, which is
    /// that port plus its local rank.
    pub port_last: Option<u16>,
    /// Time limit of each operation.
    pub timeout: Duration,
    /// Time limit for all ranks to come together.
    pub init_timeout: Duration,
    /// How long a rank may show no sign of life before it is lost; `None`: for ever.
    pub heartbeat_timeout: Option<Duration>,
    /// The name of what performs the operations of groups, as it is registered: `auto`, `shm`, `tcp`, or a program's own.
    pub backend: String,
    /// Makes different hosts of ranks that could share memory.
    pub host_id: Option<String>,
    /// Algorithms to use instead of the recommended ones, as written in `PHALANX_ALGO`.
    pub algorithms: Option<String>,
    /// Where two ranks that share memory stage, if not where it is measured to be faster.
    pub staging: Option<Staging>,
    /// Which copies between ranks that share memory are the C library's; `None`: those that are measured to be faster so.
    pub library_copy: Option<LibraryCopy>,
    /// Whether ranks that share memory let the kernel copy between their processes; `None`: if it is measured to copy well.
    pub kernel_copy: Option<bool>,
    /// Whether reductions add up in the order of the ranks, whatever carries them.
    pub reproducible: bool,
    /// Whether init checks that the ranks add up right.
    pub self_test: bool,
    /// Whether frames over TCP have checksums.
    pub checksum: bool,
    /// The folder into which this rank writes its latest operations when a group fails.
    pub trace_dir: Option<PathBuf>,
    /// How many operations of each group it remembers for that.
    pub trace_len: usize,
    /// Whether SIGUSR1 makes all ranks write.
    pub trace_on_signal: bool,
}

/// How the processes of a job treat what they say over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    Clear,
    Encrypted,
    /// Besides, what can't be encrypted is refused.
    Required,
}

impl Protection {
    /// A secret by which that is done.
    pub(crate) fn of(self, secret: Secret) -> Secret {
        match self {
            Self::Clear => secret,
            Self::Encrypted => secret.encrypting(),
            Self::Required => secret.refusing_clear(),
        }
    }
}

/// Which variables said who this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Phalanx's own, set by `phalanx run`.
    Phalanx,
    /// The variables of torchrun, which many other launchers set as well.
    Torchrun,
    /// Those of another launcher, by its name: Open MPI, MPICH, Slurm.
    Launcher(&'static str),
    /// No variable: this process is a job of its own.
    Alone,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Phalanx => "PHALANX_RANK and PHALANX_WORLD_SIZE",
            Self::Torchrun => "RANK and WORLD_SIZE",
            Self::Launcher(name) => name,
            Self::Alone => "no launcher",
        })
    }
}

impl Config {
    /// Reads the environment of this process, and logs in one line what it found.
    ///
    /// # Errors
    /// [`Error::Config`] names the variables that are missing, make no sense or contradict each other;
    /// [`Error::Io`]: the secret's file can't be read.
    ///
    /// # Examples
    /// ```
    /// let config = phalanx_rendezvous::Config::from_env()?;
    /// println!("rank {} of {}, as {} says", config.rank, config.world_size, config.source);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        let config = Self::from_lookup(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))?;
        tracing::info!(
            source = %config.source,
            rank = config.rank,
            world_size = config.world_size,
            store = %config.store,
            job_id = config.job_id,
            "this process's place in the job"
        );
        Ok(config)
    }

    /// Reads variables from `lookup`.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{Config, Source};
    ///
    /// let alone = Config::from_lookup(|_| None)?;
    /// assert_eq!((alone.rank, alone.world_size, alone.source), (0, 1, Source::Alone));
    ///
    /// let error = Config::from_lookup(|name| (name == "RANK").then(|| "3".into())).unwrap_err();
    /// assert_eq!(error.to_string(), "configuration: RANK is set, but WORLD_SIZE is not");
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        Self::of(&Variables::of(lookup), None)
    }

    /// As [`from_lookup`](Self::from_lookup), for ranks that meet in a way of the program's own: no variable says where, and no secret need be set.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env); variables must say who this process is.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{Config, OwnChannel};
    ///
    /// let variables = [("PHALANX_RANK", "1"), ("PHALANX_WORLD_SIZE", "2")];
    /// let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    /// let channel = OwnChannel::new("a store of the program", |_, _| Err("it is closed".into()));
    /// let config = Config::from_lookup_through(channel, lookup)?;
    /// assert_eq!(config.store.to_string(), "said through a store of the program");
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_lookup_through(channel: OwnChannel, lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        Self::of(&Variables::of(lookup), Some(Channel::Own(channel)))
    }

    fn of(vars: &Variables<'_>, own: Option<Channel>) -> Result<Self> {
        let found = vars.identity()?;
        let alone = other_launchers::is_alone(vars.text(other_launchers::ALONE))?;
        let launched = match found {
            None if !alone => other_launchers::launched(|name| vars.text(name))?,
            _ => None,
        };
        let by_launcher = launched.as_ref().map(|l| (Source::Launcher(l.by), l.rank, l.world_size));
        match found {
            None => {
                // It may leave the meeting to variables that are set.
                let can_meet =
                    launched.as_ref().is_some_and(|l| !matches!(l.channel, Ok(None)) || vars.has_store());
                if !can_meet {
                    other_launchers::refuse_foreign_job(Asking::Init, |name| vars.text(name))?;
                }
            }
            Some((source, rank, world_size)) if alone && world_size > 1 => {
                return Err(Error::config(format!(
                    "{}=1 says that this process is a job of its own, but it is rank {rank} of {world_size} (from {source}): unset \
                     one of them",
                    other_launchers::ALONE
                )));
            }
            Some(_) => {}
        }
        let (source, rank, world_size) = found.or(by_launcher).unwrap_or((Source::Alone, 0, 1));
        let (local_rank, local_world_size) =
            vars.local(world_size, launched.as_ref().and_then(|l| l.local))?;
        let node = launched.as_ref().and_then(|l| l.node);
        let store = match (own, launched) {
            (Some(own), _) => StoreLocation::Launcher(own),
            (None, Some(Launched { channel, .. })) if !vars.has_store() => {
                let channel = channel?.ok_or_else(|| {
                    Error::config(format!("{source} has no way in which the ranks can meet"))
                })?;
                StoreLocation::Launcher(channel)
            }
            _ => vars.store(source)?,
        };
        let protection = vars.protection()?;
        let secret = vars.secret()?.map(|secret| protection.of(secret));
        if source != Source::Alone && secret.is_none() && !matches!(store, StoreLocation::Launcher(_)) {
            return Err(Error::config(
                "the processes of a job prove to each other that they belong to it: set PHALANX_SECRET to the same 64 \
                 hexadecimal digits for all of them (make them with: openssl rand -hex 32), or PHALANX_SECRET_FILE to a file \
                 of mode 600 with them",
            ));
        }
        let own_job_id = vars.text("PHALANX_JOB_ID");
        let (advertise, advertise_port) = vars.host()?;
        let (port, port_last) = vars.ports("PHALANX_PORT")?;
        if matches!(store, StoreLocation::File(_)) && own_job_id.is_none() {
            return Err(Error::config(
                "PHALANX_STORE is a directory, which other jobs may use as well: set PHALANX_JOB_ID to something that no other job \
                 that runs at the same time has",
            ));
        }
        let elastic = vars.parsed("PHALANX_ELASTIC")?;
        if elastic.is_some() && matches!(source, Source::Launcher(_)) {
            return Err(Error::config(format!(
                "PHALANX_ELASTIC is set, and this process is a rank of {source}: an elastic job is started by `phalanx run --elastic`"
            )));
        }
        if elastic.is_some() && matches!(store, StoreLocation::File(_)) {
            return Err(Error::config(
                "PHALANX_ELASTIC is set, and PHALANX_STORE is a directory: an elastic job needs a store that its launcher runs \
                 (`phalanx run --elastic` sets both)",
            ));
        }
        Ok(Self {
            source,
            rank,
            world_size,
            local_rank,
            local_world_size,
            node_rank: vars
                .either("PHALANX_NODE_RANK", "GROUP_RANK")?
                .or(node)
                .unwrap_or(rank / local_world_size),
            worker: vars.number("PHALANX_WORKER")?.unwrap_or(rank) as u64,
            elastic,
            // Who was started by a rank of another job inherits what holds for that one.
            lifeline: vars.text("PHALANX_LIFELINE").filter(|_| source == Source::Phalanx),
            store,
            secret,
            protection,
            node_name: vars.text("SLURMD_NODENAME"),
            job_id: own_job_id
                .or_else(|| vars.text("TORCHELASTIC_RUN_ID"))
                .unwrap_or_else(|| "default".into()),
            advertise,
            advertise_port,
            bind: vars.text("PHALANX_BIND").map(|host| host.trim_matches(['[', ']']).to_owned()),
            interface: vars.text("PHALANX_INTERFACE"),
            port,
            port_last,
            timeout: vars.timeout()?,
            init_timeout: vars.init_timeout()?,
            heartbeat_timeout: vars.heartbeat_timeout()?,
            backend: vars.text("PHALANX_BACKEND").unwrap_or_else(|| "auto".into()),
            host_id: vars.text("PHALANX_HOST_ID"),
            algorithms: vars.text("PHALANX_ALGO"),
            staging: vars.parsed("PHALANX_STAGING")?,
            library_copy: vars.parsed("PHALANX_LIBRARY_COPY")?,
            kernel_copy: vars.flag("PHALANX_KERNEL_COPY")?,
            reproducible: vars.flag("PHALANX_REPRODUCIBLE")?.unwrap_or(false),
            self_test: vars.flag("PHALANX_SELF_TEST")?.unwrap_or(true),
            checksum: vars.flag("PHALANX_CHECKSUM")?.unwrap_or(false),
            trace_dir: vars.text("PHALANX_TRACE_DIR").map(PathBuf::from),
            trace_len: vars.trace_len()?,
            trace_on_signal: vars.flag("PHALANX_TRACE_SIGNAL")?.unwrap_or(false),
        })
    }
}

/// The secret that `PHALANX_SECRET` or `PHALANX_SECRET_FILE` says, if one of them is set.
///
/// # Errors
/// As [`Config::from_lookup`].
///
/// # Examples
/// ```
/// assert_eq!(phalanx_rendezvous::secret_of_environment(|_| None)?, None);
/// # Ok::<(), phalanx_core::Error>(())
/// ```
pub fn secret_of_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Secret>> {
    Variables::of(lookup).secret()
}

/// The variables that are set and not empty.
pub(crate) struct Variables<'l>(Box<Lookup<'l>>);

type Lookup<'l> = dyn Fn(&str) -> Option<String> + 'l;

impl<'l> Variables<'l> {
    pub(crate) fn of(lookup: impl Fn(&str) -> Option<String> + 'l) -> Self {
        Self(Box::new(move |name| lookup(name).filter(|value| !value.trim().is_empty())))
    }

    fn text(&self, name: &str) -> Option<String> {
        Some((self.0)(name)?.trim().to_owned())
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        // 32 bits: that is what a rank has on the wire.
        let number =
            text.parse::<u32>().map_err(|_| Error::config(format!("{name} is {text:?}, not a number")))?;
        Ok(Some(number as usize))
    }

    fn port(&self, name: &str) -> Result<Option<u16>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let port = text.parse::<u16>().ok().filter(|port| *port > 0);
        port.map(Some).ok_or_else(|| Error::config(format!("{name} is {text:?}, not a port (1 to 65535)")))
    }

    /// A port, or the first and the last of several.
    fn ports(&self, name: &str) -> Result<(Option<u16>, Option<u16>)> {
        let Some(text) = self.text(name) else { return Ok((None, None)) };
        let Some((first, last)) = text.split_once('-') else { return Ok((self.port(name)?, None)) };
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok((Some(first), Some(last))),
            _ => Err(Error::config(format!(
                "{name} is {text:?}, neither a port (1 to 65535) nor two like 6000-6063"
            ))),
        }
    }

    /// Where the other ranks reach this one: a host, and perhaps a port.
    fn host(&self) -> Result<(Option<String>, Option<u16>)> {
        let Some(text) = self.text("PHALANX_HOST") else { return Ok((None, None)) };
        let bare = |host: &str| Some(host.trim_matches(['[', ']']).to_owned());
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address has colons of its own: with a port it is written in brackets.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
            _ => return Ok((bare(&text), None)),
        };
        match port.parse::<u16>().ok().filter(|port| *port > 0) {
            Some(port) if !host.is_empty() => Ok((bare(host), Some(port))),
            _ => Err(Error::config(format!(
                "PHALANX_HOST is {text:?}: neither a host nor host:port (1 to 65535)"
            ))),
        }
    }

    fn seconds(&self, name: &str) -> Result<Option<Duration>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let time = text.parse().ok().filter(|seconds| (0.0..=TIMEOUT_MAX_S).contains(seconds));
        // Less than a nanosecond is none.
        match time.map(Duration::from_secs_f64).filter(|time| !time.is_zero()) {
            Some(time) => Ok(Some(time)),
            None => Err(Error::config(format!(
                "{name} is {text:?}, not a time in seconds (more than 0, at most a year)"
            ))),
        }
    }

    pub(crate) fn timeout(&self) -> Result<Duration> {
        Ok(self.seconds("PHALANX_TIMEOUT_S")?.unwrap_or(TIMEOUT))
    }

    pub(crate) fn init_timeout(&self) -> Result<Duration> {
        Ok(self.seconds("PHALANX_INIT_TIMEOUT_S")?.unwrap_or(INIT_TIMEOUT))
    }

    pub(crate) fn heartbeat_timeout(&self) -> Result<Option<Duration>> {
        let name = "PHALANX_HEARTBEAT_TIMEOUT_S";
        if self.text(name).is_some_and(|text| text.parse() == Ok(0.0)) {
            return Ok(None);
        }
        Ok(Some(self.seconds(name)?.unwrap_or(HEARTBEAT_TIMEOUT)))
    }

    /// Our variable, else torchrun's.
    fn either(&self, ours: &str, theirs: &str) -> Result<Option<usize>> {
        Ok(self.number(ours)?.or(self.number(theirs)?))
    }

    /// Two variables that make sense together only.
    fn pair(&self, first: &str, second: &str) -> Result<Option<(usize, usize)>> {
        match (self.number(first)?, self.number(second)?) {
            (Some(a), Some(b)) => Ok(Some((a, b))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(Error::config(format!("{first} is set, but {second} is not"))),
            (None, Some(_)) => Err(Error::config(format!("{second} is set, but {first} is not"))),
        }
    }

    /// Source, rank and world size.
    fn identity(&self) -> Result<Option<(Source, usize, usize)>> {
        for (ours, theirs) in [("PHALANX_RANK", "RANK"), ("PHALANX_WORLD_SIZE", "WORLD_SIZE")] {
            if let (Some(a), Some(b)) = (self.number(ours)?, self.number(theirs)?)
                && a != b
            {
                return Err(Error::config(format!(
                    "{ours} is {a}, but {theirs} is {b}: unset the one that is wrong"
                )));
            }
        }
        let ours = self.pair("PHALANX_RANK", "PHALANX_WORLD_SIZE")?.map(|pair| (Source::Phalanx, pair));
        let (source, (rank, world_size)) = match ours {
            Some(ours) => ours,
            None => match self.pair("RANK", "WORLD_SIZE")? {
                Some(pair) => (Source::Torchrun, pair),
                None => return Ok(None),
            },
        };
        if world_size == 0 {
            return Err(Error::config(format!(
                "the world size is 0 (from {source}): a job has at least one rank"
            )));
        }
        if rank >= world_size {
            return Err(Error::config(format!(
                "rank {rank} of a world of {world_size} (from {source}): ranks count from 0"
            )));
        }
        Ok(Some((source, rank, world_size)))
    }

    /// Local rank and local world size: ours, else torchrun's, else those of another launcher.
    fn local(&self, world_size: usize, launched: Option<(usize, usize)>) -> Result<(usize, usize)> {
        let ours = self.pair("PHALANX_LOCAL_RANK", "PHALANX_LOCAL_WORLD_SIZE")?;
        let pair = match ours {
            Some(pair) => Some(pair),
            None => self.pair("LOCAL_RANK", "LOCAL_WORLD_SIZE")?,
        };
        let (rank, size) = pair.or(launched).unwrap_or((0, 1));
        if rank >= size || size > world_size {
            return Err(Error::config(format!(
                "local rank {rank} of {size} on this host, in a world of {world_size}: that cannot be"
            )));
        }
        Ok((rank, size))
    }

    /// Whether variables say where the ranks meet.
    fn has_store(&self) -> bool {
        ["PHALANX_STORE", "MASTER_ADDR", "MASTER_PORT"].iter().any(|name| self.text(name).is_some())
    }

    fn store(&self, source: Source) -> Result<StoreLocation> {
        let (ours, host, port) =
            (self.text("PHALANX_STORE"), self.text("MASTER_ADDR"), self.text("MASTER_PORT"));
        if source == Source::Alone {
            return match (ours, host, port) {
                (None, None, None) => Ok(StoreLocation::None),
                (Some(_), ..) => Err(Error::config(
                    "PHALANX_STORE is set, but neither PHALANX_RANK and PHALANX_WORLD_SIZE nor RANK and WORLD_SIZE are",
                )),
                _ => Err(Error::config("MASTER_ADDR or MASTER_PORT is set, but RANK and WORLD_SIZE are not")),
            };
        }
        match (ours, host, port) {
            (Some(url), ..) => url.parse(),
            (None, Some(host), Some(port)) => {
                let port = port.parse::<u16>().ok().filter(|port| *port > 0);
                let port = port.ok_or_else(|| Error::config("MASTER_PORT is not a port (1 to 65535)"))?;
                let agent = self.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|flag| flag == "True");
                let port = match (agent, port) {
                    (false, port) => port,
                    (true, u16::MAX) => u16::MAX - 1,
                    (true, port) => port + 1,
                };
                let host = host.trim_matches(['[', ']']).to_owned();
                Ok(StoreLocation::Tcp { host, port, host_it: true })
            }
            (None, host, port) => {
                let missing: Vec<&str> = [("MASTER_ADDR", host), ("MASTER_PORT", port)]
                    .into_iter()
                    .filter_map(|(name, value)| value.is_none().then_some(name))
                    .collect();
                Err(Error::config(format!(
                    "a place for the ranks to meet is missing: set {} (or PHALANX_STORE)",
                    missing.join(" and ")
                )))
            }
        }
    }

    fn trace_len(&self) -> Result<usize> {
        let name = "PHALANX_TRACE_BUFFER";
        match self.number(name)?.unwrap_or(TRACE_LEN) {
            len if TRACE_LENS.contains(&len) => Ok(len),
            len => {
                let (least, most) = (TRACE_LENS.start(), TRACE_LENS.end());
                Err(Error::config(format!("{name} is {len}: {least} to {most} operations can be remembered")))
            }
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.text(name).as_deref() {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(text) => Err(Error::config(format!("{name} is {text:?}, neither 0 nor 1"))),
        }
    }

    /// A variable whose type says what makes no sense.
    fn parsed<T: FromStr<Err = Error>>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|error| match error {
            Error::Config { what } => Error::config(format!("{name}: {what}")),
            other => other,
        })
    }

    fn secret(&self) -> Result<Option<Secret>> {
        match (self.text("PHALANX_SECRET"), self.text("PHALANX_SECRET_FILE")) {
            (None, None) => Ok(None),
            (Some(hex), None) => Ok(Some(Secret::from_hex(&hex)?)),
            (None, Some(path)) => Ok(Some(Secret::from_hex(&secret_file::read(&path)?)?)),
            (Some(_), Some(_)) => {
                let what = "PHALANX_SECRET and PHALANX_SECRET_FILE are both set: unset one of them";
                Err(Error::config(what))
            }
        }
    }

    fn protection(&self) -> Result<Protection> {
        match self.text("PHALANX_ENCRYPT").as_deref() {
            None | Some("0") => Ok(Protection::Clear),
            Some("1") => Ok(Protection::Encrypted),
            Some("require") => Ok(Protection::Required),
            Some(text) => {
                Err(Error::config(format!("PHALANX_ENCRYPT is {text:?}, neither 0 nor 1 nor require")))
            }
        }
    }
}
