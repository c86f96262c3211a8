//! The output of a process on its way to the leader: never more than that has asked for.

use super::protocol::{PIECE, Stream, WINDOW, Word, encode};
use phalanx_transport::SessionSender;
use std::io::{self, ErrorKind, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// How much of a stream may still be sent.
#[derive(Debug, Clone)]
pub(super) struct Credit(Arc<(Mutex<Option<usize>>, Condvar)>);

impl Credit {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(Some(WINDOW)), Condvar::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Option<usize>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leader has taken so much.
    pub(super) fn taken(&self, bytes: usize) {
        if let Some(room) = &mut *self.lock() {
            *room = room.saturating_add(bytes).min(WINDOW);
        }
        self.0.1.notify_all();
    }

    /// Whether nothing more is sent.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Nobody wants the rest, or there is none.
    pub(super) fn close(&self) {
        *self.lock() = None;
        self.0.1.notify_all();
    }

    /// Waits until something may be sent, and says how much; `None`: nothing any more.
    fn wait(&self) -> Option<usize> {
        let room = self.0.1.wait_while(self.lock(), |room| *room == Some(0));
        *room.unwrap_or_else(PoisonError::into_inner)
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
    input: impl Read + Send + 'static,
    sender: &Arc<SessionSender>,
) -> io::Result<Credit> {
    let credit = Credit::new();
    let (sender, left) = (Arc::clone(sender), credit.clone());
    let feed = move || {
        pass(task, stream, input, &sender, &left);
        left.close();
        // If the leader is gone, the other half of the session shows it.
        let _ = sender.send(&encode(&Word::Closed { task, stream }));
    };
    thread::Builder::new().name("phalanx-feed".to_owned()).spawn(feed)?;
    Ok(credit)
}

fn pass(task: u64, stream: Stream, mut input: impl Read, sender: &SessionSender, left: &Credit) {
    let mut piece = vec![0; PIECE];
    while let Some(room) = left.wait() {
        let read = match input.read(&mut piece[..room.min(PIECE)]) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        left.spend(read);
        let word = Word::Output { task, stream, bytes: piece[..read].to_vec() };
        if sender.send(&encode(&word)).is_err() {
            return;
        }
    }
}
