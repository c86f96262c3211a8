//! How the processes of a generation come together: rank 0 tells in the store where the arbiter is, and all join it.

use crate::bootstrap::address::Address;
use crate::bootstrap::arbiter_service::ArbiterService;
use crate::bootstrap::build::Build;
use crate::bootstrap::init_notices::InitNotices;
use crate::bootstrap::launcher::Launcher;
use crate::bootstrap::own_settings::own_settings;
use crate::bootstrap::prices::{self, Prices, cores};
use crate::bootstrap::regroup::Assignment;
use crate::bootstrap::rendezvous::{ASK_INTERVAL, Rendezvous, Step};
use crate::bootstrap::tcp_control::{Doubt, TcpControl};
use crate::bootstrap::tcp_job::TcpJob;
use crate::control::Control;
use crate::control::address_book::AddressBook;
use crate::control::job_context::{JobContext, Place};
use crate::control::launcher_link::LauncherLink;
use crate::control::membership::Membership;
use crate::control::notice::{Local, Notice};
use crate::host::backend_registry::{BackendKind, chosen_kind};
use crate::host::job_links::{LinksStart, address_key};
use crate::runtime::OsRuntime;
use crate::trace::writer::Recorder;
use phalanx_core::{Deadline, Error, Peer, Result, WORLD};
use phalanx_rendezvous::{Config, OpenStore, Store, StoreLocation, TcpStoreServer};
use phalanx_trace::Recorded;
use phalanx_transport::handshake::{Hello, Purpose, Status, VERSION};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::{HostKey, NoSession, Secret, Service, Session, try_to_open_session};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The key of the arbiter's address in the store.
const ARBITER_KEY: &str = "arbiter";
/// The key under which rank 0 leaves its prices, before the address: all must choose algorithms by the same prices.
const PRICES_KEY: &str = "prices";
/// How many ranks have read where the links of all are.
const READERS_KEY: &str = "links/readers";
/// Set when all have.
const ALL_HAVE_READ_KEY: &str = "links/read";
/// How long the arbiter is tried before a rank asks whether there is a point in it.
const CONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// How long it is tried once it is known that rank 0 is there.
const UNREACHABLE_TIME: Duration = Duration::from_secs(5);
/// How long rank 0 stays, when not all have come in time, to tell the others so. It takes as long as its own threads take to do it.
const LAST_WORD_TIME: Duration = Duration::from_secs(2);

/// Comes together with the other processes of a generation of which there is one only, however often the job is started.
pub(crate) fn meet_all(
    config: &Config,
    secret: &Secret,
    assignment: &Assignment,
    open: &OpenStore,
    deadline: &Deadline,
) -> Result<TcpJob> {
    assemble(config, secret, assignment, open, &InitNotices::new(assignment, open, deadline), deadline)
}

/// Comes together with the other processes of a generation.
///
/// # Errors
/// They do not all come, and why as far as is known. The others hear of it over the line to the arbiter; not yet by the store.
pub(crate) fn assemble(
    config: &Config,
    secret: &Secret,
    assignment: &Assignment,
    open: &OpenStore,
    init_notices: &InitNotices<'_>,
    deadline: &Deadline,
) -> Result<TcpJob> {
    let (rank, world_size) = (assignment.rank, assignment.roster.len());
    // The store outlives generations; lines and links don't.
    let secret = &secret.of_generation(assignment.generation);
    let store = init_notices.corner();
    let address = Address::of(config, open.local_ip)?;
    let heartbeat = config.heartbeat_timeout;
    let kind = chosen_kind(config)?;
    let launcher = Launcher::of(config, assignment, deadline)?.map(Arc::new);
    let link_to_launcher = launcher.clone().map(|launcher| launcher as Arc<dyn LauncherLink>);
    let service = (rank == 0).then(|| {
        let service = ArbiterService::new(world_size, heartbeat, link_to_launcher.clone(), Instant::now());
        Box::new(service.asking(heartbeat)) as Box<dyn Service>
    });
    let binds = address.binds(config);
    let exchange = Exchange::start_on_first_free(&binds, secret.clone(), rank, world_size, service)
        .map_err(|error| address.refused(config, error))?;
    let told = address.told(exchange.addr());
    // All ranks are there and listen when links are made. Silence on the line to the arbiter is noticed before silence on a link.
    let link_timeout = heartbeat.map_or(config.timeout, |limit| config.timeout.min(limit * 3 / 2));
    let at = LinksStart { rank, world_size, secret, link_timeout, silence: heartbeat, exchange: &exchange };
    let links = kind.links(&at)?;
    let link_address = links.address();
    if let Some(address) = &link_address {
        store.set(&address_key(rank), address)?;
    }
    if rank == 0 {
        let local_world_size = config.local_world_size.min(world_size);
        let link = Prices::of_this_machine().link(world_size, local_world_size, cores());
        store.set(PRICES_KEY, &prices::encode(&link))?;
        store.set(ARBITER_KEY, told.to_string().as_bytes())?;
    }
    let arbiter = await_rank_0(init_notices, deadline)?;
    let arbiter = if rank == 0 { Address::own(exchange.addr()).to_string() } else { arbiter };
    let link = prices::decode(&store.get(PRICES_KEY, deadline)?)?;
    let peer = Peer { rank, host: process_name() };
    let recorder = Recorder::new(peer.clone(), trace_folder(config, assignment));
    let runtime = OsRuntime::of_process(recorder, link_to_launcher);
    let recorded = Recorded { me: peer.clone(), world_size, timeout: config.timeout };
    let membership = Membership::new(recorded, config.trace_len, Arc::new(runtime));
    let hello = Hello {
        purpose: Purpose::Control,
        rank: rank as u32,
        called: 0,
        world_size: world_size as u32,
        group: WORLD,
    };
    let session = reach_arbiter(&arbiter, secret, &hello, init_notices, deadline)?;
    let doubt = |limit| Doubt::new(arbiter.clone(), secret.clone(), hello, membership.clone(), limit);
    let line = TcpControl::new(session, membership.clone(), heartbeat, heartbeat.map(doubt))?;
    let rendezvous = Rendezvous { me: peer.clone(), world_size, deadline: *deadline };
    let attendance = Attendance { line: &line, membership: &membership, rendezvous, init_notices };
    let join = Notice::Join {
        host: peer.host,
        addr: told,
        local: local(&*kind, config, &exchange),
        settings: own_settings(config, Build::here()),
    };
    // Of a line that is broken already the membership hears, and why.
    let _ = line.send(join);
    let met = attendance.complete();
    let met = met.and_then(|members| address.check_reachable(members.members()).map(|()| members));
    let members = met.map_err(|error| {
        attendance.give_up(&error);
        let is_late = rank == 0 && deadline.has_passed(Instant::now());
        if is_late { explained(error, config, open, &exchange, init_notices) } else { error }
    })?;
    let link_addresses = match &link_address {
        Some(_) => link_addresses(store, rank, world_size, deadline)
            .inspect_err(|error| attendance.give_up(error))?,
        None => vec![Vec::new(); world_size],
    };
    force_ways_of_sharing_memory(config);
    let place = Place {
        rank,
        world_size,
        local_rank: config.local_rank,
        local_world_size: config.local_world_size,
        timeout: config.timeout,
    };
    let job = TcpJob {
        link,
        place,
        secret: secret.clone(),
        checksum: config.checksum,
        members,
        membership,
        line,
        exchange,
        links,
        link_addresses,
        left: Mutex::new(false),
        #[cfg(target_os = "linux")]
        shares: Mutex::default(),
    };
    let host = job.host_of(rank);
    let neighbours = (0..world_size).filter(|&r| host.is_some() && job.host_of(r) == host).count();
    launcher.iter().for_each(|launcher| launcher.formed());
    tracing::info!(rank, world_size, backend = %config.backend, host, neighbours, "all ranks are here");
    Ok(job)
}

/// What the links of all ranks have published, as all did before they joined. Rank 0 ends last, for the store may go with it.
fn link_addresses(
    store: &impl Store,
    rank: usize,
    world_size: usize,
    deadline: &Deadline,
) -> Result<Vec<Vec<u8>>> {
    let keys: Vec<_> = (0..world_size).map(address_key).collect();
    let addresses = store.get_all(&keys.iter().map(String::as_str).collect::<Vec<_>>(), deadline)?;
    if store.add(READERS_KEY, 1)? == world_size as i64 {
        store.set(ALL_HAVE_READ_KEY, b"")?;
    }
    if rank == 0 {
        store.get(ALL_HAVE_READ_KEY, deadline)?;
    }
    Ok(addresses)
}

/// Waits until rank 0 has said where the arbiter is.
fn await_rank_0(init_notices: &InitNotices<'_>, deadline: &Deadline) -> Result<String> {
    loop {
        match init_notices.corner().get(ARBITER_KEY, &step(ASK_INTERVAL, deadline)) {
            Ok(arbiter) => return Ok(String::from_utf8_lossy(&arbiter).into_owned()),
            Err(Error::Rendezvous { .. }) if !deadline.has_passed(Instant::now()) => init_notices.check()?,
            Err(Error::Rendezvous { .. }) => return Err(absent(init_notices)),
            Err(other) => return Err(other),
        }
    }
}

/// Rank 0 was waited for in vain.
pub(crate) fn absent(init_notices: &InitNotices<'_>) -> Error {
    init_notices.error(format!("rank 0 has not come, or did not reach the store{}", init_notices.earlier()))
}

/// Opens the line to the arbiter. The address in the store may be that of a rank 0 which has ended and whose successor is still to
/// come; or it can't be reached from here although rank 0 is there, as it then says through the store.
fn reach_arbiter(
    arbiter: &str,
    secret: &Secret,
    hello: &Hello,
    init_notices: &InitNotices<'_>,
    deadline: &Deadline,
) -> Result<Session> {
    let (mut question, mut answered) = (None, None);
    loop {
        let step = step(CONNECT_INTERVAL, deadline);
        let NoSession { what, refusal, is_final, own, .. } =
            match try_to_open_session(arbiter, secret, hello, &step) {
                Ok(session) => return Ok(session),
                Err(why) => why,
            };
        if let Some(error) = own {
            return Err(error);
        }
        let now = Instant::now();
        match refusal {
            Some(Status::OtherSize(size)) => {
                let ours = hello.world_size;
                return Err(Error::config(format!(
                    "this rank has WORLD_SIZE {ours}, the job {size} (says rank 0 at {arbiter})"
                )));
            }
            Some(status) => {
                if status == Status::Taken {
                    // The rank is there, and the job goes on.
                    init_notices.keep_to_itself();
                }
                return Err(init_notices.error(format!("rank 0 at {arbiter} refuses this process: {status}")));
            }
            None if is_final => {
                return Err(init_notices.error(format!("rank 0 does not answer as it should at {what}")));
            }
            None => {}
        }
        if answered.is_some_and(|at| now.saturating_duration_since(at) >= UNREACHABLE_TIME) {
            return Err(init_notices.error(format!(
                "rank 0 is there, for it answers through the store, but its own port can't be used from here: {what}; let the ranks reach each other \
                 (a firewall may let only the store's port through: see PHALANX_PORT), or correct PHALANX_HOST at rank 0; does it have the same \
                 PHALANX_SECRET?"
            )));
        }
        if deadline.has_passed(now) {
            return Err(init_notices.error(format!(
                "rank 0 does not answer at {what}; it has ended, or can't be reached from here{}",
                init_notices.earlier()
            )));
        }
        init_notices.check()?;
        if hello.rank > 0 && answered.is_none() {
            let asked = match question {
                None => *question.insert(init_notices.ask()?),
                Some(asked) => asked,
            };
            answered = init_notices.is_answered(asked)?.then_some(now);
        }
    }
}

/// A rank that has joined, until all have.
struct Attendance<'a> {
    line: &'a TcpControl,
    membership: &'a Membership,
    rendezvous: Rendezvous,
    init_notices: &'a InitNotices<'a>,
}

impl Attendance<'_> {
    /// Waits for all ranks, and says meanwhile who is missing.
    fn complete(&self) -> Result<Arc<AddressBook>> {
        let rendezvous = &self.rendezvous;
        let wait = |limit| self.membership.wait_complete(&Deadline::after(Instant::now(), limit));
        loop {
            let incomplete = match wait(rendezvous.pause(Instant::now())) {
                Ok(members) => return Ok(members),
                Err(incomplete) => incomplete,
            };
            match rendezvous.step(incomplete, Instant::now()) {
                Step::Ask(notice) => {
                    if let Err(error) = self.init_notices.check() {
                        // The store may go because all have come, or with rank 0, of which the arbiter's line says more.
                        let limit = if let Error::Io { .. } = error { ASK_INTERVAL } else { Duration::ZERO };
                        match wait(limit) {
                            Ok(members) => return Ok(members),
                            Err(incomplete) if incomplete.hopeless.is_some() => continue,
                            Err(_) => return Err(error),
                        }
                    }
                    let _ = self.line.send(notice);
                }
                Step::End(notice, error) => {
                    // If nobody hears it, they have deadlines of their own.
                    let told = notice.is_some_and(|notice| self.line.send(notice).is_ok());
                    if told && rendezvous.me.rank == 0 {
                        // The arbiter goes with this process, and would be taken for lost: its word has reached the others when it is heard here.
                        let _ = wait(LAST_WORD_TIME);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Tells those who have joined why this rank goes. If they know a reason already, that one stays.
    fn give_up(&self, error: &Error) {
        let notice = self.rendezvous.give_up(error);
        if self.line.send(notice).is_ok() && self.rendezvous.me.rank == 0 {
            let _ = self.membership.wait_complete(&Deadline::after(Instant::now(), LAST_WORD_TIME));
        }
    }
}

/// Adds to an error what only rank 0 knows: who could not come in, and where nobody looks.
fn explained(
    error: Error,
    config: &Config,
    open: &OpenStore,
    exchange: &Exchange,
    init_notices: &InitNotices<'_>,
) -> Error {
    let Error::Rendezvous { mut what, rank, world_size, waited } = error else { return error };
    let servers = open.server.as_deref().into_iter().map(TcpStoreServer::strangers);
    let strangers: Vec<_> = servers.chain([exchange.strangers()]).collect();
    if let Some((version, from)) = strangers.iter().find_map(|strangers| strangers.other_version) {
        what += &format!(
            "; a process of another build called from {from}: it speaks wire version {version}, this build speaks {VERSION}"
        );
    }
    for strangers in strangers.iter().filter(|strangers| strangers.refused > 0) {
        let from = strangers.last.map_or_else(String::new, |last| format!(", the last from {last}"));
        what += &format!(
            "; {} calls came from processes that don't know this job's secret{from}: is PHALANX_SECRET the same for all ranks?",
            strangers.refused
        );
    }
    let store = open.server.as_deref().map(TcpStoreServer::addr);
    // A name may mean something else on its own host than elsewhere.
    let is_name = matches!(&config.store, StoreLocation::Tcp { host, .. } if host.parse::<IpAddr>().is_err() && host != "localhost");
    if let Some(addr) =
        store.filter(|addr| addr.ip().is_loopback() && is_name && config.local_world_size < world_size)
    {
        what += &format!(
            "; the store listens on {addr}, which other hosts can't reach: is that what MASTER_ADDR is to mean?"
        );
    }
    what += &init_notices.earlier();
    Error::Rendezvous { rank, world_size, what, waited }
}

/// The folder into which this rank writes its traces: a later generation, whose ranks are others, has a folder of its own.
fn trace_folder(config: &Config, assignment: &Assignment) -> Option<PathBuf> {
    let dir = config.trace_dir.as_ref()?;
    // The program may go to another folder meanwhile.
    let folder = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
    Some(match assignment.generation {
        0 => folder,
        generation => folder.join(format!("generation_{generation}")),
    })
}

/// A part of the time there is.
pub(crate) fn step(limit: Duration, deadline: &Deadline) -> Deadline {
    let now = Instant::now();
    Deadline::after(now, limit.min(deadline.remaining(now)))
}

/// The address at which ranks of this host can pass memory to this one, if they may.
fn local(kind: &dyn BackendKind, config: &Config, exchange: &Exchange) -> Option<Local> {
    if !kind.shares_memory() {
        return None;
    }
    let host = HostKey::of_this_process(config.host_id.as_deref())?.to_string();
    Some(Local { host, name: exchange.told_name()?.to_owned(), longest: longest_memory() })
}

/// Ranks that share memory do so as the environment says, where it says it.
#[cfg(target_os = "linux")]
fn force_ways_of_sharing_memory(config: &Config) {
    config.staging.into_iter().for_each(phalanx_shm::force_staging);
    config.library_copy.into_iter().for_each(phalanx_shm::force_library_copy);
    config.kernel_copy.into_iter().for_each(phalanx_shm::force_kernel_copy);
}

/// No ranks share memory here.
#[cfg(not(target_os = "linux"))]
fn force_ways_of_sharing_memory(_config: &Config) {}

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

/// This process as errors name it.
pub(crate) fn process_name() -> String {
    let host = phalanx_rendezvous::host_name();
    format!("{}:{}", host.as_deref().unwrap_or("a host"), std::process::id())
}
