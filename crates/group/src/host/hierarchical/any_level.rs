//! A receive from any rank where some are reached over one engine and others over another: one half of it waits on each.
//!
//! A thread can't sleep for pipes in shared memory and for sockets at once, so each half waits on the thread of its engine. The half that first sees
//! a message takes the buffer that both have, and the other half withdraws. Neither has read anything of a message before.

use crate::control::group_health::GroupHealth;
use crate::engine::any_peer::AnyPeer;
use crate::engine::core::{Core, Fault, Progress};
use crate::engine::message::{Message, OnTimeout, Payload};
use crate::engine::operation::Operation;
use crate::engine::turns::Turns;
use crate::group::memory::{Extent, OwnedBuffer};
use crate::group::pending::{Bytes, Completion, Pending};
use crate::group::recv_any::Received;
use crate::progress::{Engine, Job, progress_thread};
use crate::trace::clock;
use phalanx_core::{Envelope, Error, Result, Signature};
use phalanx_transport::Direction;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An engine, and the peers that are reached over it.
#[derive(Debug, Clone)]
pub(super) struct Level {
    pub(super) engine: Arc<Engine>,
    /// As the engine counts them.
    pub(super) peers: Vec<usize>,
    /// The rank in the group of each rank of the engine.
    pub(super) ranks: Vec<usize>,
}

/// What is received, and how long that may take.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) call: Signature,
    pub(super) tag: u64,
    pub(super) limit: Duration,
    pub(super) on_timeout: OnTimeout,
}

/// What the half gets that is first.
struct Prize {
    buffer: OwnedBuffer,
    completion: Completion,
}

/// What both halves have.
struct Shared {
    prize: Mutex<Option<Prize>>,
    wanted: Wanted,
    /// In the log of messages.
    number: u64,
    /// Whose turn it is among the two levels.
    turns: Arc<Mutex<Turns>>,
}

struct Half {
    message: Message,
    /// The first of the two says for both that they wait.
    index: usize,
    level: Level,
    other: Arc<Engine>,
    shared: Arc<Shared>,
    /// Once a message has come.
    won: Option<Prize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to receive over whichever of the two levels a message comes first. If one is there already, only its level goes on.
///
/// # Errors
/// When nothing was begun.
pub(super) fn submit(
    levels: [Level; 2],
    wanted: Wanted,
    buffer: Box<dyn Bytes>,
    turns: &Arc<Mutex<Turns>>,
) -> Result<Pending> {
    levels.iter().try_for_each(|level| progress_thread::start(&level.engine))?;
    let health = &levels[0].engine.health;
    health.check_message(&wanted.call, None, wanted.tag)?;
    let (pending, completion) = Pending::new();
    let buffer = OwnedBuffer::new(buffer);
    let (tag, len) = (wanted.tag, buffer.len_bytes());
    let with = Envelope { peer: None, tag };
    let number = health.latch.messages.begin_message(&wanted.call, with, clock::now);
    let prize = Mutex::new(Some(Prize { buffer, completion }));
    let shared = Arc::new(Shared { prize, wanted, number, turns: turns.clone() });
    let engines = levels.each_ref().map(|level| level.engine.clone());
    let mut index = 0;
    let halves = levels.map(|level| {
        let (peers, call) = (level.peers.clone(), shared.wanted.call.clone());
        let message = Message::from_any(peers, (tag, number), call, len, &mut level.engine.lock());
        let other = engines[1 - index].clone();
        let half = Half { message, index, level, other, shared: shared.clone(), won: None };
        index += 1;
        half
    });
    let mut halves = halves.map(Some);
    let first = lock(turns).first(tag, &[0, 1]) % 2;
    for at in [first, 1 - first] {
        let Some(half) = &mut halves[at] else { continue };
        let engine = half.level.engine.clone();
        // Trouble is met again, and told, where the half is performed.
        if matches!(half.look(&mut engine.lock()), Ok(true)) {
            if let Some(other) = halves[1 - at].take() {
                other.message.step_aside(&mut other.level.engine.lock());
            }
            break;
        }
    }
    for half in halves.into_iter().flatten() {
        let engine = half.level.engine.clone();
        progress_thread::submit(&engine, Box::new(half));
    }
    Ok(pending)
}

impl Half {
    /// Takes a message that has come, unless the other half has taken one. Whether this is the half that goes on.
    fn look(&mut self, core: &mut Core) -> Result<bool, Fault> {
        if self.won.is_some() {
            return Ok(true);
        }
        let Some(peer) = self.message.find(core)? else { return Ok(false) };
        self.won = lock(&self.shared.prize).take();
        if self.won.is_some() {
            self.message.take(peer, core);
            lock(&self.shared.turns).taken(self.shared.wanted.tag, self.index);
            progress_thread::wake(&self.other);
        }
        Ok(self.won.is_some())
    }

    /// Whether the other half has taken a message, or ended.
    fn is_over(&self) -> bool {
        self.won.is_none() && lock(&self.shared.prize).is_none()
    }
}

impl Operation for Half {
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault> {
        let goes_on = self.look(core)?;
        if self.is_over() {
            self.message.step_aside(core);
            return Ok(Progress::Finished);
        }
        match &mut self.won {
            Some(Prize { buffer, .. }) if goes_on => match buffer.bytes() {
                Ok(bytes) => self.message.poll(core, &mut Payload::In(bytes)),
                Err(changed) => {
                    let Signature { op, site, .. } = &self.shared.wanted.call;
                    Err(Fault::Nonsense { peer: core.health.rank, what: changed.describe(*op, site) })
                }
            },
            _ => Ok(Progress::Idle),
        }
    }

    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        self.message.wants(core, wants);
    }

    fn signature(&self) -> &Signature {
        self.message.signature()
    }

    fn seq(&self) -> u64 {
        0
    }

    fn bytes(&self) -> (u64, u64) {
        self.message.bytes()
    }

    fn is_due(&self, _core: &Core) -> bool {
        // The deadline is the caller's own.
        true
    }

    fn may_be_in_vain(&self) -> bool {
        self.shared.wanted.on_timeout == OnTimeout::ReturnNoMessage || self.won.is_none() && self.index > 0
    }

    fn message(&self) -> Option<(Option<usize>, u64)> {
        Some(self.message.ends())
    }

    fn any_peer(&self) -> Option<&AnyPeer> {
        self.message.any_peer()
    }

    fn give_up(&self, health: &GroupHealth, waited: Duration) -> Option<Error> {
        let may = self.shared.wanted.on_timeout == OnTimeout::ReturnNoMessage && self.won.is_none();
        may.then(|| self.message.in_vain(health, waited))
    }
}

impl Job for Half {
    fn complete(self: Box<Self>, outcome: Result<()>) {
        let Self { message, level, other, shared, won, .. } = *self;
        if outcome.is_err() {
            message.step_aside(&mut level.engine.lock());
        }
        let prize = won.or_else(|| lock(&shared.prize).take());
        let Some(Prize { buffer, completion }) = prize else {
            // The other half has it, and says how it ended.
            return;
        };
        // There is nothing left for it to wait for.
        progress_thread::wake(&other);
        let messages = &level.engine.health.latch.messages;
        messages.end_message(shared.number, message.signature(), outcome.is_ok(), clock::now);
        let from = message.ends().0.map(|peer| level.ranks[peer]);
        completion.complete(outcome.and_then(|()| match from {
            Some(from) => Ok(Box::new(Received::new(buffer.into_inner(), from)) as Box<dyn Bytes>),
            None => Err(Error::Internal { what: "a message came from nobody".into() }),
        }));
    }

    fn is_awaited(&self) -> bool {
        let is_awaited = |prize: &Prize| prize.completion.is_awaited();
        self.won
            .as_ref()
            .map_or_else(|| lock(&self.shared.prize).as_ref().is_some_and(is_awaited), is_awaited)
    }

    fn limit(&self) -> Duration {
        self.shared.wanted.limit
    }
}
