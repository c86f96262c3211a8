//! Backends: what a rank sends and receives with, as `ferrotorch-distributed` has them, over groups of phalanx.

use crate::error::{refused, told};
use ferrotorch_core::FerrotorchResult;
use phalanx::{Config, ProcessGroup};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// All messages of bytes have this tag.
pub(crate) const TAG: u64 = 0;

/// The ranks that work together, as one of them sees them.
///
/// Collectives take what [`group`](Self::group) returns, so a backend of a program's own is one that has a group. Errors of collectives and of messages of
/// tensors name the program's line. Those of the methods here, which are called through a `dyn Backend`, name a line of this crate.
pub trait Backend: Send + Sync {
    /// The group that performs what this backend is asked for.
    fn group(&self) -> &ProcessGroup;

    /// The backend as its own type, if a crate that has more for that type shall know it. `phalanx-ferrotorch-gpu` knows its `HybridBackend` by this.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// This rank, below [`world_size`](Self::world_size).
    fn rank(&self) -> usize {
        self.group().rank()
    }

    /// How many ranks there are.
    fn world_size(&self) -> usize {
        self.group().world_size()
    }

    /// Sends bytes to `dst_rank`.
    ///
    /// # Errors
    /// There is no such rank, or it is this one; it is lost; the group's time limit has passed. As for
    /// [`send`](ProcessGroup::send).
    fn send(&self, data: &[u8], dst_rank: usize) -> FerrotorchResult<()> {
        self.group().send(data, dst_rank, TAG).map_err(told)
    }

    /// Receives a message of exactly `dst.len()` bytes from `src_rank`.
    ///
    /// # Errors
    /// As for [`recv`](ProcessGroup::recv): the message has another length, the sender is lost, the group's time limit has passed.
    fn recv(&self, dst: &mut [u8], src_rank: usize) -> FerrotorchResult<()> {
        self.group().recv(dst, src_rank, TAG).map_err(told)
    }

    /// As [`recv`](Self::recv), but that nothing comes within `timeout` is no failure of the group.
    ///
    /// # Errors
    /// Nothing came in time. The others as for [`recv`](Self::recv).
    fn recv_timeout(&self, dst: &mut [u8], src_rank: usize, timeout: Duration) -> FerrotorchResult<()> {
        self.group().recv_timeout(dst, src_rank, TAG, timeout).map_err(told)
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// A rank is lost, or does not come within the group's time limit.
    fn barrier(&self) -> FerrotorchResult<()> {
        self.group().barrier().map_err(told)
    }
}

/// A group that the program has joined, as a backend.
///
/// # Examples
/// ```
/// use phalanx_ferrotorch::{Backend, Group};
///
/// let backend = Group::init()?; // under a launcher, one rank of several; here alone
/// assert_eq!((backend.rank(), backend.world_size()), (0, 1));
/// # Ok::<(), ferrotorch_core::FerrotorchError>(())
/// ```
#[derive(Debug)]
pub struct Group(ProcessGroup);

impl Group {
    /// Joins the job of this process, as its launcher says: [`phalanx::init`].
    ///
    /// # Errors
    /// Those of [`phalanx::init`].
    pub fn init() -> FerrotorchResult<Self> {
        phalanx::init().map(Self).map_err(told)
    }
}

impl From<ProcessGroup> for Group {
    fn from(group: ProcessGroup) -> Self {
        Self(group)
    }
}

impl Backend for Group {
    fn group(&self) -> &ProcessGroup {
        &self.0
    }
}

/// Processes that meet at an address.
///
/// The name is that of `ferrotorch-distributed`. Data go through shared memory where ranks share a host, and over TCP elsewhere;
/// `PHALANX_BACKEND=tcp` has all of it go over TCP.
#[derive(Debug)]
pub struct TcpBackend(ProcessGroup);

impl TcpBackend {
    /// Joins `world_size` processes as `rank`. They meet at `master_addr`, `host:port`, where rank 0 listens. All ranks need the same
    /// secret in `PHALANX_SECRET` or a file that `PHALANX_SECRET_FILE` names, by which they know each other; `phalanx run` sets it.
    /// Other variables that begin with `PHALANX_` count as for [`phalanx::init`].
    ///
    /// # Errors
    /// Fewer than 2 ranks, no such rank, an address that is none, no secret; not all came within the time limit
    /// (`PHALANX_INIT_TIMEOUT_S`).
    pub fn new(rank: usize, world_size: usize, master_addr: &str) -> FerrotorchResult<Self> {
        if world_size < 2 {
            return Err(refused(format!(
                "TcpBackend::new: got a world of {world_size} ranks, expected at least 2"
            )));
        }
        if rank >= world_size {
            return Err(refused(format!("TcpBackend::new: there is no rank {rank} among {world_size}")));
        }
        let Some((host, port)) = master_addr.rsplit_once(':') else {
            return Err(refused(format!(
                "TcpBackend::new: got the address `{master_addr}`, expected host:port"
            )));
        };
        let own = |name: &str| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(world_size.to_string()),
            "MASTER_ADDR" => Some(host.trim_start_matches('[').trim_end_matches(']').to_owned()),
            "MASTER_PORT" => Some(port.to_owned()),
            "PHALANX_RANK" | "PHALANX_WORLD_SIZE" | "PHALANX_STORE" => None,
            _ if name.starts_with("PHALANX_") => std::env::var(name).ok(),
            _ => None,
        };
        let joined = Config::from_lookup(own).and_then(|config| phalanx::join(&config));
        joined.map(Self).map_err(told)
    }
}

impl Backend for TcpBackend {
    fn group(&self) -> &ProcessGroup {
        &self.0
    }
}

/// Ranks that are threads of one process, for tests.
#[derive(Debug)]
pub struct SimulatedBackend(ProcessGroup);

impl SimulatedBackend {
    /// The backends of `world_size` ranks, in rank order, each to be moved to a thread.
    ///
    /// # Errors
    /// For no ranks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_ferrotorch::{Backend, SimulatedBackend};
    ///
    /// let backends = SimulatedBackend::create_group(3)?;
    /// assert!(backends.iter().map(Backend::rank).eq(0..3));
    /// assert!(SimulatedBackend::create_group(0).is_err());
    /// # Ok::<(), ferrotorch_core::FerrotorchError>(())
    /// ```
    pub fn create_group(world_size: usize) -> FerrotorchResult<Vec<Self>> {
        if world_size == 0 {
            return Err(refused(
                "SimulatedBackend::create_group: got a world of 0 ranks, expected at least 1",
            ));
        }
        Ok(phalanx::threads(world_size).into_iter().map(Self).collect())
    }
}

impl Backend for SimulatedBackend {
    fn group(&self) -> &ProcessGroup {
        &self.0
    }
}

/// Some of the ranks of another backend.
pub struct SubBackend {
    parent: Arc<dyn Backend>,
    /// Ranks of the parent, ascending.
    members: Vec<usize>,
    group: ProcessGroup,
}

impl std::fmt::Debug for SubBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubBackend").field("members", &self.members).finish_non_exhaustive()
    }
}

impl SubBackend {
    /// The group of these ranks of `parent`, in ascending order, without duplicates. Collective among them: each calls it with the same members, and
    /// nobody else does.
    ///
    /// # Errors
    /// No members, one that `parent` does not have, this rank is not among them; a member does not come in time.
    ///
    /// # Examples
    /// ```
    /// use phalanx_ferrotorch::{Backend, SimulatedBackend, SubBackend};
    /// use std::sync::Arc;
    ///
    /// let backends = SimulatedBackend::create_group(3)?;
    /// std::thread::scope(|scope| {
    ///     for backend in backends.into_iter().filter(|backend| backend.rank() != 1) {
    ///         scope.spawn(move || {
    ///             let last = backend.rank() == 2;
    ///             let sub = SubBackend::new(Arc::new(backend), vec![2, 0]).unwrap();
    ///             assert_eq!((sub.rank(), sub.world_size()), (usize::from(last), 2));
    ///             assert_eq!((sub.to_global(1), sub.to_local(2), sub.to_local(1)), (2, Some(1), None));
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ferrotorch_core::FerrotorchError>(())
    /// ```
    pub fn new(parent: Arc<dyn Backend>, mut members: Vec<usize>) -> FerrotorchResult<Self> {
        members.sort_unstable();
        members.dedup();
        let (rank, world_size) = (parent.rank(), parent.world_size());
        match members.last() {
            None => return Err(refused("SubBackend::new: got no members")),
            Some(&last) if last >= world_size => {
                return Err(refused(format!("SubBackend::new: there is no rank {last} among {world_size}")));
            }
            Some(_) => {}
        }
        let group = parent.group().new_group(&members).map_err(told)?;
        let group = group.ok_or_else(|| {
            refused(format!("SubBackend::new: this rank, {rank}, is not among the members {members:?}"))
        })?;
        Ok(Self { parent, members, group })
    }

    /// The members, as ranks of the parent, ascending.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// The rank in the parent of the member that is `local` here.
    ///
    /// # Panics
    /// If there are not so many members.
    pub fn to_global(&self, local: usize) -> usize {
        self.members[local]
    }

    /// The rank here of the parent's rank `global`, if it is a member.
    pub fn to_local(&self, global: usize) -> Option<usize> {
        self.members.binary_search(&global).ok()
    }

    /// The backend whose ranks the members are.
    pub fn parent(&self) -> &Arc<dyn Backend> {
        &self.parent
    }
}

impl Backend for SubBackend {
    fn group(&self) -> &ProcessGroup {
        &self.group
    }
}
