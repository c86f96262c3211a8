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
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::{End, Links};
    /// use phalanx_transport::thread::Pipes;
    ///
    /// let links = Links::of("pipes of mine", |world_size| {
    ///     let pipes = Pipes::new(world_size);
    ///     Ok((0..world_size).map(|rank| Box::new(pipes.end(rank)) as End).collect())
    /// });
    /// assert_eq!(links.run(2, |end| (end.rank(), end.world_size())), [(0, 2), (1, 2)]);
    /// ```
    pub fn of(name: &'static str, open: impl Fn(usize) -> Result<Vec<End>> + Send + Sync + 'static) -> Self {
        Self { name, open: Arc::new(open), watchdog: Duration::from_secs(120) }
    }

    /// Pipes in memory.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::Links;
    ///
    /// assert_eq!(Links::thread().run(2, |end| end.name()), ["thread"; 2]);
    /// ```
    pub fn thread() -> Self {
        Self::of("thread", |world_size| {
            let pipes = Pipes::new(world_size);
            Ok((0..world_size).map(|rank| Box::new(pipes.end(rank)) as End).collect())
        })
    }

    /// TCP over the loopback interface.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::Links;
    ///
    /// assert_eq!(Links::tcp().run(2, |end| end.name()), ["tcp"; 2]);
    /// ```
    pub fn tcp() -> Self {
        Self::of("tcp", |world_size| tcp_ends(world_size, &Secret::generate()?))
    }

    /// As [`tcp`](Self::tcp), encrypted.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::Links;
    ///
    /// assert_eq!(Links::encrypted_tcp().run(2, |end| end.name()), ["tcp"; 2]);
    /// ```
    pub fn encrypted_tcp() -> Self {
        Self::of("encrypted tcp", |world_size| tcp_ends(world_size, &Secret::generate()?.encrypting()))
    }

    /// New links: the end of each rank, in rank order.
    ///
    /// # Errors
    /// They can't be made.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::Links;
    ///
    /// let mut ends = Links::thread().ends(2)?;
    /// assert_eq!(ends[0].send(1, &[std::io::IoSlice::new(b"abc")]), Ok(3));
    /// let mut buffer = [0; 8];
    /// assert_eq!(ends[1].recv(0, &mut buffer), Ok(3));
    /// assert_eq!(&buffer[..3], b"abc");
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn ends(&self, world_size: usize) -> Result<Vec<End>> {
        (self.open)(world_size)
    }

    /// How long all ranks may take before [`run`](Self::run) gives up on them. Default: two minutes.
    ///
    /// # Examples
    /// ```should_panic
    /// use phalanx_testkit::Links;
    /// use std::time::Duration;
    ///
    /// let links = Links::thread().watchdog(Duration::from_millis(50));
    /// // Panics, and names rank 1, which still sleeps.
    /// links.run(2, |end| std::thread::sleep(Duration::from_secs(600 * end.rank() as u64)));
    /// ```
    #[must_use]
    pub fn watchdog(mut self, limit: Duration) -> Self {
        self.watchdog = limit;
        self
    }

    /// The same links, each end of which went through `change`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::{End, Links};
    ///
    /// let links = Links::thread().map(|end: End| end); // or one that loses bytes, say
    /// assert_eq!(links.run(2, |end| end.rank()), [0, 1]);
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::Links;
    /// use std::io::IoSlice;
    ///
    /// let received = Links::thread().run(2, |mut end| {
    ///     let other = 1 - end.rank();
    ///     let (mut bytes, mut len) = ([0; 3], 0);
    ///     assert_eq!(end.send(other, &[IoSlice::new(b"abc")]), Ok(3));
    ///     while len < bytes.len() {
    ///         len += end.recv(other, &mut bytes[len..]).unwrap();
    ///     }
    ///     bytes
    /// });
    /// assert_eq!(received, [*b"abc"; 2]);
    /// ```
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
