//! A job whose ranks are threads of one test.

use crate::Links;
use crate::threads::on_threads;
use phalanx_core::{Error, Result};
use phalanx_group::{ProcessGroup, join, threads_with};
use phalanx_rendezvous::{Config, TcpStoreServer};
use phalanx_transport::Secret;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

/// The function by which a rank joins its group, called on the rank's own thread.
pub type Join = Box<dyn FnOnce() -> Result<ProcessGroup> + Send>;

/// The settings of a world, which all its ranks have.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long an operation may take.
    pub timeout: Duration,
    /// Algorithms to use instead of the recommended ones, as in `all_reduce=ring,broadcast=binomial`.
    pub algorithms: String,
    /// Whether ranks encrypt what they say over TCP.
    pub encrypt: bool,
}

/// What ranks have at least to join and to make their links. A test that sets a short limit means its own calls, and the machine may be busy.
const TIME_TO_JOIN: Duration = Duration::from_secs(60);

type Open = dyn Fn(usize, &Settings) -> Result<Vec<Join>> + Send + Sync;

/// Makes jobs whose ranks are threads of this process, linked in one way or another.
///
/// A test that hangs tells nothing. Here a watchdog ends it and names the ranks that still run; and a rank that panics
/// is named with its message.
///
/// # Examples
/// ```
/// use phalanx_testkit::World;
///
/// for world in [World::thread(), World::tcp()] {
///     let sums = world.run(3, |group| {
///         let mut buffer = [group.rank() as u32; 2];
///         group.all_reduce(&mut buffer, phalanx_core::ReduceOp::Sum).unwrap();
///         buffer
///     });
///     assert_eq!(sums, [[3, 3]; 3]); // in rank order
/// }
/// ```
#[derive(Clone)]
pub struct World {
    name: &'static str,
    open: Arc<Open>,
    settings: Settings,
    watchdog: Duration,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl World {
    /// Ranks linked by pipes in memory.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    ///
    /// assert_eq!(World::thread().run(2, |group| group.rank()), [0, 1]);
    /// ```
    pub fn thread() -> Self {
        Self::of("thread", |world_size, settings| {
            let groups = threads_with(world_size, settings.timeout, &settings.algorithms)?;
            Ok(groups.into_iter().map(|group| Box::new(move || Ok(group)) as Join).collect())
        })
    }

    /// Ranks linked by TCP over the loopback interface. They meet in a store that this process runs.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    ///
    /// assert_eq!(World::tcp().run(2, |group| group.rank()), [0, 1]);
    /// ```
    pub fn tcp() -> Self {
        Self::tcp_on(Ipv4Addr::LOCALHOST.into())
    }

    /// As [`tcp`](Self::tcp), over the interface with the address `ip`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    ///
    /// let loopback = std::net::Ipv4Addr::LOCALHOST;
    /// assert_eq!(World::tcp_on(loopback.into()).run(2, |group| group.rank()), [0, 1]);
    /// ```
    pub fn tcp_on(ip: IpAddr) -> Self {
        Self::met_in_store("tcp", ip, |_| vec![("PHALANX_BACKEND", "tcp".to_owned())])
    }

    /// As [`tcp`](Self::tcp), with a checksum on every frame.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    ///
    /// assert_eq!(World::checked_tcp().run(2, |group| group.rank()), [0, 1]);
    /// ```
    pub fn checked_tcp() -> Self {
        let settings = |_| vec![("PHALANX_BACKEND", "tcp".to_owned()), ("PHALANX_CHECKSUM", "1".to_owned())];
        Self::met_in_store("checked tcp", Ipv4Addr::LOCALHOST.into(), settings)
    }

    /// Ranks that share memory, met as for [`tcp`](Self::tcp).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(target_os = "linux")]
    /// # {
    /// use phalanx_testkit::World;
    ///
    /// let backends = World::shm().run(2, |group| group.describe());
    /// assert!(backends[0].starts_with("shm"), "{}", backends[0]);
    /// # }
    /// ```
    pub fn shm() -> Self {
        let settings = |_| vec![("PHALANX_BACKEND", "shm".to_owned())];
        Self::met_in_store("shm", Ipv4Addr::LOCALHOST.into(), settings)
    }

    /// Ranks on several hosts, as far as they know: the first `per_host` on one, the next on another. Those of one share memory.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(target_os = "linux")]
    /// # {
    /// use phalanx_testkit::World;
    ///
    /// let lines = World::hosts(2).run(4, |group| group.describe());
    /// assert!(lines[0].contains("2 hosts"), "{}", lines[0]); // with two ranks each
    /// # }
    /// ```
    pub fn hosts(per_host: usize) -> Self {
        let settings = move |rank| vec![("PHALANX_HOST_ID", format!("host {}", rank / per_host))];
        Self::met_in_store("hosts", Ipv4Addr::LOCALHOST.into(), settings)
    }

    /// Ranks whose backend or transport is [registered](phalanx_group::register_backend) under `name`, met as for [`tcp`](Self::tcp).
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    ///
    /// assert_eq!(World::named("tcp").run(2, |group| group.rank()), [0, 1]);
    /// ```
    pub fn named(name: &'static str) -> Self {
        Self::met_in_store(name, Ipv4Addr::LOCALHOST.into(), move |_| {
            vec![("PHALANX_BACKEND", name.to_owned())]
        })
    }

    /// Ranks that have `links` and nothing else: [`ProcessGroup::over`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::{Links, World};
    ///
    /// assert_eq!(World::over(Links::thread()).run(2, |group| group.rank()), [0, 1]);
    /// ```
    pub fn over(links: Links) -> Self {
        Self::of("over", move |world_size, settings| {
            let names: Vec<_> = (0..world_size).map(|rank| format!("thread {rank}")).collect();
            let timeout = settings.timeout;
            let join = |end| {
                let names = names.clone();
                Box::new(move || ProcessGroup::over(end, &names, timeout)) as Join
            };
            Ok(links.ends(world_size)?.into_iter().map(join).collect())
        })
    }

    /// `more` is what the environment of a rank says besides.
    fn met_in_store(
        name: &'static str,
        ip: IpAddr,
        more: impl Fn(usize) -> Vec<(&'static str, String)> + Send + Sync + 'static,
    ) -> Self {
        // One server for all jobs of this world: ranks that are lost and meet again need it as long as they live.
        let server: OnceLock<(Secret, TcpStoreServer)> = OnceLock::new();
        let jobs = AtomicUsize::new(0);
        Self::of(name, move |world_size, settings| {
            if server.get().is_none() {
                let secret = Secret::generate()?;
                let secret = if settings.encrypt { secret.encrypting() } else { secret };
                let started = TcpStoreServer::start(SocketAddr::new(ip, 0), &secret)?;
                // Another thread may have been faster: its server is taken.
                let _ = server.set((secret, started));
            }
            let (secret, server) = server.get().expect("it was started");
            let job = jobs.fetch_add(1, Ordering::Relaxed).to_string();
            let all = Arc::new(Barrier::new(world_size));
            let rank = |rank| {
                let mut more = more(rank);
                more.push(("PHALANX_JOB_ID", job.clone()));
                let config = config(rank, world_size, server, secret, settings, more)?;
                let all = all.clone();
                Ok(Box::new(move || {
                    let group = join(&config);
                    // A rank that fails at once would find others in the self-test still, and fail their way in.
                    all.wait();
                    group
                }) as Join)
            };
            (0..world_size).map(rank).collect()
        })
    }

    /// Ranks linked in a way of your own, as a test of a new backend needs it: `open` is given the number of ranks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::{Join, World};
    ///
    /// let world = World::of("threads of mine", |world_size, settings| {
    ///     let groups = phalanx_group::threads_with(world_size, settings.timeout, &settings.algorithms)?;
    ///     Ok(groups.into_iter().map(|group| Box::new(|| Ok(group)) as Join).collect())
    /// });
    /// assert_eq!(world.run(2, |group| group.rank()), [0, 1]);
    /// ```
    pub fn of(
        name: &'static str,
        open: impl Fn(usize, &Settings) -> Result<Vec<Join>> + Send + Sync + 'static,
    ) -> Self {
        let settings =
            Settings { timeout: Duration::from_secs(60), algorithms: String::new(), encrypt: false };
        Self { name, open: Arc::new(open), settings, watchdog: Duration::from_secs(120) }
    }

    /// How long an operation may take. Default: 60 s.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    /// use std::time::Duration;
    ///
    /// let world = World::thread().timeout(Duration::from_secs(5));
    /// assert_eq!(world.run(1, |group| group.timeout()), [Duration::from_secs(5)]);
    /// ```
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Algorithms to use instead of the recommended ones, as in `all_reduce=ring,broadcast=binomial`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_testkit::World;
    ///
    /// let ring = World::thread().algorithms("all_reduce=ring");
    /// let sums = ring.run(3, |group| {
    ///     let mut one = [1];
    ///     group.all_reduce(&mut one, ReduceOp::Sum).unwrap();
    ///     one[0]
    /// });
    /// assert_eq!(sums, [3; 3]);
    /// ```
    #[must_use]
    pub fn algorithms(mut self, algorithms: impl Into<String>) -> Self {
        self.settings.algorithms = algorithms.into();
        self
    }

    /// Encrypts everything that goes over TCP.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    ///
    /// assert_eq!(World::tcp().encrypted().run(2, |group| group.rank()), [0, 1]);
    /// ```
    #[must_use]
    pub fn encrypted(mut self) -> Self {
        self.settings.encrypt = true;
        self
    }

    /// How long the whole job may take before [`run`](Self::run) gives up on it. Default: two minutes.
    ///
    /// # Examples
    /// ```should_panic
    /// use phalanx_testkit::World;
    /// use std::time::Duration;
    ///
    /// let world = World::thread().watchdog(Duration::from_millis(50));
    /// // Panics, and names rank 1, which still sleeps.
    /// world.run(2, |group| std::thread::sleep(Duration::from_secs(600 * group.rank() as u64)));
    /// ```
    #[must_use]
    pub fn watchdog(mut self, limit: Duration) -> Self {
        self.watchdog = limit;
        self
    }

    /// Runs `rank` on each rank of a new job, and returns what they return, in rank order.
    ///
    /// # Panics
    /// If the job cannot be set up; if a rank panics, naming all that did, the first one first; or if not all are done
    /// in time, naming those that still run (their threads are left behind).
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::World;
    ///
    /// let gathered = World::thread().run(3, |group| {
    ///     let mut ranks = [0; 3];
    ///     group.all_gather(&[group.rank() as u8], &mut ranks).unwrap();
    ///     ranks
    /// });
    /// assert_eq!(gathered, [[0, 1, 2]; 3]);
    /// ```
    pub fn run<R: Send + 'static>(
        &self,
        world_size: usize,
        rank: impl Fn(ProcessGroup) -> R + Send + Sync + 'static,
    ) -> Vec<R> {
        let joins = (self.open)(world_size, &self.settings)
            .unwrap_or_else(|error| panic!("no {} world of {world_size} ranks: {error}", self.name));
        assert_eq!(joins.len(), world_size, "one way in for each rank");
        let (body, timeout) = (Arc::new(rank), self.settings.timeout);
        let rank = |join: Join| {
            let body = body.clone();
            move || match join() {
                Ok(joined) => {
                    let group = joined.with_timeout(timeout);
                    // The rank has the only handle: a group whose last handle goes in a panic fails.
                    drop(joined);
                    body(group)
                }
                Err(error) => panic!("joining: {error}"),
            }
        };
        on_threads(joins.into_iter().map(rank).collect(), self.watchdog)
    }
}

/// The configuration that a launcher would give to `rank`.
fn config(
    rank: usize,
    world_size: usize,
    server: &TcpStoreServer,
    secret: &Secret,
    settings: &Settings,
    more: Vec<(&'static str, String)>,
) -> Result<Config, Error> {
    let mut variables = BTreeMap::from([
        ("PHALANX_RANK", rank.to_string()),
        ("PHALANX_WORLD_SIZE", world_size.to_string()),
        ("PHALANX_LOCAL_RANK", rank.to_string()),
        ("PHALANX_LOCAL_WORLD_SIZE", world_size.to_string()),
        ("PHALANX_STORE", format!("tcp://{}", server.addr())),
        ("PHALANX_SECRET", secret.to_hex()),
        ("PHALANX_TIMEOUT_S", settings.timeout.max(TIME_TO_JOIN).as_secs_f64().to_string()),
        ("PHALANX_ALGO", settings.algorithms.clone()),
        ("PHALANX_ENCRYPT", u8::from(settings.encrypt).to_string()),
    ]);
    variables.extend(more);
    Config::from_lookup(|name| variables.get(name).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::text;
    use phalanx_core::ReduceOp;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn panic_of(world: World, rank: impl Fn(ProcessGroup) + Send + Sync + 'static) -> String {
        let panic = catch_unwind(AssertUnwindSafe(|| world.run(3, rank))).expect_err("this must panic");
        text(&*panic)
    }

    #[test]
    fn results_stand_in_rank_order() {
        for world in [World::thread(), World::tcp()] {
            assert_eq!(
                world.run(4, |group| (group.rank(), group.world_size())),
                [(0, 4), (1, 4), (2, 4), (3, 4)]
            );
        }
    }

    #[test]
    fn settings_reach_the_groups() {
        for world in [World::thread(), World::tcp()] {
            let world = world.timeout(Duration::from_secs(7));
            assert_eq!(world.run(2, |group| group.timeout()), [Duration::from_secs(7); 2]);
            let text = panic_of(world.algorithms("all_reduce=no_such"), |_| {});
            assert!(text.contains("no_such"), "{text}");
        }
    }

    #[test]
    fn a_panic_is_told_with_its_rank() {
        for world in [World::thread(), World::tcp()] {
            let text = panic_of(world, |group| {
                assert!(group.rank() != 1, "one is unwell");
                group.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
            });
            assert!(text.contains("rank 1 of 3 panicked: one is unwell"), "{text}");
        }
    }

    #[test]
    fn the_watchdog_names_who_still_runs() {
        let text = panic_of(World::thread().watchdog(Duration::from_millis(50)), |group| {
            while group.rank() != 1 {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(text, "ranks [0, 2] of 3 still run after 50ms");
    }
}
