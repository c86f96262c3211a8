//! Messages whose caller waits until all of them are done: one, or a batch of them.
//!
//! They run side by side, so that none waits for another that was named before it, and each leaves its queue when it is done.

use crate::any_peer::AnyPeer;
use crate::core::{Core, Fault, Progress};
use crate::eager::EAGER_LIMIT;
use crate::message::{Message, OnTimeout, Payload};
use crate::operation::Operation;
use phalanx_control::group_health::GroupHealth;
use phalanx_core::{Error, Signature};
use phalanx_transport::Direction;
use std::time::Duration;

/// A message with the bytes that its caller lends it.
#[derive(Debug)]
pub struct Borrowed<'a> {
    message: Message,
    /// In the log of messages.
    number: u64,
    payload: Payload<'a>,
    is_done: bool,
}

impl<'a> Borrowed<'a> {
    /// A message that has begun, with this number.
    pub fn new(message: Message, number: u64, payload: Payload<'a>) -> Self {
        Self { message, number, payload, is_done: false }
    }

    fn end(&mut self, core: &Core, well: bool) {
        self.is_done = well;
        core.health.latch.messages.end_message(self.number, self.message.signature(), well, core.log_clock);
    }

    /// Whether it can be sent while nobody waits for it.
    fn is_short_send(&self) -> bool {
        matches!(&self.payload, Payload::Out(bytes) if bytes.len() <= EAGER_LIMIT)
    }
}

/// Messages that one caller waits for. There is at least one.
#[derive(Debug)]
pub struct Batch<'a> {
    messages: Vec<Borrowed<'a>>,
    /// The message that errors tell of: the first that is not done, or the one that failed.
    told: usize,
    on_timeout: OnTimeout,
}

impl<'a> Batch<'a> {
    /// Of these messages. `on_timeout`: what it means that none has begun when the time is over.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(messages: Vec<Borrowed<'a>>, on_timeout: OnTimeout) -> Self {
        assert!(!messages.is_empty(), "a batch of messages has one");
        Self { messages, told: 0, on_timeout }
    }

    fn left(&self) -> impl Iterator<Item = &Borrowed<'a>> + Clone {
        self.messages.iter().filter(|borrowed| !borrowed.is_done)
    }

    /// Whether all that is left can be sent while nobody waits for it, if there is room.
    pub fn is_short_sends(&self) -> bool {
        self.left().all(Borrowed::is_short_send)
    }

    /// Makes [room](crate::eager) for all that is left, if there is any.
    pub fn reserve(&self, core: &mut Core) -> bool {
        let each = self.left().map(|borrowed| (borrowed.message.peer(), borrowed.payload.len()));
        core.eager.reserve_all(each)
    }

    /// The sends that are left, for which there [is room](Self::reserve): each with its number and its bytes.
    pub fn into_eager(self) -> impl Iterator<Item = (Message, u64, &'a [u8])> {
        let left = self.messages.into_iter().filter(|borrowed| !borrowed.is_done);
        left.filter_map(|Borrowed { message, number, payload, .. }| match payload {
            Payload::Out(bytes) => Some((message.eager(), number, bytes)),
            Payload::In(_) => None,
        })
    }

    /// Ends what is left: nobody waits for it any more.
    pub fn withdraw(mut self, core: &mut Core) {
        for borrowed in self.messages.iter_mut().filter(|borrowed| !borrowed.is_done) {
            borrowed.message.step_aside(core);
            borrowed.end(core, false);
        }
    }

    /// The other end of the message that errors tell of: of the only one, where any peer might send it, the one that did.
    pub fn sender(&self) -> Option<usize> {
        self.told().ends().0
    }

    fn told(&self) -> &Message {
        &self.messages[self.told].message
    }
}

impl Operation for Batch<'_> {
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault> {
        let mut progress = Progress::Idle;
        for (at, borrowed) in self.messages.iter_mut().enumerate().filter(|(_, one)| !one.is_done) {
            match borrowed.message.poll(core, &mut borrowed.payload) {
                Ok(Progress::Idle) => {}
                Ok(Progress::Moved) => progress = Progress::Moved,
                Ok(Progress::Finished) => {
                    borrowed.end(core, true);
                    progress = Progress::Moved;
                }
                Err(fault) => {
                    self.told = at;
                    return Err(fault);
                }
            }
        }
        match self.messages.iter().position(|borrowed| !borrowed.is_done) {
            Some(first) => self.told = first,
            None => progress = Progress::Finished,
        }
        Ok(progress)
    }

    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        for borrowed in self.left() {
            let before = wants.len();
            borrowed.message.wants(core, wants);
            // Each link once, however many messages go over it.
            if wants.get(before).is_some_and(|link| wants[..before].contains(link)) {
                wants.truncate(before);
            }
        }
    }

    fn signature(&self) -> &Signature {
        self.told().signature()
    }

    fn seq(&self) -> u64 {
        0
    }

    fn bytes(&self) -> (u64, u64) {
        let each = self.messages.iter().map(|borrowed| borrowed.message.bytes());
        each.fold((0, 0), |(done, all), (more, of)| (done + more, all + of))
    }

    fn is_due(&self, _core: &Core) -> bool {
        // Waiting in line for an earlier message counts: the deadline is the caller's own.
        true
    }

    fn may_be_in_vain(&self) -> bool {
        self.on_timeout == OnTimeout::ReturnNoMessage
    }

    fn message(&self) -> Option<(Option<usize>, u64)> {
        Some(self.told().ends())
    }

    fn any_peer(&self) -> Option<&AnyPeer> {
        self.told().any_peer()
    }

    /// A message of which any byte was seen can't be withdrawn.
    fn give_up(&self, health: &GroupHealth, waited: Duration) -> Option<Error> {
        let has_begun = || self.messages.iter().any(|borrowed| borrowed.message.has_begun());
        if self.on_timeout == OnTimeout::FailGroup || has_begun() {
            return None;
        }
        Some(self.told().in_vain(health, waited))
    }
}
