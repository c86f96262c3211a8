//! The connections of one simulated process: the true endpoint and exchange over simulated sockets, and the line to the arbiter.

use super::job::Seat;
use super::network::Net;
use super::random::Random;
use super::stream::{SimSockets, port};
use crate::bootstrap::arbiter_service::ArbiterService;
use phalanx_core::{Deadline, WORLD};
use phalanx_transport::handshake::{Hello, Purpose};
use phalanx_transport::simulated::{Call, Process, Session};
use phalanx_transport::{Secret, Service};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that the system keeps for a process which does not read its line.
const LINE_CAPACITY: usize = 64 << 10;

/// The connections of one process.
#[derive(Debug)]
pub(super) struct Connections {
    net: Net,
    random: Random,
    pub(super) process: Process<SimSockets>,
    /// The call to the arbiter, while it is under way; then the line, or why there is none.
    call: Option<Call<SimSockets>>,
    pub(super) line: Option<Session<SimSockets>>,
    pub(super) no_line: Option<String>,
}

/// A process's connections, for its transports too.
#[derive(Debug, Clone)]
pub(super) struct SharedConnections(Arc<Mutex<Connections>>);

impl SharedConnections {
    /// One thread uses it, so nobody ever waits for the lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    /// That of a process in a generation, which begins to call the arbiter. Connections that it makes hold `capacity` bytes each way.
    pub(super) fn open(
        net: &Net,
        secret: &Secret,
        seat: &Seat,
        heartbeat: Option<Duration>,
        capacity: usize,
        deadline: Deadline,
        random: Random,
    ) -> SharedConnections {
        let (me, rank, world_size) = (seat.me, seat.rank, seat.world_size());
        let secret = secret.of_generation(seat.generation);
        let port = port(seat.generation);
        let now = {
            let mut network = net.lock();
            network.listen(me, port);
            network.now
        };
        let arbiter = (rank == 0).then(|| ArbiterService::new(world_size, heartbeat, None, now));
        let control = arbiter.map(|arbiter| Box::new(arbiter) as Box<dyn Service<_>>);
        let (own, world) = (rank as u32, world_size as u32);
        let hello =
            Hello { purpose: Purpose::Control, rank: own, called: 0, world_size: world, group: WORLD };
        let sockets = |capacity| SimSockets::new(net, (me, port), seat.roster.clone(), capacity);
        let line = sockets(LINE_CAPACITY);
        let call = Call::new(line, seat.address(0), secret.clone(), hello, deadline, now);
        SharedConnections(Arc::new(Mutex::new(Self {
            net: net.clone(),
            random,
            process: Process::new(sockets(capacity), secret, rank, world_size, control),
            call: Some(call),
            line: None,
            no_line: None,
        })))
    }

    /// Whether anything it was given is not on its way yet.
    pub(super) fn is_writing(&self) -> bool {
        self.process.is_writing() || self.line.as_ref().is_some_and(Session::is_writing)
    }

    /// When to look again though nothing has come.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.process.until(now).into_iter().chain(self.call.as_ref().map(Call::until)).min()
    }

    /// Does all that can be done now.
    pub(super) fn advance(&mut self) {
        let now = self.net.lock().now;
        let Self { random, process, call, .. } = self;
        let mut nonces = || Ok(random.array());
        process.advance(&mut nonces, now);
        match call.as_mut().and_then(|call| call.advance(&mut nonces, now)) {
            None => return,
            Some(Ok(line)) => self.line = Some(line),
            Some(Err(why)) => self.no_line = Some(why),
        }
        self.call = None;
    }
}
