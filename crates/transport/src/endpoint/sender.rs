//! The half of a session that sends. It never waits for its peer: what the stream does not take at once is kept, and a thread writes it while
//! there is something to write.

use super::limits::MESSAGE_LEN_MAX;
use super::message::{Message, Unsent};
use crate::connection::Writer;
use crate::self_pipe;
use phalanx_core::{Deadline, Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A peer that takes nothing of what waits for so long is given up.
const STUCK_TIME: Duration = Duration::from_secs(10);
/// How often the writing thread looks how long nothing has moved.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often a flush tries again where there is no such thread.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The half of a [`Session`](crate::Session) that sends. Threads may share it.
///
/// What is not written yet when it is dropped is still written, while the process lives and the other side takes it.
#[derive(Debug)]
pub struct SessionSender {
    sending: Arc<Sending>,
}

/// The state that the sender shares with the thread that writes for it.
#[derive(Debug)]
pub(super) struct Sending {
    stream: Arc<TcpStream>,
    peer: SocketAddr,
    stuck_after: Duration,
    state: Mutex<State>,
    /// Notified when all is written, or nothing more will be.
    settled: Condvar,
}

#[derive(Debug)]
struct State {
    writer: Writer,
    unsent: Unsent,
    /// A thread writes it.
    has_thread: bool,
    /// Why nothing more is sent.
    broken: Option<Error>,
}

impl SessionSender {
    pub(super) fn new(sending: Arc<Sending>) -> Self {
        Self { sending }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.sending.peer
    }

    /// Sends one message, after those that were sent before. Never waits: what the other side has no room for is kept and written later, by a thread.
    ///
    /// # Errors
    /// [`Error::Io`] if the other side is gone, has taken nothing for 10 s while something waited, or has left 64 MiB waiting; that closes the session.
    /// Perhaps it got a part of what was sent before. [`Error::Config`] if the message is longer than [`MESSAGE_LEN_MAX`], which closes nothing.
    pub fn send(&self, message: &[u8]) -> Result<()> {
        if message.len() > MESSAGE_LEN_MAX {
            return Err(Error::config(format!("a message of {} bytes is too long", message.len())));
        }
        self.sending.send(message)
    }

    /// Waits until the system has taken all that was sent, or nothing more is sent, or the deadline passes.
    pub fn flush(&self, deadline: &Deadline) {
        let mut state = self.sending.lock();
        while !state.unsent.is_empty() {
            let mut left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return;
            }
            if !state.has_thread {
                if let Err(error) = state.write() {
                    self.sending.break_off(&mut state, error);
                }
                left = left.min(RETRY_INTERVAL);
            }
            let settled = &self.sending.settled;
            state = settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Closes the connection for both halves; a blocked [`recv`](crate::SessionReceiver::recv) returns at once. What
    /// [`flush`](Self::flush) would wait for is lost.
    pub fn close(&self) {
        let _ = self.sending.stream.shutdown(Shutdown::Both);
    }
}

impl Sending {
    /// The stream is nonblocking.
    pub(super) fn new(stream: Arc<TcpStream>, writer: Writer, peer: SocketAddr) -> Self {
        let state = State { writer, unsent: Unsent::default(), has_thread: false, broken: None };
        Self { stream, peer, stuck_after: STUCK_TIME, state: Mutex::new(state), settled: Condvar::new() }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Why this half has closed the connection, if it has.
    pub(super) fn why_broken(&self) -> Option<Error> {
        self.lock().broken.clone()
    }

    /// Held for as long as it takes to copy to the system what that has room for, and never while waiting.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(self: &Arc<Self>, message: &[u8]) -> Result<()> {
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if let Err(error) = state.unsent.push(Message::new(message)) {
            return Err(self.break_off(&mut state, error));
        }
        if state.has_thread {
            return Ok(());
        }
        match state.write() {
            Ok(_) if state.unsent.is_empty() => Ok(()),
            Ok(_) => {
                let sending = self.clone();
                let thread = std::thread::Builder::new().name("phalanx-sender".into());
                // Where the system starts no thread just now, what waits goes with the next message, or by a flush.
                state.has_thread = thread.spawn(move || sending.write_what_waits()).is_ok();
                Ok(())
            }
            Err(error) => Err(self.break_off(&mut state, error)),
        }
    }

    /// Runs until nothing waits any more.
    fn write_what_waits(&self) {
        // As far as this process ran: one that was stopped blames nobody for the time.
        let mut stuck = Duration::ZERO;
        loop {
            let slice = LOOK_INTERVAL.min(self.stuck_after.saturating_sub(stuck));
            let began = Instant::now();
            self_pipe::sleep(&mut [PollFd::new(&*self.stream, PollFlags::OUT)], slice);
            stuck += began.elapsed().min(slice);
            let mut state = self.lock();
            if state.broken.is_some() {
                return;
            }
            match state.write() {
                Ok(0) if stuck >= self.stuck_after => {
                    let (waiting, time) = (state.unsent.len(), self.stuck_after);
                    let why = format!("it has taken nothing for {time:?}, and {waiting} bytes wait");
                    self.break_off(&mut state, io::Error::new(ErrorKind::TimedOut, why));
                    return;
                }
                Ok(0) => {}
                Ok(_) => stuck = Duration::ZERO,
                Err(error) => {
                    self.break_off(&mut state, error);
                    return;
                }
            }
            if state.unsent.is_empty() {
                state.has_thread = false;
                return self.settled.notify_all();
            }
        }
    }

    /// Nothing more is sent; the other half finds the connection closed.
    fn break_off(&self, state: &mut State, error: io::Error) -> Error {
        let error = Error::io(format!("sending to {}", self.peer), error);
        state.broken = Some(error.clone());
        state.unsent = Unsent::default();
        let _ = self.stream.shutdown(Shutdown::Both);
        self.settled.notify_all();
        error
    }
}

impl State {
    /// Writes what the stream takes now; says how many bytes that was.
    fn write(&mut self) -> io::Result<usize> {
        self.unsent.write_to(&mut self.writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Connection;
    use crate::endpoint::inbox::Inbox;
    use crate::endpoint::session::Session;
    use crate::keys::{self, Agreement, Keys};
    use std::io::Read;
    use std::net::TcpListener;

    const HANG: Duration = Duration::from_secs(60);

    fn within(limit: Duration) -> Deadline {
        Deadline::after(Instant::now(), limit)
    }

    /// A session, and the stream at its other end, which is blocking. A peer that takes nothing for `stuck_after` is given up.
    fn session(keys: Option<Keys>, stuck_after: Duration) -> (Session, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        let other = listener.accept().unwrap().0;
        other.set_read_timeout(Some(HANG)).unwrap();
        let connection = Connection::new(stream, keys);
        let mut sending = Sending::new(connection.stream().clone(), connection.writer, addr);
        sending.stuck_after = stuck_after;
        (Session::of(sending, connection.reader), other)
    }

    fn message(i: u32) -> Vec<u8> {
        let mut message = vec![i as u8; 100_000];
        message[..4].copy_from_slice(&i.to_le_bytes());
        message
    }

    /// Sends until much more waits than the system takes of a peer that does not read.
    fn fill(session: &Session) -> u32 {
        let mut count = 0;
        while session.sender().sending.lock().unsent.len() < 10 << 20 {
            session.send(&message(count)).unwrap();
            count += 1;
        }
        count
    }

    #[test]
    fn a_peer_that_does_not_read_holds_nobody_up_and_is_given_up() {
        let (mut session, _other) = session(None, Duration::from_millis(100));
        // Nobody reads, and this returns.
        fill(&session);
        let end = session.recv(&within(HANG)).unwrap_err();
        assert!(end.to_string().contains("it has taken nothing for 100ms"), "{end}");
        let sent = session.send(b"late").unwrap_err();
        assert_eq!(sent.to_string(), end.to_string());
        assert!(session.sender().sending.lock().unsent.is_empty(), "nothing is kept for nobody");
    }

    #[test]
    fn a_peer_that_leaves_too_much_waiting_is_given_up() {
        let (mut session, _other) = session(None, HANG);
        let full = (0..).find_map(|i| session.send(&message(i)).err()).unwrap();
        assert!(full.to_string().contains("does not read"), "{full}");
        assert_eq!(session.recv(&within(HANG)).unwrap_err().to_string(), full.to_string());
    }

    #[test]
    fn what_waits_arrives_in_order_and_is_waited_for() {
        let (agreement, first) = Agreement::begin(&[7; 32], b"who and what for").unwrap();
        let (theirs, answer) = keys::agree(&[7; 32], b"who and what for", &first).unwrap();
        let ours = agreement.finish(&answer).unwrap();
        for keys in [None, Some((ours, theirs))] {
            let (ours, theirs) = keys.unzip();
            let (session, other) = session(ours, HANG);
            let count = fill(&session);
            let mut reader = Connection::new(other, theirs).reader;
            let reader = std::thread::spawn(move || {
                let (mut inbox, mut buffer) = (Inbox::default(), vec![0; 1 << 16]);
                let mut messages = Vec::new();
                while messages.len() <= count as usize {
                    match reader.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(n) => inbox.push(&buffer[..n]),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Interrupted),
                    }
                    messages.extend(std::iter::from_fn(|| inbox.pop().unwrap()));
                }
                messages
            });
            let (sender, _receiver) = session.split();
            sender.send(b"farewell").unwrap();
            sender.flush(&within(HANG));
            sender.close();
            let messages = reader.join().unwrap();
            assert_eq!(messages.len(), count as usize + 1);
            assert!(messages.iter().zip(0..count).all(|(got, i)| *got == message(i)));
            assert_eq!(messages.last().unwrap(), b"farewell");
        }
    }

    #[test]
    fn what_waits_is_written_after_the_sender_was_dropped() {
        let (session, mut other) = session(None, HANG);
        let count = fill(&session);
        drop(session);
        let mut all = Vec::new();
        other.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), count as usize * (4 + message(0).len()));
    }
}
