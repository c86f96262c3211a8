//! A group over links that the program has made itself: without launcher, store, endpoint and arbiter.

use crate::ProcessGroup;
use crate::bootstrap::prices::cores;
use crate::control::Control;
use crate::control::group_health::GroupHealth;
use crate::control::job_context::{JobContext, Place};
use crate::control::membership::Membership;
use crate::control::notice::{Notice, Verdict};
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use crate::runtime;
use crate::warning::warn_aside;
use phalanx_core::{Deadline, Error, GroupId, Peer, Result, WORLD};
use phalanx_transport::{Transport, Wire};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

impl ProcessGroup {
    /// The group of the ranks between which `transport` has links. `names` says of each rank what errors call it besides its number (its host and process,
    /// say); operations may take as long as `timeout`. Sends nothing: the other ranks need not be there yet.
    ///
    /// All collectives and messages work as on any group. It can't be [split](Self::split) or made anew after a loss, and
    /// [`local_rank`](Self::local_rank) is 0, for nothing is known of hosts. All ranks must run the same build with the same settings: nothing compares
    /// them before the first call.
    ///
    /// # Failure
    /// A group made by [`init`](crate::init) asks an arbiter what went wrong first. Here each rank says what it has seen itself, at once:
    ///
    /// - a rank that dies is named by those that have a link with it and wait for it. A rank that waits for one of *those*, which ends because of its
    ///   error, names that one;
    /// - ranks that call different things are named, with both calls, by whichever of the two hears of the other first;
    /// - a timeout names the peers for which this rank waited, not those for which they wait;
    /// - ranks that wait for each other in a circle wait until their deadline;
    /// - [`abort`](Self::abort) and panics end this rank's calls, and those of others when this rank has dropped the group;
    /// - a rank that is stopped, or cut off without its links being closed, is late, and not lost.
    ///
    /// # Errors
    /// [`Config`](Error::Config) if there is not one name for each rank of the transport.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{ProcessGroup, ReduceOp};
    /// use phalanx_transport::thread::Pipes;
    /// use std::time::Duration;
    ///
    /// let pipes = Pipes::new(3);
    /// std::thread::scope(|ranks| {
    ///     for rank in 0..3 {
    ///         let transport = Box::new(pipes.end(rank)); // or one of your own
    ///         ranks.spawn(move || -> phalanx_core::Result<()> {
    ///             let names = ["left", "middle", "right"];
    ///             let group = ProcessGroup::over(transport, &names, Duration::from_secs(60))?;
    ///             let mut sum = [rank as f32];
    ///             group.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///             assert_eq!(sum, [3.0]);
    ///             group.finalize()
    ///         });
    ///     }
    /// });
    /// ```
    pub fn over(transport: Box<dyn Transport>, names: &[impl AsRef<str>], timeout: Duration) -> Result<Self> {
        let (rank, world_size) = (transport.rank(), transport.world_size());
        if names.len() != world_size || rank >= world_size {
            return Err(Error::config(format!(
                "ProcessGroup::over: {} names for a transport of {world_size} ranks of which this is rank {rank}",
                names.len()
            )));
        }
        let peer = |(rank, name): (usize, &_)| Peer { rank, host: AsRef::<str>::as_ref(name).to_owned() };
        let peers: Vec<_> = names.iter().enumerate().map(peer).collect();
        let membership = runtime::membership(peers[rank].clone(), world_size, timeout);
        let place = Place { rank, world_size, local_rank: 0, local_world_size: 1, timeout };
        let (links, own_word) = (Mutex::new(Some(Wire::new(transport))), OwnWord(membership.clone()));
        let job: Arc<dyn JobContext> = Arc::new(LinkedJob { place, membership, own_word, peers, links });
        let health = Arc::new(GroupHealth::new(job, WORLD, (0..world_size).collect()));
        let backend = ScheduledBackend::new(health, BackendChoice::Links, Arc::default());
        Ok(Self::new(Arc::new(backend)))
    }
}

/// A rank that knows of its job what its links show.
#[derive(Debug)]
struct LinkedJob {
    place: Place,
    membership: Arc<Membership>,
    own_word: OwnWord,
    peers: Vec<Peer>,
    /// Until the group has them.
    links: Mutex<Option<Wire>>,
}

impl JobContext for LinkedJob {
    fn open(&self, _group: GroupId, _members: &[usize]) -> Wire {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner).take();
        links.expect("the job has one group, which opens its links once")
    }

    fn control(&self) -> &dyn Control {
        &self.own_word
    }

    fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    fn peer(&self, rank: usize) -> Peer {
        self.peers[rank].clone()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn leave(&self, _deadline: &Deadline) {}

    fn remind(&self, words: &str) {
        warn_aside(&format!("rank {}", self.place.rank), words);
    }

    /// As if all ranks were on this host: nothing is known of that.
    fn ranks_share_cores(&self) -> bool {
        self.place.world_size > cores()
    }
}

/// The control plane of a rank that has no arbiter: it takes its own word for what went wrong.
#[derive(Debug)]
struct OwnWord(Arc<Membership>);

impl Control for OwnWord {
    fn send(&self, notice: Notice) -> Result<()> {
        match notice {
            Notice::Failed { group, cause, .. } => {
                self.0.hear(Verdict::Group { group, cause, through: None }, Instant::now());
                Ok(())
            }
            // Rank 0 waits until its arbiter has told the others. There is none, and nobody to tell.
            Notice::InError { cause } if self.0.me().rank == 0 => {
                self.0.hear(Verdict::InError { cause: Some(cause) }, Instant::now());
                Ok(())
            }
            // There is nobody who would know more.
            _ => Err(Error::Unavailable {
                what: "an arbiter".into(),
                tried: "ProcessGroup::over has none".into(),
            }),
        }
    }
}
