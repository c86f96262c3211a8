//! How a process becomes a rank.

use crate::ProcessGroup;
use crate::control::Control;
use crate::control::arbiter::{Local, Member, Notice};
use crate::control::line::{ArbiterService, TcpLine};
use crate::control::watch::{Incomplete, Watch};
use crate::prices::{self, Prices, cores};
use crate::realm::{Place, Realm, TcpRealm, ThreadRealm};
use crate::recommended;
use crate::self_test;
use crate::trace::writer::Recorder;
use phalanx_algo::Selector;
use phalanx_core::{Cause, Deadline, Error, OpKind, Peer, Result, WORLD};
use phalanx_rendezvous::{BackendChoice, Config};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::{HostKey, Secret, Service};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where the address of the arbiter stands in the store.
const ARBITER_KEY: &str = "arbiter";
/// Where rank 0 leaves what moving bytes costs, before the address: all must choose algorithms by the same prices.
const PRICES_KEY: &str = "prices";
/// How often a waiting rank asks who is missing.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

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
/// within the one deadline of init; says who is missing. [`Io`](Error::Io): the advertised address is not ours.
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
    let selector = Selector::forced_from(config.algorithms.as_deref().unwrap_or_default())?;
    let deadline = Deadline::after(Instant::now(), config.init_timeout);
    match config.secret.as_ref().filter(|_| config.world_size > 1) {
        Some(secret) => {
            let realm = meet_all(config, secret, &deadline)?;
            let selector = Selector { link: realm.link, ..selector };
            let realm = Arc::new(realm);
            #[cfg(unix)]
            if config.trace_on_signal {
                crate::trace::signal::listen(&realm)?;
            }
            let group = world(realm, config.backend, Arc::new(selector))?;
            if config.self_test {
                self_test::run(&group, &deadline)?;
            }
            Ok(group)
        }
        None => alone(config.timeout, Arc::new(selector)),
    }
}

/// Comes together with the other processes of the job.
pub(crate) fn meet_all(config: &Config, secret: &Secret, deadline: &Deadline) -> Result<TcpRealm> {
    let (rank, world_size) = (config.rank, config.world_size);
    let open = config.open_store(deadline)?;
    let ip = advertised(config, open.local_ip)?;
    let service = (rank == 0)
        .then(|| Box::new(ArbiterService::new(world_size, config.heartbeat_timeout)) as Box<dyn Service>);
    let exchange = Exchange::start(SocketAddr::new(ip, 0), secret.clone(), rank, world_size, service)?;
    if rank == 0 {
        let link = Prices::of_this_machine().link(world_size, config.local_world_size, cores());
        open.store.set(PRICES_KEY, &prices::encode(&link))?;
        open.store.set(ARBITER_KEY, exchange.addr().to_string().as_bytes())?;
    }
    let arbiter = open.store.get(ARBITER_KEY, deadline).map_err(|error| match error {
        Error::Rendezvous { waited, .. } => {
            let what = "rank 0 has not come, or did not reach the store".into();
            Error::Rendezvous { rank, world_size, what, waited }
        }
        other => other,
    })?;
    let arbiter = String::from_utf8_lossy(&arbiter).into_owned();
    let link = prices::decode(&open.store.get(PRICES_KEY, deadline)?)?;
    let host = format!("{}:{}", host_name(), std::process::id());
    let recorder = Recorder::new(Peer { rank, host: host.clone() }, world_size, config.timeout);
    // The program may go to another folder meanwhile.
    let folder =
        config.trace_dir.as_ref().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
    let watch = Watch::new(Recorder { len: config.trace_len, folder, ..recorder });
    let heartbeat = config.heartbeat_timeout;
    let line = TcpLine::connect(&arbiter, secret, rank, world_size, watch.clone(), heartbeat, deadline)?;
    let local = local(config, &exchange);
    line.send(Notice::Join { host: host.clone(), addr: exchange.addr(), local, terms: terms(config) })?;
    let members = meet(&line, &watch, Peer { rank, host }, world_size, deadline)?;
    if let Some(member) = members.iter().find(|m| m.addr.ip().is_loopback() && !ip.is_loopback()) {
        let (who, addr) = (&member.peer, member.addr);
        let what = format!("{who} can be reached at {addr} only from its own host; set PHALANX_HOST there");
        return Err(Error::config(what));
    }
    let place = Place {
        rank,
        world_size,
        local_rank: config.local_rank,
        local_world_size: config.local_world_size,
        timeout: config.timeout,
    };
    let store = open.server.is_some().then_some(open);
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
        _store: store,
    };
    let host = realm.host_of(rank);
    let neighbours = (0..world_size).filter(|&r| host.is_some() && realm.host_of(r) == host).count();
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

/// Waits for all ranks, and says meanwhile who is missing.
fn meet(
    line: &TcpLine,
    watch: &Watch,
    me: Peer,
    world_size: usize,
    deadline: &Deadline,
) -> Result<Vec<Member>> {
    let rank = me.rank;
    loop {
        let left = deadline.remaining(Instant::now());
        let step = Deadline::after(Instant::now(), ASK_INTERVAL.min(left / 2).max(Duration::from_millis(10)));
        let Incomplete { missing, hopeless } = match watch.wait_complete(&step) {
            Ok(members) => return Ok(members),
            Err(incomplete) => incomplete,
        };
        let waited = deadline.elapsed(Instant::now());
        if let Some(cause) = hopeless {
            let what = match *cause {
                Cause::TimedOut { missing, .. } => {
                    missing_text(&missing.iter().map(|p| p.rank).collect::<Vec<_>>(), world_size)
                }
                cause => cause.to_string(),
            };
            return Err(Error::Rendezvous { rank, world_size, what, waited });
        }
        if left.is_zero() {
            // Said before this rank goes, so that the others don't take it for the one who failed.
            let absent = missing.iter().map(|&rank| Peer { rank, host: "never joined".into() });
            let missing_peers = absent.collect();
            let cause =
                Cause::TimedOut { reporter: me, op: OpKind::Init, seq: 0, waited, missing: missing_peers };
            let members = (0..world_size).collect();
            // If nobody hears it, they have deadlines of their own.
            let _ = line.send(Notice::Failed { group: WORLD, members, cause });
            let what = missing_text(&missing, world_size);
            return Err(Error::Rendezvous { rank, world_size, what, waited });
        }
        if !missing.is_empty() {
            let have = world_size - missing.len();
            tracing::info!(rank, ?missing, have, world_size, "waiting for ranks");
        }
        line.send(Notice::WhoIsMissing)?;
    }
}

fn missing_text(missing: &[usize], world_size: usize) -> String {
    format!("{} of {world_size} ranks came, missing: {missing:?}", world_size - missing.len())
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
    Some(Local { host, name: exchange.local_name()?.to_owned() })
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
fn alone(timeout: Duration, selector: Arc<Selector>) -> Result<ProcessGroup> {
    let realm = ThreadRealm::create(1, timeout).pop().expect("one realm was created");
    world(Arc::new(realm), BackendChoice::Auto, selector)
}

fn world(realm: Arc<dyn Realm>, choice: BackendChoice, selector: Arc<Selector>) -> Result<ProcessGroup> {
    let members = (0..realm.place().world_size).collect();
    let rank = realm.place().rank;
    let group =
        ProcessGroup::new(recommended::backend(realm, WORLD, members, OpKind::Init, choice, selector)?);
    tracing::info!(rank, backend = group.describe(), "the group of all ranks");
    Ok(group)
}

/// Groups whose ranks are threads of this process: for tests, examples, and for code that need not leave the process.
#[derive(Debug)]
pub struct SimulatedBackend;

impl SimulatedBackend {
    /// A group of `world_size` ranks: give each thread one of them. Operations may take 60 s.
    ///
    /// # Panics
    /// If `world_size` is 0.
    pub fn create_group(world_size: usize) -> Vec<ProcessGroup> {
        Self::create_group_with(world_size, Duration::from_secs(60), "").expect("no algorithm is forced")
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
        let selector = Arc::new(Selector::forced_from(algorithms)?);
        let realms = ThreadRealm::create(world_size, timeout);
        let group = |realm| world(Arc::new(realm), BackendChoice::Auto, selector.clone());
        realms.into_iter().map(group).collect()
    }
}
