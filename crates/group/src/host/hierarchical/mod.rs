//! The backend for ranks on several hosts of which some have several: a backend made of backends.
//!
//! Ranks of one host share memory, and only what must goes over the network: each host's sum instead of each rank's
//! contribution, once to each host instead of once to each rank. Where all hosts have equally many ranks, these
//! talk to the other hosts side by side, each about its part; else the first of each host speaks for all.
//! Operations in which every rank has something else for every other go straight over TCP. Messages to ranks of the own host
//! go through pipes in shared memory, those to others over TCP.
//!
//! The levels have one [`GroupHealth`]: whoever notices trouble at one of them fails the group. Every part of a call carries the
//! signature of the whole, and its number.

mod any_level;
mod hosts;
mod levels;

pub(crate) use hosts::Hosts;

use crate::control::group_health::GroupHealth;
use crate::engine::turns::Turns;
use crate::group::backend::{Address, Backend, BufferMemory, HostMessage, OnTimeout, root_error};
use crate::group::call::{HostCall, OwnedCall};
use crate::group::pending::{Bytes, Pending};
use crate::group::recv_any::Received;
use crate::group::request::Request;
use crate::group::work::taken_back;
use crate::host::BackendChoice;
use crate::host::call_thread::{self, CallThread, Performer};
use crate::host::host_context::HostContext;
use crate::host::memory_sharing::MemorySharing;
use crate::host::scheduled::ScheduledBackend;
use crate::host::shm::{self, ShmTeam, window_len};
use crate::trace::Trace;
use any_level::{Level, Wanted};
use levels::Levels;
use phalanx_algo::{Kind, SLICED_BYTES_MIN, Selector};
use phalanx_core::{Cause, Deadline, Error, GroupId, Peer, Result, Signature};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One group on one rank, with members on several hosts.
#[derive(Debug)]
pub(crate) struct HierarchicalBackend {
    levels: Arc<Levels>,
    /// Carries messages between the members on this host, in their order there; `None` where this rank is the only one.
    messages_intra: Option<ScheduledBackend>,
    /// On which level a message from any rank was received last.
    turns: Arc<Mutex<Turns>>,
}

impl HierarchicalBackend {
    /// Joins the ranks of this host. Collective among the members of a group.
    pub(crate) fn join(
        job: &Arc<dyn HostContext>,
        health: Arc<GroupHealth>,
        call: &Signature,
        choice: BackendChoice,
        selector: Arc<Selector>,
        deadline: &Deadline,
    ) -> Result<Self> {
        let members = health.members();
        let sharing = MemorySharing::new(&*health.job, members);
        let hosts = Hosts::of(members, |rank| sharing.host_of(rank));
        let (host, index) = hosts.place(health.rank);
        let of_job = |ranks: &[usize]| ranks.iter().map(|&rank| members[rank]).collect::<Vec<_>>();
        let neighbours = of_job(hosts.members(host));
        let (messages_intra, intra) = match neighbours.len() {
            1 => (None, None),
            _ => {
                let health = Arc::new(health.part(neighbours));
                let messages = shm::messages(job, health.clone(), call, choice, selector.clone(), deadline)?;
                (Some(messages), Some(ShmTeam::join(job, health, call, deadline)?))
            }
        };
        // What is forced concerns whole operations, and not the parts between hosts.
        let between_hosts = Arc::new(Selector { forced: BTreeMap::new(), ..(*selector).clone() });
        let inter = (index == 0 || hosts.per_host().is_some()).then(|| {
            let counterparts = of_job(&hosts.counterparts(index));
            let links = GroupId(Signature::detail_of(&[health.latch.group().0 as usize, ACROSS, index]));
            let wire = health.job.open(links, &counterparts);
            ScheduledBackend::over(wire, Arc::new(health.part(counterparts)), choice, between_hosts)
        });
        let flat = ScheduledBackend::new(health.clone(), choice, selector);
        let levels = Arc::new(Levels {
            health,
            hosts,
            intra,
            inter,
            flat,
            sliced_from: SLICED_BYTES_MIN,
            warned: Mutex::default(),
            call_thread: CallThread::default(),
            seq: Mutex::default(),
        });
        Ok(Self { levels, messages_intra, turns: Arc::default() })
    }

    /// The same, with another idea of when to slice: no build has it.
    #[cfg(test)]
    pub(crate) fn slicing_from(mut self, bytes: usize) -> Self {
        Arc::get_mut(&mut self.levels).expect("nothing runs yet").sliced_from = bytes;
        self
    }

    /// What carries messages inside this host, and what carries them across; `None` where this rank is the only one of its host.
    fn both_levels(&self) -> Option<[Level; 2]> {
        let intra = self.messages_intra.as_ref()?;
        let (hosts, own) = (&self.levels.hosts, self.rank());
        let (host, index) = hosts.place(own);
        let neighbours = hosts.members(host);
        let world_size = self.members().len();
        let inside = Level {
            engine: intra.engine.clone(),
            peers: (0..neighbours.len()).filter(|&peer| peer != index).collect(),
            ranks: neighbours.to_vec(),
        };
        let across = Level {
            engine: self.levels.flat.engine.clone(),
            peers: (0..world_size).filter(|&peer| hosts.place(peer).0 != host).collect(),
            ranks: (0..world_size).collect(),
        };
        Some([across, inside])
    }

    /// What carries messages to or from `address`, and the address as it is known there.
    fn route(&self, address: Address) -> (&ScheduledBackend, Address) {
        let hosts = &self.levels.hosts;
        let (host, index) = hosts.place(address.peer);
        match &self.messages_intra {
            Some(intra) if host == hosts.place(self.rank()).0 => (intra, Address { peer: index, ..address }),
            _ => (&self.levels.flat, address),
        }
    }
}

/// Tells the names of links between hosts from those of groups, which are made of numbers of splits.
const ACROSS: usize = usize::MAX;

impl Backend for HierarchicalBackend {
    fn name(&self) -> &'static str {
        "two-level"
    }

    fn describe(&self) -> String {
        let (health, hosts) = (&self.levels.health, self.levels.hosts.describe());
        let why_not = MemorySharing::new(&*health.job, health.members()).why_not();
        let why_not = why_not.map_or_else(String::new, |why| format!("; {why}"));
        let never_taken = self.levels.flat.never_taken(Kind::Levels);
        format!("two-level: {hosts}: shm inside, tcp across{why_not}{never_taken}")
    }

    fn id(&self) -> GroupId {
        self.levels.health.latch.group()
    }

    fn rank(&self) -> usize {
        self.levels.health.rank
    }

    fn members(&self) -> &[usize] {
        self.levels.health.members()
    }

    fn local(&self) -> (usize, usize) {
        self.levels.flat.local()
    }

    fn timeout(&self) -> Duration {
        self.levels.flat.timeout()
    }

    fn perform(&self, call: HostCall<'_>, timeout: Duration) -> Result<()> {
        call_thread::wait_until_empty(&*self.levels);
        self.levels.perform(call, timeout)
    }

    fn submit(&self, call: OwnedCall, timeout: Duration) -> Result<Pending> {
        call.check_place(self.rank(), self.members().len())?;
        self.levels.health.check(call.signature(), || self.levels.health.latch.next_collective())?;
        self.levels.flat.check_order(call.signature())?;
        call_thread::submit(&self.levels, call, timeout)
    }

    fn send(&self, to: Address, bytes: &[u8], timeout: Duration) -> Result<()> {
        let (messages, to) = self.route(to);
        messages.send(to, bytes, timeout)
    }

    fn recv(&self, from: Address, bytes: &mut [u8], timeout: Duration, on_timeout: OnTimeout) -> Result<()> {
        let (messages, from) = self.route(from);
        messages.recv(from, bytes, timeout, on_timeout)
    }

    fn recv_any(
        &self,
        call: Signature,
        tag: u64,
        bytes: &mut [u8],
        timeout: Duration,
        on_timeout: OnTimeout,
    ) -> Result<usize> {
        let Some(levels) = self.both_levels() else {
            return self.levels.flat.recv_any(call, tag, bytes, timeout, on_timeout);
        };
        let _in_vain = self.levels.flat.in_vain(on_timeout);
        let buffer = Box::new(vec![0u8; bytes.len()]);
        let wanted = Wanted { call, tag, limit: timeout, on_timeout };
        let received = any_level::submit(levels, wanted, buffer, &self.turns)?.wait()?;
        let (message, from) = taken_back::<Received>(received.into_any())?.into_parts::<Vec<u8>>()?;
        bytes.copy_from_slice(&message);
        Ok(from)
    }

    fn submit_recv_any(
        &self,
        call: Signature,
        tag: u64,
        buffer: Box<dyn Bytes>,
        timeout: Duration,
    ) -> Result<Pending> {
        let Some(levels) = self.both_levels() else {
            return self.levels.flat.submit_recv_any(call, tag, buffer, timeout);
        };
        let wanted = Wanted { call, tag, limit: timeout, on_timeout: OnTimeout::FailGroup };
        any_level::submit(levels, wanted, buffer, &self.turns)
    }

    fn perform_messages(&self, messages: Vec<HostMessage<'_>>, timeout: Duration) -> Result<()> {
        let (mut inside, mut across) = (Vec::new(), Vec::new());
        for HostMessage { address, payload } in messages {
            let (carrier, address) = self.route(address);
            let is_across = std::ptr::eq(carrier, &raw const self.levels.flat);
            let part = if is_across { &mut across } else { &mut inside };
            part.push(HostMessage { address, payload });
        }
        let flat = &self.levels.flat;
        match &self.messages_intra {
            Some(intra) if across.is_empty() => intra.perform_messages(inside, timeout),
            Some(intra) if !inside.is_empty() => side_by_side((intra, inside), (flat, across), timeout),
            Some(_) | None => flat.perform_messages(across, timeout),
        }
    }

    fn submit_message(&self, address: Address, buffer: Box<dyn Bytes>, timeout: Duration) -> Result<Pending> {
        let (messages, address) = self.route(address);
        messages.submit_message(address, buffer, timeout)
    }

    fn alloc(&self, signature: Signature, len: usize, timeout: Duration) -> Result<BufferMemory> {
        // The same answer on all ranks, before any has sent something.
        window_len(self.levels.hosts.most_members(), &signature, len)?;
        // All come with the same length, or learn here that they do not.
        let call = HostCall::new(&signature, Request::Barrier, self.rank(), self.members().len())?;
        // Its time does not run while others have their turn.
        call_thread::wait_until_empty(&*self.levels);
        let deadline = Deadline::after(Instant::now(), timeout);
        self.levels.perform(call, timeout)?;
        match &self.levels.intra {
            Some(intra) if intra.can_share(len, &signature) => intra.alloc(&signature, len, &deadline),
            _ => Ok(BufferMemory::Private(vec![0; len.div_ceil(8)])),
        }
    }

    fn forgo(&self, id: GroupId, why: &Error) {
        self.levels.health.forgo(id, why);
    }

    fn trace(&self) -> Option<Trace> {
        Some(self.levels.health.trace())
    }

    fn peer(&self, rank: usize) -> Peer {
        self.levels.health.peer(rank)
    }

    fn failure(&self) -> Option<Cause> {
        self.levels.health.latch.cause().cloned()
    }

    fn fail(&self, cause: Cause) -> Cause {
        self.levels.health.give_up(cause)
    }

    fn leave(&self) {
        self.levels.flat.leave();
    }
}

/// Messages and what carries them.
type Part<'a> = (&'a ScheduledBackend, Vec<HostMessage<'a>>);

/// Performs both parts at the same time. A thread can't sleep for pipes in shared memory and for sockets at once, so the first part has one of its own.
fn side_by_side(inside: Part<'_>, across: Part<'_>, timeout: Duration) -> Result<()> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("phalanx-messages".into());
        let inside = thread.spawn_scoped(scope, || inside.0.perform_messages(inside.1, timeout));
        let inside =
            inside.map_err(|e| Error::io("starting a thread for the messages inside the host", e))?;
        let across = across.0.perform_messages(across.1, timeout);
        let inside = inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (across, inside) {
            (Err(error), Err(other)) => Err(root_error(error, [other])),
            (across, inside) => across.and(inside),
        }
    })
}

impl Drop for HierarchicalBackend {
    fn drop(&mut self) {
        let health = &self.levels.health;
        if health.is_here() {
            if std::thread::panicking() {
                health.panicked();
            }
            self.levels.call_thread.end(health);
        }
    }
}
