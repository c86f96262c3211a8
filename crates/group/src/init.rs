//! How a process becomes a rank.

use crate::ProcessGroup;
use crate::control::Control;
use crate::control::line::{ArbiterService, TcpLine};
use crate::control::notice::{Local, Member, Notice};
use crate::control::watch::Watch;
use crate::generation::processes::Processes;
use crate::generation::threads::Threads;
use crate::generation::{self, Home, Seat, roster};
use crate::launcher::{self, Launcher};
use crate::meeting::{ASK_INTERVAL, Meeting, Step};
use crate::prices::{self, Prices, cores};
use crate::realm::{Place, Realm, TcpRealm};
use crate::trace::writer::Recorder;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, Peer, Result};
use phalanx_rendezvous::{BackendChoice, Config, Lifeline, OpenStore, Store};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::{HostKey, Secret, Service};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where the address of the arbiter stands in the store.
const ARBITER_KEY: &str = "arbiter";
/// Where rank 0 leaves what moving bytes costs, before the address: all must choose algorithms by the same prices.
const PRICES_KEY: &str = "prices";
/// How long the arbiter is tried before a rank asks whether its process is still there.
const CONNECT_INTERVAL: Duration = Duration::from_secs(2);
/// How long rank 0 stays, when not all have come in time, to tell the others so. It takes as long as its own threads take to do it.
const LAST_WORD_TIME: Duration = Duration::from_secs(2);

/// Joins the job that the environment describes: phalanx's own variables (set by `phalanx run`), else torchrun's,
/// else a group of one. See [`Config`] for their names.
///
/// Collective among the processes of the job: returns when all of them have called it, in whatever order they start.
///
/// Before it returns, the ranks add up numbers whose sum is known. That is operation #1 of the group. `PHALANX_SELF_TEST=0`
/// leaves it out.
///
/// # Errors
/// [`WrongSum`](Error::WrongSum): they did not add up right here; on other ranks this call, or the next, says that the group was aborted.
/// [`Config`](Error::Config): variables are missing or make no sense. [`Rendezvous`](Error::Rendezvous): the others did not come
/// within the one deadline of init; says who is missing. (A process that replaces a lost one waits for the survivors, which may take as long as an
/// operation, too.) [`Io`](Error::Io): the advertised address is not ours.
/// [`Unavailable`](Error::Unavailable): the launcher that started this process is gone; the process is killed 5 s later if it still runs.
///
/// # The launcher's end
/// From here on a process that `phalanx run` has started ends with its launcher: when that is killed, or ends first for whatever reason, this process
/// and all of its process group are killed at once, also behind `sh -c` and the like. What never calls `init` is reached only as a direct child of the launcher.
#[track_caller]
pub fn init() -> Result<ProcessGroup> {
    join(&Config::from_env()?)
}

/// As [`init`], with the configuration as an argument.
///
/// # Errors
/// As for [`init`].
#[track_caller]
pub fn join(config: &Config) -> Result<ProcessGroup> {
    // Also if nobody else is in the job: no rank outlives its launcher.
    let lifeline = Lifeline::open(config, &Deadline::after(Instant::now(), config.init_timeout))?;
    let joined = join_others(config);
    if let (Some(lifeline), Err(error)) = (lifeline, &joined) {
        launcher::gave_up(&lifeline, config, error);
    }
    joined
}

#[track_caller]
fn join_others(config: &Config) -> Result<ProcessGroup> {
    let selector = Selector::forced_from(config.algorithms.as_deref().unwrap_or_default())?;
    let job = config.secret.as_ref().filter(|_| config.world_size > 1 || config.elastic.is_some());
    let Some(secret) = job else { return alone(config.timeout, selector) };
    let processes = Arc::new(Processes::new(config.clone(), secret.clone(), selector));
    let home: Arc<dyn Home> = processes.clone();
    if let Some(elastic) = config.elastic {
        return generation::enter(&home, config.worker, elastic);
    }
    let deadline = Deadline::after(Instant::now(), config.init_timeout);
    let open = Arc::new(config.open_store(&deadline)?);
    if open.server.is_some() {
        processes.keep(open.clone());
    }
    let roster = (0..config.world_size as u64).collect();
    generation::found(&home, Seat::new(0, config.rank, roster), &open, &deadline)
}

/// Comes together with the other processes of a generation.
pub(crate) fn meet_all(
    config: &Config,
    secret: &Secret,
    seat: &Seat,
    open: &OpenStore,
    deadline: &Deadline,
) -> Result<TcpRealm> {
    let (rank, world_size) = (seat.rank, seat.roster.len());
    // The store outlives generations; lines and links don't.
    let secret = &secret.of_generation(seat.generation);
    let store = roster::corner(&open.store, seat.generation);
    let ip = advertised(config, open.local_ip)?;
    let service = (rank == 0).then(|| {
        Box::new(ArbiterService::new(world_size, config.heartbeat_timeout, Instant::now()))
            as Box<dyn Service>
    });
    let exchange = Exchange::start(SocketAddr::new(ip, 0), secret.clone(), rank, world_size, service)?;
    if rank == 0 {
        let local_world_size = config.local_world_size.min(world_size);
        let link = Prices::of_this_machine().link(world_size, local_world_size, cores());
        store.set(PRICES_KEY, &prices::encode(&link))?;
        store.set(ARBITER_KEY, exchange.addr().to_string().as_bytes())?;
    }
    let arbiter = loop {
        match store.get(ARBITER_KEY, &step(ASK_INTERVAL, deadline)) {
            Ok(arbiter) => break String::from_utf8_lossy(&arbiter).into_owned(),
            Err(Error::Rendezvous { .. }) if !deadline.has_passed(Instant::now()) => {
                seat.check(open, deadline)?;
            }
            Err(Error::Rendezvous { .. }) => {
                let what = "rank 0 has not come, or did not reach the store".into();
                let waited = deadline.elapsed(Instant::now());
                return Err(Error::Rendezvous { rank, world_size, what, waited });
            }
            Err(other) => return Err(other),
        }
    };
    let link = prices::decode(&store.get(PRICES_KEY, deadline)?)?;
    let host = format!("{}:{}", host_name(), std::process::id());
    let recorder = Recorder::new(Peer { rank, host: host.clone() }, world_size, config.timeout);
    let (len, folder, launcher) =
        (config.trace_len, trace_folder(config, seat), Launcher::of(config, seat, deadline)?);
    let watch = Watch::new(Recorder { len, folder, launcher, ..recorder });
    let heartbeat = config.heartbeat_timeout;
    let line = loop {
        let step = step(CONNECT_INTERVAL, deadline);
        match TcpLine::connect(&arbiter, secret, rank, world_size, watch.clone(), heartbeat, &step) {
            Ok(line) => break line,
            // A refusal comes before the time is over, and is the last word.
            Err(Error::Rendezvous { .. })
                if step.has_passed(Instant::now()) && !deadline.has_passed(Instant::now()) =>
            {
                seat.check(open, deadline)?;
            }
            Err(error) => return Err(error),
        }
    };
    let local = local(config, &exchange);
    line.send(Notice::Join { host: host.clone(), addr: exchange.addr(), local, terms: terms(config) })?;
    let members =
        meet(&line, &watch, Peer { rank, host }, world_size, deadline, || seat.check(open, deadline))?;
    check_reachable(ip, &members)?;
    let place = Place {
        rank,
        world_size,
        local_rank: config.local_rank,
        local_world_size: config.local_world_size,
        timeout: config.timeout,
    };
    let realm = TcpRealm {
        link,
        place,
        heartbeat: config.heartbeat_timeout,
        checksum: config.checksum,
        members,
        watch,
        line,
        exchange,
        left: Mutex::new(false),
        #[cfg(target_os = "linux")]
        shares: Mutex::default(),
    };
    let host = realm.host_of(rank);
    let neighbours = (0..world_size).filter(|&r| host.is_some() && realm.host_of(r) == host).count();
    realm.watch.recorder.launcher.iter().for_each(Launcher::formed);
    tracing::info!(rank, world_size, backend = %config.backend, host, neighbours, "all ranks are here");
    Ok(realm)
}

/// What must be the same on all ranks.
fn terms(config: &Config) -> String {
    let switch = |on| if on { "on" } else { "off" };
    format!(
        "backend {}, algorithms '{}', a heartbeat timeout of {} s, self-test {} and checksums {}",
        config.backend,
        config.algorithms.as_deref().unwrap_or("as recommended"),
        config.heartbeat_timeout.map_or(0.0, |timeout| timeout.as_secs_f64()),
        switch(config.self_test),
        switch(config.checksum),
    )
}

/// Where this rank writes its traces: those of a later generation, whose ranks are others, lie in a folder of their own.
fn trace_folder(config: &Config, seat: &Seat) -> Option<PathBuf> {
    let dir = config.trace_dir.as_ref()?;
    // The program may go to another folder meanwhile.
    let folder = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
    Some(match seat.generation {
        0 => folder,
        generation => folder.join(format!("generation_{generation}")),
    })
}

/// A part of the time there is.
fn step(limit: Duration, deadline: &Deadline) -> Deadline {
    let now = Instant::now();
    Deadline::after(now, limit.min(deadline.remaining(now)))
}

/// Whoever gave out a loopback address can't be reached from other hosts, and who gave out another may be on one.
fn check_reachable(ip: IpAddr, members: &[Member]) -> Result<()> {
    match members.iter().find(|member| member.addr.ip().is_loopback() && !ip.is_loopback()) {
        None => Ok(()),
        Some(Member { peer, addr, .. }) => Err(Error::config(format!(
            "{peer} can be reached at {addr} only from its own host; set PHALANX_HOST there"
        ))),
    }
}

/// Waits for all ranks, and says meanwhile who is missing.
fn meet(
    line: &TcpLine,
    watch: &Watch,
    me: Peer,
    world_size: usize,
    deadline: &Deadline,
    check: impl Fn() -> Result<()>,
) -> Result<Vec<Member>> {
    let meeting = Meeting { me, world_size, deadline: *deadline };
    loop {
        let now = Instant::now();
        let incomplete = match watch.wait_complete(&Deadline::after(now, meeting.pause(now))) {
            Ok(members) => return Ok(members),
            Err(incomplete) => incomplete,
        };
        match meeting.step(incomplete, Instant::now()) {
            Step::Ask(notice) => {
                check()?;
                line.send(notice)?;
            }
            Step::End(notice, error) => {
                // If nobody hears it, they have deadlines of their own.
                let told = notice.is_some_and(|notice| line.send(notice).is_ok());
                if told && meeting.me.rank == 0 {
                    // The arbiter goes with this process, and would be taken for lost: its word has reached the others when it is heard here.
                    let _ = watch.wait_complete(&Deadline::after(Instant::now(), LAST_WORD_TIME));
                }
                return Err(error);
            }
        }
    }
}

/// The address at which the others reach this rank: what the configuration says, else the one that routes to the store.
fn advertised(config: &Config, routed: Option<IpAddr>) -> Result<IpAddr> {
    let Some(host) = &config.advertise else {
        return Ok(routed.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    };
    let mut addrs = (host.as_str(), 0)
        .to_socket_addrs()
        .map_err(|e| Error::io(format!("resolving PHALANX_HOST={host}"), e))?;
    let first = addrs.next().ok_or_else(|| Error::config(format!("PHALANX_HOST={host} has no address")))?;
    Ok(first.ip())
}

/// Where ranks of this host can pass memory to this one, if they may.
fn local(config: &Config, exchange: &Exchange) -> Option<Local> {
    if config.backend == BackendChoice::Tcp {
        return None;
    }
    let host = HostKey::of_this_process(config.host_id.as_deref())?;
    Some(Local { host, name: exchange.local_name()?.to_owned(), longest: longest_memory() })
}

/// Bytes of the longest memory that this process can make for the ranks of its host.
#[cfg(target_os = "linux")]
fn longest_memory() -> u64 {
    phalanx_shm::longest().unwrap_or_else(|error| {
        tracing::warn!(%error, "this process can make no shared memory: where it would, ranks of this host go over TCP");
        0
    })
}

#[cfg(not(target_os = "linux"))]
fn longest_memory() -> u64 {
    0
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "a host".into())
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The group of a process that is a job of its own.
fn alone(timeout: Duration, selector: Selector) -> Result<ProcessGroup> {
    Ok(threads(1, timeout, selector)?.pop().expect("one group was created"))
}

/// The first generation of ranks that are threads.
fn threads(world_size: usize, timeout: Duration, selector: Selector) -> Result<Vec<ProcessGroup>> {
    let home: Arc<dyn Home> = Arc::new(Threads::new(timeout, Arc::new(selector)));
    let deadline = Deadline::after(Instant::now(), timeout);
    let open = home.open(&BTreeSet::new(), &deadline)?;
    let roster: Vec<u64> = (0..world_size as u64).collect();
    let seat = |rank| Seat::new(0, rank, roster.clone());
    (0..world_size).map(|rank| generation::found(&home, seat(rank), &open, &deadline)).collect()
}

/// Groups whose ranks are threads of this process: for tests, examples, and for code that need not leave the process.
#[derive(Debug)]
pub struct SimulatedBackend;

impl SimulatedBackend {
    /// A group of `world_size` ranks: give each thread one of them. Operations may take 10 minutes.
    ///
    /// # Panics
    /// If `world_size` is 0.
    pub fn create_group(world_size: usize) -> Vec<ProcessGroup> {
        Self::create_group_with(world_size, Duration::from_secs(600), "").expect("no algorithm is forced")
    }

    /// As [`create_group`](Self::create_group), with the time limit of operations, and algorithms to use instead of the recommended
    /// ones (`all_reduce=ring,broadcast=binomial`).
    ///
    /// # Errors
    /// [`Config`](Error::Config) for an algorithm that does not exist.
    ///
    /// # Panics
    /// If `world_size` is 0.
    pub fn create_group_with(
        world_size: usize,
        timeout: Duration,
        algorithms: &str,
    ) -> Result<Vec<ProcessGroup>> {
        assert!(world_size > 0, "a group has at least one rank");
        threads(world_size, timeout, Selector::forced_from(algorithms)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_address_among_others_is_refused() {
        let addr = |text: &str| SocketAddr::new(text.parse().unwrap(), 1);
        let members = |addrs: [&str; 2]| {
            let member = |(rank, text)| Member {
                peer: Peer { rank, host: "h".into() },
                addr: addr(text),
                local: None,
            };
            addrs.into_iter().enumerate().map(member).collect::<Vec<_>>()
        };
        let (here, there) = ("127.0.0.1", "192.0.2.7");
        let check = |ip: &str, addrs| check_reachable(ip.parse().unwrap(), &members(addrs));
        assert!(check(here, [here, here]).is_ok() && check(there, [there, there]).is_ok());
        let error = check(there, [there, here]).unwrap_err().to_string();
        assert!(error.contains("rank 1") && error.contains("set PHALANX_HOST there"), "{error}");
    }
}
