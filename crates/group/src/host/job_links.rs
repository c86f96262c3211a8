//! How bytes get from each rank of a job to each other: TCP, or a transport that a program registers.

use phalanx_core::{Error, GroupId, Result};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::{Secret, Transport};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

/// Makes the links of a job's ranks: a way to move bytes, [registered](crate::register_transport) under a name.
pub trait TransportFactory: Send + Sync + Debug {
    /// Prepares this rank to be reached by the others, which it has not met yet: listens, opens a device. Called once for each
    /// job that the process joins, and again when survivors of a loss form the next group of all ranks.
    ///
    /// # Errors
    /// This rank can't be reached in this way. It does not join the job then.
    fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>>;

    /// Whether nobody but the ranks can read what goes over these links: encrypted with a key of the [secret](LinksStart::secret), or never off the
    /// host. A job that encrypts refuses others.
    fn is_private(&self) -> bool {
        false
    }
}

/// One rank's side of all links of a job. Dropped when the last group of the job is.
pub trait JobLinks: Send + Sync + Debug {
    /// What the other ranks need to reach this one. They get it through the job's store, whoever can read that. `Some` on all ranks, or on none.
    fn address(&self) -> Option<Vec<u8>>;

    /// This rank's end of the links of a group of which it is a member. `peers` are all members, in group order. Does not block: links are made on
    /// first use, also by peers that come first, and what fails then is a [`LinkFault`](phalanx_transport::LinkFault).
    fn open(&self, group: GroupId, peers: &[LinkPeer<'_>]) -> Box<dyn Transport>;
}

/// A member of a group, as links are opened.
#[derive(Debug, Clone, Copy)]
pub struct LinkPeer<'a> {
    /// The rank in the job.
    pub rank: usize,
    /// What its links [published](JobLinks::address); empty if they published nothing.
    pub address: &'a [u8],
    /// Where its endpoint listens.
    pub(crate) addr: SocketAddr,
}

impl<'a> LinkPeer<'a> {
    /// A member whose links published this: for tests, and for groups that a program makes [over](crate::ProcessGroup::over) its own links.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::LinkPeer;
    ///
    /// let peers = [LinkPeer::new(0, b"socket 17"), LinkPeer::new(1, b"socket 23")]; // as `JobLinks::open` gets them
    /// assert_eq!((peers[1].rank, peers[1].address), (1, &b"socket 23"[..]));
    /// ```
    pub fn new(rank: usize, address: &'a [u8]) -> Self {
        Self { rank, address, addr: SocketAddr::from(([0; 4], 0)) }
    }
}

/// A rank that is about to meet the others of its job, as its links need to know it.
#[derive(Debug, Clone, Copy)]
pub struct LinksStart<'a> {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) secret: &'a Secret,
    pub(crate) link_timeout: Duration,
    pub(crate) silence: Option<Duration>,
    pub(crate) exchange: &'a Exchange,
}

impl LinksStart<'_> {
    /// This rank in the job.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{JobLinks, LinksStart, TransportFactory};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl TransportFactory for Mine {
    ///     fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
    ///         println!("rank {} listens", at.rank());
    ///         # assert!(at.rank() < 1);
    ///         Ok(at.tcp()) // or links of your own
    ///     }
    /// }
    /// # phalanx_group::register_transport("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # config.secret = Some(phalanx_transport::Secret::generate()?);
    /// # config.elastic = Some("1:1".parse()?);
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the job has.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{JobLinks, LinksStart, TransportFactory};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl TransportFactory for Mine {
    ///     fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
    ///         assert!(at.rank() < at.world_size());
    ///         Ok(at.tcp()) // or links of your own
    ///     }
    /// }
    /// # phalanx_group::register_transport("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # config.secret = Some(phalanx_transport::Secret::generate()?);
    /// # config.elastic = Some("1:1".parse()?);
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// What all ranks of the job know, and nobody else: of this job, this start of it and these survivors. Whoever connects should prove that it
    /// knows it.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{JobLinks, LinksStart, TransportFactory};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl TransportFactory for Mine {
    ///     fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
    ///         let key = at.secret().key_for("links of mine"); // whoever connects must know it
    ///         # assert_eq!(key.len(), 64);
    ///         Ok(at.tcp()) // or links of your own
    ///     }
    /// }
    /// # phalanx_group::register_transport("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # config.secret = Some(phalanx_transport::Secret::generate()?);
    /// # config.elastic = Some("1:1".parse()?);
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn secret(&self) -> &Secret {
        self.secret
    }

    /// How long a link may take to be made. Then it is [`Unreachable`](phalanx_transport::LinkFault::Unreachable).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{JobLinks, LinksStart, TransportFactory};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl TransportFactory for Mine {
    ///     fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
    ///         println!("a link is made within {:?}, or never", at.link_timeout());
    ///         # assert!(!at.link_timeout().is_zero());
    ///         Ok(at.tcp()) // or links of your own
    ///     }
    /// }
    /// # phalanx_group::register_transport("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # config.secret = Some(phalanx_transport::Secret::generate()?);
    /// # config.elastic = Some("1:1".parse()?);
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn link_timeout(&self) -> Duration {
        self.link_timeout
    }

    /// The links that are there anyway: TCP connections between the ranks' endpoints, authenticated and, where the job asks for it, encrypted.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{JobLinks, LinksStart, TransportFactory};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl TransportFactory for Mine {
    ///     fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
    ///         println!("what is mine is not there yet");
    ///         Ok(at.tcp()) // or links of your own
    ///     }
    /// }
    /// # phalanx_group::register_transport("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # config.secret = Some(phalanx_transport::Secret::generate()?);
    /// # config.elastic = Some("1:1".parse()?);
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn tcp(&self) -> Box<dyn JobLinks> {
        let (exchange, link_timeout, silence) = (self.exchange.clone(), self.link_timeout, self.silence);
        Box::new(TcpLinks { exchange, link_timeout, silence })
    }

    /// The links that a transport makes.
    ///
    /// # Errors
    /// [`Config`](Error::Config) if the job encrypts and these links do not; what the transport says.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{BackendFactory, BackendKind, JobHandle, JobLinks, LinksStart, TransportFactory};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Links;
    /// # impl TransportFactory for Links {
    /// #     fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> { Ok(at.tcp()) }
    /// # }
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl BackendKind for Mine {
    ///     # fn about(&self) -> &str { "a backend of mine, over links of mine" }
    ///     # fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> { Ok(job.over_links()) }
    ///     fn links(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
    ///         at.by(&Links) // a `TransportFactory`
    ///     }
    /// }
    /// # phalanx_group::register_backend("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # config.secret = Some(phalanx_transport::Secret::generate()?);
    /// # config.elastic = Some("1:1".parse()?);
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn by(&self, transport: &dyn TransportFactory) -> Result<Box<dyn JobLinks>> {
        if self.secret.encrypts() && !transport.is_private() {
            let what = format!(
                "this job encrypts (PHALANX_ENCRYPT), and {transport:?} does not: choose another PHALANX_BACKEND"
            );
            return Err(Error::config(what));
        }
        transport.start(self)
    }
}

/// Links through the process's exchange, which knows the addresses without being told.
#[derive(Debug)]
struct TcpLinks {
    exchange: Exchange,
    link_timeout: Duration,
    silence: Option<Duration>,
}

impl JobLinks for TcpLinks {
    fn address(&self) -> Option<Vec<u8>> {
        None
    }

    fn open(&self, group: GroupId, peers: &[LinkPeer<'_>]) -> Box<dyn Transport> {
        let (ranks, addrs) = peers.iter().map(|peer| (peer.rank, peer.addr)).unzip();
        let links = self.exchange.open(group, ranks, addrs, self.link_timeout);
        Box::new(links.notice_cuts(self.silence))
    }
}

/// The key in the store under which a rank publishes the address of its links.
pub(crate) fn address_key(rank: usize) -> String {
    format!("links/{rank}")
}
