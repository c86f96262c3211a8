//! Opening the store that the configuration names.

use crate::heard;
use crate::location::authority;
use crate::{Config, MemoryStore, PrefixStore, Store, StoreLocation, TcpStore, TcpStoreServer};
use phalanx_core::{Deadline, Error, Result};
use phalanx_transport::Secret;
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two attempts to resolve the name of rank 0's host, which may be too young to be known.
const RESOLVE_PAUSE: Duration = Duration::from_millis(250);

/// A job's store as one of its ranks has it.
///
/// On rank 0 it may hold what all others need: the server, or the directory. Rank 0 drops it last.
pub struct OpenStore {
    /// The store; only this job sees its keys.
    pub store: Arc<dyn Store>,
    /// The address of this host from which the store's server is reached: one at which ranks that reach that server too will
    /// most likely reach this one. `None` without a server.
    pub local_ip: Option<IpAddr>,
    /// The server, on the rank that runs it.
    pub server: Option<Arc<TcpStoreServer>>,
}

impl fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStore")
            .field("local_ip", &self.local_ip)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl OpenStore {
    /// All ranks are here, or the job does not come about. Removes what only those need who have yet to come: a file by which they meet.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use phalanx_rendezvous::Config;
    /// # use std::time::Instant;
    /// # let config = Config::from_lookup(|_| None)?;
    /// let open = config.open_store(&Deadline::after(Instant::now(), config.init_timeout))?;
    /// open.nobody_else_comes();
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn nobody_else_comes(&self) {
        if self.server.is_some() {
            heard::nobody_else_comes();
        }
    }
}

impl Config {
    /// Opens the store at [`store`](Self::store); runs its server first if that is this rank's part.
    ///
    /// # Errors
    /// [`Error::Rendezvous`]: nothing that knows the secret answered before the deadline. [`Error::Io`]: rank 0 cannot
    /// listen where the others will look, or the directory cannot be used. [`Error::Config`]: it is not private, or the secret
    /// is missing.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Deadline;
    /// use phalanx_rendezvous::Config;
    /// use std::time::Instant;
    ///
    /// let config = Config::from_lookup(|_| None)?; // alone
    /// let open = config.open_store(&Deadline::after(Instant::now(), config.init_timeout))?;
    /// assert_eq!(open.store.add("ranks here", 1)?, 1);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn open_store(&self, deadline: &Deadline) -> Result<OpenStore> {
        self.open(self.rank == 0, deadline)
    }

    /// Opens the store once more, as one of those who use it: runs nothing, and removes nothing at the end.
    ///
    /// # Errors
    /// As for [`open_store`](Self::open_store).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use phalanx_rendezvous::Config;
    /// # use std::time::Instant;
    /// # let config = Config::from_lookup(|_| None)?;
    /// let again = config.reopen_store(&Deadline::after(Instant::now(), config.init_timeout))?;
    /// assert!(again.server.is_none());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn reopen_store(&self, deadline: &Deadline) -> Result<OpenStore> {
        self.open(false, deadline)
    }

    /// `responsible`: for what all others need.
    fn open(&self, responsible: bool, deadline: &Deadline) -> Result<OpenStore> {
        let open = match &self.store {
            StoreLocation::None => {
                Ok(OpenStore { store: Arc::new(MemoryStore::new()), local_ip: None, server: None })
            }
            StoreLocation::File(dir) => self.open_file(dir, responsible),
            StoreLocation::Launcher(channel) => {
                let what = format!(
                    "the place of the store is known only once the ranks have met through {channel}: call `Config::met`"
                );
                Err(Error::config(what))
            }
            StoreLocation::Tcp { host, port, host_it } => {
                self.open_tcp(host, *port, *host_it && responsible, deadline)
            }
        };
        open.map_err(|error| match error {
            Error::Rendezvous { what, waited, .. } => {
                Error::Rendezvous { rank: self.rank, world_size: self.world_size, what, waited }
            }
            other => other,
        })
    }

    #[cfg(not(unix))]
    fn open_file(&self, _dir: &std::path::Path, _responsible: bool) -> Result<OpenStore> {
        let tried = "only Unix has the permissions and locks it relies on".into();
        Err(Error::Unavailable { what: "a store in a directory".into(), tried })
    }

    #[cfg(unix)]
    fn open_file(&self, dir: &std::path::Path, responsible: bool) -> Result<OpenStore> {
        let store = crate::FileStore::open(dir, &self.job_id)?;
        let store = if responsible { store.owned() } else { store };
        Ok(OpenStore { store: Arc::new(store), local_ip: None, server: None })
    }

    /// Says of a store that did not answer who was to run it.
    fn unanswered(&self, error: Error) -> Error {
        let who = match &self.store {
            StoreLocation::Tcp { host_it: true, .. } if self.rank != 0 => {
                "rank 0 runs it: is that started, on the host that MASTER_ADDR names, and can this host reach it?"
            }
            StoreLocation::Tcp { host_it: true, .. } => "this rank runs it",
            _ => "is that what PHALANX_STORE should name, and is its server still there?",
        };
        match error {
            Error::Rendezvous { what, rank, world_size, waited } => {
                let what = format!("no store answers at {what}; {who}");
                Error::Rendezvous { what, rank, world_size, waited }
            }
            other => other,
        }
    }

    fn open_tcp(&self, host: &str, port: u16, host_it: bool, deadline: &Deadline) -> Result<OpenStore> {
        let secret =
            self.secret.as_ref().ok_or_else(|| Error::config("a store over TCP needs the job's secret"))?;
        let server = match (host_it, heard::server_at(port)) {
            (true, Some(server)) => Some(server),
            (true, None) => {
                let own = self.bind.as_deref().or(self.advertise.as_deref());
                Some(Arc::new(serve(own.unwrap_or(host), port, secret, deadline)?))
            }
            (false, _) => None,
        };
        let addr = server
            .as_ref()
            .map_or_else(|| authority(host, port), |server| own_address(server.addr()).to_string());
        let client = TcpStore::connect(&addr, secret, deadline).map_err(|error| self.unanswered(error))?;
        let local_ip = match &server {
            // Of many addresses, the one that the others use.
            Some(server) if server.addr().ip().is_unspecified() => {
                resolve(host, port, deadline)?.first().map(SocketAddr::ip)
            }
            _ => Some(client.local_addr().ip()),
        };
        let store = Arc::new(PrefixStore::new(self.job_id.as_str(), client));
        Ok(OpenStore { store, local_ip, server })
    }
}

/// How this process reaches its own server.
fn own_address(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

/// Runs the server at the first address of `host` that is this host's.
pub(crate) fn serve(host: &str, port: u16, secret: &Secret, deadline: &Deadline) -> Result<TcpStoreServer> {
    for addr in resolve(host, port, deadline)? {
        match TcpStoreServer::start(addr, secret) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AddrNotAvailable => {}
            outcome => return outcome,
        }
    }
    let doing = format!(
        "rank 0 is to run the store at {}, which is no address of its host (start rank 0 there, set PHALANX_HOST to the \
         name or address of its host, or PHALANX_BIND to where to listen if addresses are translated on the way)",
        authority(host, port)
    );
    Err(Error::io(doing, ErrorKind::AddrNotAvailable.into()))
}

fn resolve(host: &str, port: u16, deadline: &Deadline) -> Result<Vec<SocketAddr>> {
    loop {
        match (host, port).to_socket_addrs() {
            Ok(addrs) => return Ok(addrs.collect()),
            Err(error) if deadline.has_passed(Instant::now()) => {
                return Err(Error::io(format!("resolving {host}, where rank 0 is to run the store"), error));
            }
            Err(_) => std::thread::sleep(RESOLVE_PAUSE.min(deadline.remaining(Instant::now()))),
        }
    }
}
