//! The output of a process on its way to the leader: never more than that has asked for.

use super::protocol::{PIECE, Stream, WINDOW, Word, encode};
use crate::stream::{self, Source, Taker};
use crate::watcher::{Waker, Watcher};
use phalanx_transport::SessionSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much of a stream may still be sent; `None`: nothing more is.
#[derive(Debug, Clone)]
pub(super) struct Credit {
    room: Arc<Mutex<Option<usize>>>,
    /// Woken when something may be sent again.
    waker: Waker,
}

impl Credit {
    fn lock(&self) -> MutexGuard<'_, Option<usize>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leader has taken so much.
    pub(super) fn taken(&self, bytes: usize) {
        if let Some(room) = &mut *self.lock() {
            let was_none = *room == 0;
            *room = room.saturating_add(bytes).min(WINDOW);
            if was_none {
                self.waker.wake();
            }
        }
    }

    /// Whether nothing more is sent.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Nobody wants the rest, or there is none.
    pub(super) fn close(&self) {
        *self.lock() = None;
        self.waker.wake();
    }

    fn spend(&self, bytes: usize) {
        if let Some(room) = &mut *self.lock() {
            *room -= bytes.min(*room);
        }
    }
}

/// Begins to send what a process writes to a stream.
pub(super) fn start(
    task: u64,
    stream: Stream,
    source: Source,
    sender: &Arc<SessionSender>,
    reader: &Watcher<stream::Stream>,
) -> Credit {
    let credit = Credit { room: Arc::new(Mutex::new(Some(WINDOW))), waker: reader.waker().clone() };
    let feed = Feed { task, stream, sender: Arc::clone(sender), left: credit.clone() };
    stream::Stream::start(source, feed, reader);
    credit
}

/// Sends what a process writes.
struct Feed {
    task: u64,
    stream: Stream,
    sender: Arc<SessionSender>,
    left: Credit,
}

impl Feed {
    /// If the leader is gone, the other half of the session shows it.
    fn say(&self, word: &Word) -> bool {
        self.sender.send(&encode(word)).is_ok()
    }
}

impl Taker for Feed {
    fn room(&self) -> Option<usize> {
        self.left.lock().map(|room| room.min(PIECE))
    }

    fn take(&mut self, bytes: &[u8]) {
        let (task, stream, bytes) = (self.task, self.stream, bytes.to_vec());
        self.left.spend(bytes.len());
        if !self.say(&Word::Output { task, stream, bytes }) {
            self.left.close();
        }
    }

    fn end(&mut self) {
        self.left.close();
        self.say(&Word::Closed { task: self.task, stream: self.stream });
    }
}
