//! Ranks as processes anywhere: one TCP connection for each pair of ranks that talk, made on first use.
//!
//! A [`TcpTransport`] is one group's share of the process's [`Exchange`], which makes the links. Its sockets are nonblocking and
//! driven by the threads that perform operations. In a job that encrypts they are sealed; shared memory never leaves the host and is not.

pub use crate::exchange::Exchange;

use crate::connection::Connection;
use crate::direction::Direction;
use crate::endpoint::Dial;
use crate::exchange::Mailbox;
use crate::handshake::{Hello, Purpose};
use crate::io_outcome::moved;
use crate::owner_process::OwnerProcess;
use crate::reachability::Reachability;
use crate::transport::{LinkFault, Transport};
use crate::wait::Wait;
use phalanx_core::{Deadline, GroupId, Result};
use std::io::{IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Exchange {
    /// This rank's end of the links of `group`, whose members (ranks of the job, in group order) listen at `addrs`.
    /// A link that does not stand `link_timeout` after its first use is a [`LinkFault::Unreachable`].
    ///
    /// # Panics
    /// If this rank is not among the members, or there is not one address a member.
    pub fn open(
        &self,
        group: GroupId,
        members: Vec<usize>,
        addrs: Vec<SocketAddr>,
        link_timeout: Duration,
    ) -> TcpTransport {
        assert_eq!(members.len(), addrs.len(), "one address a member");
        let rank = members.iter().position(|&m| m == self.rank).expect("this rank is a member");
        let mailbox = self.mailbox(group);
        let links = members.iter().map(|_| Link::Unused).collect();
        let reachability = members.iter().map(|_| Reachability::default()).collect();
        TcpTransport {
            owner_process: OwnerProcess::here(),
            exchange: self.clone(),
            group,
            rank,
            members,
            addrs,
            link_timeout,
            silence: None,
            mailbox,
            links,
            reachability,
        }
    }
}

#[derive(Debug)]
enum Link {
    Unused,
    Dialling,
    Up(Connection),
    Down(LinkFault),
}

/// The links of one group over TCP. Dropping it closes them.
#[derive(Debug)]
pub struct TcpTransport {
    owner_process: OwnerProcess,
    exchange: Exchange,
    group: GroupId,
    rank: usize,
    members: Vec<usize>,
    addrs: Vec<SocketAddr>,
    link_timeout: Duration,
    silence: Option<Duration>,
    mailbox: Arc<Mailbox>,
    links: Vec<Link>,
    reachability: Vec<Reachability>,
}

impl TcpTransport {
    /// A link for which somebody waits is [unreachable](LinkFault::Unreachable) when nothing has answered for as long as `limit` at
    /// the address of its peer. It is asked after half of that without a byte, so a path that is cut is noticed in one and a half times
    /// `limit`. A peer that only takes its time is waited for.
    #[must_use]
    pub fn notice_cuts(mut self, limit: Option<Duration>) -> Self {
        self.silence = limit;
        self
    }

    /// Looks after a link that stands and is waited for.
    fn look(&mut self, peer: usize) -> Result<(), LinkFault> {
        let Some(limit) = self.silence else { return Ok(()) };
        self.reachability[peer].look(self.addrs[peer], limit, Instant::now()).map_err(|why| {
            let fault = LinkFault::Unreachable(why);
            self.links[peer] = Link::Down(fault.clone());
            fault
        })
    }

    /// The link with `peer`, if it stands; begins to make it if nobody has.
    fn link(&mut self, peer: usize) -> Result<Option<&mut Connection>, LinkFault> {
        self.empty_mailbox();
        if matches!(self.links[peer], Link::Unused) {
            self.links[peer] = Link::Dialling;
            self.dial(peer);
        }
        match &mut self.links[peer] {
            Link::Up(connection) => Ok(Some(connection)),
            Link::Down(fault) => Err(fault.clone()),
            Link::Unused | Link::Dialling => Ok(None),
        }
    }

    fn empty_mailbox(&mut self) {
        if !self.mailbox.is_full() {
            return;
        }
        for (peer, link) in self.mailbox.empty() {
            let Some(index) = self.members.iter().position(|&m| m == peer) else { continue };
            self.links[index] = match link {
                Ok(connection) => Link::Up(connection),
                Err(fault) => Link::Down(fault),
            };
        }
    }

    fn dial(&self, peer: usize) {
        let dial = Dial {
            peer: self.members[peer],
            addr: self.addrs[peer],
            hello: Hello {
                purpose: Purpose::Data,
                rank: self.exchange.rank as u32,
                called: self.members[peer] as u32,
                world_size: self.exchange.world_size as u32,
                group: self.group,
            },
            deadline: Deadline::after(Instant::now(), self.link_timeout),
        };
        self.exchange.dial(dial);
    }

    /// Notes a broken link.
    fn down(&mut self, peer: usize, fault: LinkFault) -> LinkFault {
        self.links[peer] = Link::Down(fault.clone());
        fault
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        let Some(connection) = self.link(peer)? else { return Ok(0) };
        // What the peer sent before it closed can still be read.
        let Some(n) = moved(connection.writer.write_vectored(bytes))? else { return Ok(0) };
        self.reachability[peer].stands();
        Ok(n)
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let Some(connection) = self.link(peer)? else { return Ok(0) };
        match moved(connection.reader.read(buffer)) {
            Ok(None) => Ok(0),
            Ok(Some(0)) => Err(self.down(peer, LinkFault::Closed)),
            Ok(Some(n)) => {
                self.reachability[peer].stands();
                Ok(n)
            }
            Err(fault) => Err(self.down(peer, fault)),
        }
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        self.empty_mailbox();
        matches!(self.links[peer], Link::Up(_))
    }

    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        if matches!(self.links[peer], Link::Up(_)) && self.look(peer).is_err() {
            return true;
        }
        match self.link(peer) {
            Ok(Some(connection)) => {
                wait.add(connection.stream(), direction);
                direction == Direction::Recv && connection.reader.is_ready()
            }
            Ok(None) => self.mailbox.watch(wait.waker()),
            Err(_) => true,
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        if !self.owner_process.is_here() {
            return;
        }
        // A child that was forked may hold copies, so closing is not enough for the others to see the end.
        for link in &self.links {
            if let Link::Up(connection) = link {
                let _ = connection.stream().shutdown(std::net::Shutdown::Write);
            }
        }
        self.exchange.close(self.group);
    }
}
