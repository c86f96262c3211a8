//! What a process writes, on its way to who takes it: one thread reads all streams ([`Watcher`]).

use crate::watcher::{Waker, Watched, Watcher};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much of a stream is read in one go, and how often in a row before it is the others' turn.
#[cfg(unix)]
const CHUNK: usize = 16 << 10;
#[cfg(unix)]
const IN_A_ROW: usize = 4;

/// The one to whom the bytes of a stream go.
pub(crate) trait Taker: Send + 'static {
    /// How many bytes it takes now; when it is none no longer, it wakes its reader. `None`: it wants no more.
    fn room(&self) -> Option<usize>;

    /// Takes bytes, no more than there is room for.
    fn take(&mut self, bytes: &[u8]);

    /// There are no more, or none are wanted.
    fn end(&mut self);
}

/// The place where the bytes of a stream come from.
pub(crate) enum Source {
    /// The reading end of a pipe of which nobody else has it.
    #[cfg(unix)]
    Pipe(std::os::fd::OwnedFd),
    Pieces(Pieces),
}

/// What a process writes to stdout and to stderr.
pub(crate) type Output = (Source, Source);

/// A stream, and who takes it.
pub(crate) struct Stream {
    source: Source,
    taker: Box<dyn Taker>,
}

impl Stream {
    /// Begins to read a stream on the thread of `reader`.
    pub(crate) fn start(source: Source, taker: impl Taker, reader: &Watcher<Self>) {
        match &source {
            #[cfg(unix)]
            Source::Pipe(_) => {}
            Source::Pieces(pieces) => pieces.queue.lock().waker = Some(reader.waker().clone()),
        }
        reader.add(Self { source, taker: Box::new(taker) });
    }
}

impl Watched for Stream {
    #[cfg(unix)]
    fn waits_for(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match &self.source {
            Source::Pipe(pipe) if self.taker.room() != Some(0) => Some(std::os::fd::AsFd::as_fd(pipe)),
            Source::Pipe(_) | Source::Pieces(_) => None,
        }
    }

    fn advance(&mut self, is_ready: bool) -> bool {
        let will_be_more = match &mut self.source {
            #[cfg(unix)]
            Source::Pipe(pipe) => read(pipe, &mut *self.taker, is_ready),
            Source::Pieces(pieces) => pieces.hand_over(&mut *self.taker),
        };
        #[cfg(not(unix))]
        let _ = is_ready;
        if !will_be_more {
            self.taker.end();
        }
        will_be_more
    }
}

/// Reads what there is and what is wanted. Returns whether there will be more.
#[cfg(unix)]
fn read(pipe: &std::os::fd::OwnedFd, taker: &mut dyn Taker, is_ready: bool) -> bool {
    use rustix::io::Errno;
    let mut bytes = [0; CHUNK];
    for _ in 0..IN_A_ROW {
        let Some(room) = taker.room() else { return false };
        if room == 0 || !is_ready {
            return true;
        }
        match rustix::io::read(pipe, &mut bytes[..room.min(CHUNK)]) {
            Ok(0) => return false,
            Ok(n) => taker.take(&bytes[..n]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// A stream that comes in pieces, from another thread: what a process on another host writes.
pub(crate) struct Pieces {
    queue: Arc<Queue>,
    /// Called with how many bytes were taken.
    taken: Box<dyn Fn(usize) + Send>,
}

/// The end of a stream of pieces at which they are put in. The stream is at its end when this is dropped.
pub(crate) struct PieceSender {
    queue: Arc<Queue>,
    /// How many bytes may wait.
    waiting_max: usize,
}

struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    pieces: VecDeque<Vec<u8>>,
    /// How many bytes were put in and not taken.
    waiting: usize,
    is_over: bool,
    /// Nobody takes anything any more.
    is_abandoned: bool,
    waker: Option<Waker>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&self) {
        self.waker.iter().for_each(Waker::wake);
    }
}

impl Pieces {
    /// Of which no more than `waiting_max` bytes may wait; `taken` is called whenever some were taken, with their number.
    pub(crate) fn new(waiting_max: usize, taken: impl Fn(usize) + Send + 'static) -> (PieceSender, Self) {
        let queue = Arc::new(Queue(Mutex::default()));
        let sender = PieceSender { queue: Arc::clone(&queue), waiting_max };
        (sender, Self { queue, taken: Box::new(taken) })
    }

    /// Hands over what has come, as far as it is wanted. Returns whether there will be more.
    pub(crate) fn hand_over(&self, taker: &mut dyn Taker) -> bool {
        loop {
            let room = match taker.room() {
                None => return false,
                Some(0) => return true,
                Some(room) => room,
            };
            let mut state = self.queue.lock();
            let Some(mut piece) = state.pieces.pop_front() else { return !state.is_over };
            if piece.len() > room {
                let rest = piece.split_off(room);
                state.pieces.push_front(rest);
            }
            state.waiting -= piece.len();
            drop(state);
            taker.take(&piece);
            (self.taken)(piece.len());
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_abandoned = true;
        state.pieces.clear();
    }
}

impl PieceSender {
    /// Puts in one more piece. An error if more bytes wait than may.
    pub(crate) fn push(&self, piece: Vec<u8>) -> Result<(), String> {
        let mut state = self.queue.lock();
        state.waiting += piece.len();
        if state.waiting > self.waiting_max {
            return Err("it sends more output than may be on its way".into());
        }
        if !state.is_abandoned {
            state.pieces.push_back(piece);
            state.wake();
        }
        Ok(())
    }
}

impl Drop for PieceSender {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_over = true;
        state.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    const HANG: Duration = Duration::from_secs(60);

    /// Takes what it has room for, and passes it on.
    struct Passes {
        room: Arc<Mutex<Option<usize>>>,
        to: Option<Sender<Vec<u8>>>,
    }

    impl Taker for Passes {
        fn room(&self) -> Option<usize> {
            *self.room.lock().unwrap()
        }

        fn take(&mut self, bytes: &[u8]) {
            let mut room = self.room.lock().unwrap();
            *room = room.map(|room| room.saturating_sub(bytes.len()));
            self.to.as_ref().unwrap().send(bytes.to_vec()).unwrap();
        }

        fn end(&mut self) {
            self.to = None;
        }
    }

    struct Way {
        reader: Watcher<Stream>,
        room: Arc<Mutex<Option<usize>>>,
        came: Receiver<Vec<u8>>,
    }

    impl Way {
        fn new(source: Source, room: Option<usize>) -> Self {
            let reader = Watcher::start("phalanx-test", "tests").unwrap();
            let room = Arc::new(Mutex::new(room));
            let (to, came) = channel();
            Stream::start(source, Passes { room: Arc::clone(&room), to: Some(to) }, &reader);
            Self { reader, room, came }
        }

        fn give(&self, room: Option<usize>) {
            *self.room.lock().unwrap() = room;
            self.reader.waker().wake();
        }

        /// All that comes until the end.
        fn rest(&self) -> Vec<u8> {
            let mut all = Vec::new();
            loop {
                match self.came.recv_timeout(HANG) {
                    Ok(bytes) => all.extend(bytes),
                    Err(RecvTimeoutError::Disconnected) => return all,
                    Err(RecvTimeoutError::Timeout) => panic!("it has no end"),
                }
            }
        }
    }

    #[cfg(unix)]
    fn pipe() -> (Source, std::io::PipeWriter) {
        let (from, to) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&from, true).unwrap();
        (Source::Pipe(from.into()), to)
    }

    #[test]
    #[cfg(unix)]
    fn of_a_pipe_comes_what_there_is_room_for_and_the_rest_later() {
        use std::io::Write;
        let (source, mut to) = pipe();
        to.write_all(b"one two").unwrap();
        let way = Way::new(source, Some(3));
        assert_eq!(way.came.recv_timeout(HANG).unwrap(), b"one");
        drop(to);
        // Its end is not seen before all is read.
        assert_eq!(way.came.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        way.give(Some(100));
        assert_eq!(way.rest(), b" two");
    }

    #[test]
    #[cfg(unix)]
    fn many_pipes_are_read_by_one_thread() {
        use std::io::Write;
        let all: Vec<_> = (0..200).map(|_| pipe()).collect();
        let reader = Watcher::start("phalanx-test", "tests").unwrap();
        let (to, came) = channel();
        let mut ends = Vec::new();
        for (source, end) in all {
            let taker = Passes { room: Arc::new(Mutex::new(Some(usize::MAX))), to: Some(to.clone()) };
            Stream::start(source, taker, &reader);
            ends.push(end);
        }
        drop(to);
        for (number, end) in ends.iter_mut().enumerate() {
            // In one piece: what is formatted into a pipe may arrive in several.
            let text = format!("{number};");
            end.write_all(text.as_bytes()).unwrap();
            assert_eq!(came.recv_timeout(HANG).unwrap(), text.as_bytes());
        }
        drop(ends);
        assert_eq!(came.recv_timeout(HANG), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    #[cfg(unix)]
    fn what_nobody_wants_any_more_is_closed() {
        use std::io::Write;
        let (source, mut to) = pipe();
        let way = Way::new(source, Some(0));
        way.give(None);
        assert_eq!(way.rest(), b"");
        // Its end was said a moment before.
        let until = std::time::Instant::now() + HANG;
        while to.write_all(b"more").is_ok() {
            assert!(std::time::Instant::now() < until, "it is still open");
        }
    }

    #[test]
    fn pieces_are_handed_over_in_order_as_there_is_room_and_said_to_be_taken() {
        let (says, taken) = channel();
        let (sender, pieces) = Pieces::new(5, move |len| says.send(len).unwrap());
        sender.push(b"12".to_vec()).unwrap();
        sender.push(b"345".to_vec()).unwrap();
        let way = Way::new(Source::Pieces(pieces), Some(3));
        let next = || (way.came.recv_timeout(HANG).unwrap(), taken.recv_timeout(HANG).unwrap());
        assert_eq!((next(), next()), ((b"12".to_vec(), 2), (b"3".to_vec(), 1)));
        assert!(sender.push(b"6789".to_vec()).is_err(), "that is more than may wait");
        drop(sender);
        way.give(Some(10));
        assert_eq!(way.rest(), b"45");
    }

    #[test]
    fn pieces_that_nobody_takes_are_not_kept() {
        let (sender, pieces) = Pieces::new(5, |_| {});
        drop(pieces);
        sender.push(b"one".to_vec()).unwrap();
        assert!(sender.queue.lock().pieces.is_empty());
    }
}
