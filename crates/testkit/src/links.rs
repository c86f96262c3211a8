//! The links between ranks that are threads of one test: what a transport is tested with.

use crate::threads::on_threads;
use phalanx_core::{GroupId, Result};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::thread::Pipes;
use phalanx_transport::{Secret, Transport};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// How long a link may take to be made. Nothing is unreachable here.
const LINK_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank's end of its links.
pub type End = Box<dyn Transport>;

type Open = dyn Fn(usize) -> Result<Vec<End>> + Send + Sync;

/// Makes the links of a group, for [`transport_conformance!`](crate::transport_conformance).
///
/// # Examples
/// ```
/// use phalanx_testkit::Links;
/// use phalanx_transport::{Transport, thread::Pipes};
///
/// let links = Links::of("thread", |world_size| {
///     let pipes = Pipes::new(world_size);
///     Ok((0..world_size).map(|rank| Box::new(pipes.end(rank)) as Box<dyn Transport>).collect())
/// });
/// assert_eq!(links.run(3, |end| end.rank()), [0, 1, 2]);
/// ```
#[derive(Clone)]
pub struct Links {
    name: &'static str,
    open: Arc<Open>,
    watchdog: Duration,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Links {
    /// Links made by `open`, which is given the number of ranks and returns the end of each, in rank order.
    pub fn of(name: &'static str, open: impl Fn(usize) -> Result<Vec<End>> + Send + Sync + 'static) -> Self {
        Self { name, open: Arc::new(open), watchdog: Duration::from_secs(120) }
    }

    /// Pipes in memory.
    pub fn thread() -> Self {
        Self::of("thread", |world_size| {
            let pipes = Pipes::new(world_size);
            Ok((0..world_size).map(|rank| Box::new(pipes.end(rank)) as End).collect())
        })
    }

    /// TCP over the loopback interface.
    pub fn tcp() -> Self {
        Self::of("tcp", |world_size| tcp_ends(world_size, &Secret::generate()?))
    }

    /// As [`tcp`](Self::tcp), encrypted.
    pub fn encrypted_tcp() -> Self {
        Self::of("encrypted tcp", |world_size| tcp_ends(world_size, &Secret::generate()?.encrypting()))
    }

    /// New links: the end of each rank, in rank order.
    ///
    /// # Errors
    /// They can't be made.
    pub fn ends(&self, world_size: usize) -> Result<Vec<End>> {
        (self.open)(world_size)
    }

    /// How long all ranks may take before [`run`](Self::run) gives up on them. Default: two minutes.
    #[must_use]
    pub fn watchdog(mut self, limit: Duration) -> Self {
        self.watchdog = limit;
        self
    }

    /// The same links, each end of which went through `change`.
    #[must_use]
    pub fn map(self, change: impl Fn(End) -> End + Send + Sync + 'static) -> Self {
        let open = self.open.clone();
        let open = move |world_size| Ok(open(world_size)?.into_iter().map(&change).collect());
        Self { open: Arc::new(open), ..self }
    }

    /// Runs `rank` on a thread for each end of new links; what they return, in rank order.
    ///
    /// # Panics
    /// If the links cannot be made, if a rank panics, or if not all are done in time: says which.
    pub fn run<R: Send + 'static>(
        &self,
        world_size: usize,
        rank: impl Fn(End) -> R + Send + Sync + 'static,
    ) -> Vec<R> {
        let ends = self
            .ends(world_size)
            .unwrap_or_else(|error| panic!("no {} links of {world_size} ranks: {error}", self.name));
        assert_eq!(ends.len(), world_size, "one end for each rank");
        let body = Arc::new(rank);
        let bodies = ends.into_iter().map(|end| {
            let body = body.clone();
            move || body(end)
        });
        on_threads(bodies.collect(), self.watchdog)
    }
}

fn tcp_ends(world_size: usize, secret: &Secret) -> Result<Vec<End>> {
    let start =
        |rank| Exchange::start((Ipv4Addr::LOCALHOST, 0).into(), secret.clone(), rank, world_size, None);
    let exchanges = (0..world_size).map(start).collect::<Result<Vec<_>>>()?;
    let addrs: Vec<_> = exchanges.iter().map(Exchange::addr).collect();
    let members: Vec<_> = (0..world_size).collect();
    let end = |exchange: &Exchange| {
        Box::new(exchange.open(GroupId(1), members.clone(), addrs.clone(), LINK_TIMEOUT)) as End
    };
    Ok(exchanges.iter().map(end).collect())
}
