//! What a launcher must know of the job's other hosts.

use super::address::{own_rendezvous, split};
use phalanx_core::{Error, Result};
use phalanx_transport::Secret;
use std::fmt;

/// Most hosts of a job. It stops a typing mistake from being waited for.
const NODES_MAX: usize = 4096;

/// This host among those of a job, each of which has a launcher of its own: see [`Launch::node`](crate::Launch::node).
#[derive(Clone)]
pub struct Node {
    pub(crate) rank: usize,
    pub(crate) count: usize,
    pub(crate) rendezvous: String,
    pub(crate) secret: Secret,
}

impl Node {
    /// Host number `rank` of `count`, counted from 0. The launcher of number 0 listens at `rendezvous` (`host:port`) and leads the job; the others
    /// call it there. All prove by `secret` that they belong together; it does not travel.
    ///
    /// # Errors
    /// [`Error::Config`]: there is no such host, there are too many, or `rendezvous` is not `host:port`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::{Node, Secret};
    ///
    /// let secret = Secret::generate()?; // the same for all: from a file
    /// assert!(Node::new(1, 3, "node-0:29500", secret.clone()).is_ok());
    /// assert!(Node::new(3, 3, "node-0:29500", secret).is_err()); // they count from 0
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(rank: usize, count: usize, rendezvous: impl Into<String>, secret: Secret) -> Result<Self> {
        let rendezvous = rendezvous.into();
        if !(1..=NODES_MAX).contains(&count) {
            return Err(Error::config(format!(
                "the number of hosts (--nnodes): a job has 1 to {NODES_MAX} hosts, not {count}"
            )));
        }
        if rank >= count {
            return Err(Error::config(format!(
                "node rank {rank} of {count} hosts: they count from 0 (--node-rank, --nnodes)"
            )));
        }
        if split(&rendezvous)?.1 == 0 {
            return Err(Error::config(format!(
                "--rendezvous is {rendezvous:?}, and the others have to know the port"
            )));
        }
        Ok(Self { rank, count, rendezvous, secret })
    }

    /// The first of so many hosts, on which the launcher starts the agents itself, and can tell them any port.
    pub(crate) fn first(count: usize, rendezvous: Option<String>, secret: Secret) -> Result<Self> {
        let rendezvous = match rendezvous {
            Some(rendezvous) => rendezvous,
            None => own_rendezvous(),
        };
        split(&rendezvous)?;
        Ok(Self { rank: 0, count, rendezvous, secret })
    }

    /// The same, of a job that encrypts.
    pub(crate) fn encrypting(self) -> Self {
        Self { secret: self.secret.encrypting(), ..self }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, count, rendezvous, secret: _ } = self;
        f.debug_struct("Node")
            .field("rank", rank)
            .field("count", count)
            .field("rendezvous", rendezvous)
            .finish_non_exhaustive()
    }
}
