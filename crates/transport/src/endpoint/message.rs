//! A message that is ready for the stream, and what waits to be written of many.

use super::limits::{BACKLOG_MAX, MESSAGE_LEN_MAX};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::sync::Arc;

/// Bytes of the length before a message.
const LENGTH: usize = 4;
/// Messages that are written in one call of the system.
const PARTS_MAX: usize = 32;

/// A small message, framed once. A clone shares its bytes, so that the same message to thousands of sessions is in memory once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message(Arc<[u8]>);

impl Message {
    /// Frames `message`.
    ///
    /// # Panics
    /// It is longer than [`MESSAGE_LEN_MAX`].
    pub fn new(message: &[u8]) -> Self {
        assert!(message.len() <= MESSAGE_LEN_MAX, "messages are bounded by their makers");
        let mut bytes = Vec::with_capacity(LENGTH + message.len());
        bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
        bytes.extend_from_slice(message);
        Self(bytes.into())
    }

    /// The message without its frame.
    pub fn content(&self) -> &[u8] {
        &self.0[LENGTH..]
    }

    /// As it lies in the stream: its length, and the message.
    pub(crate) fn framed(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Message {
    fn from(message: Vec<u8>) -> Self {
        Self::new(&message)
    }
}

/// Messages that a stream has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    messages: VecDeque<Message>,
    /// Bytes of the first one that are written already.
    written: usize,
    /// Bytes of all that are not.
    len: usize,
}

impl Unsent {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a message.
    ///
    /// # Errors
    /// Too much waits already: the other end does not read.
    pub(super) fn push(&mut self, message: Message) -> io::Result<()> {
        let len = message.framed().len();
        if self.len + len > BACKLOG_MAX {
            let why = format!("it does not read what is sent to it: {} bytes wait", self.len);
            return Err(io::Error::other(why));
        }
        self.len += len;
        self.messages.push_back(message);
        Ok(())
    }

    /// Writes what the stream takes now; says how many bytes that was.
    ///
    /// # Errors
    /// Those of the stream, which is closed or broken.
    pub(super) fn write_to(&mut self, stream: &mut impl Write) -> io::Result<usize> {
        let mut taken = 0;
        while !self.is_empty() {
            let mut parts = [IoSlice::new(&[]); PARTS_MAX];
            let count = self.messages.len().min(PARTS_MAX);
            for (i, (part, message)) in parts.iter_mut().zip(&self.messages).enumerate() {
                let from = if i == 0 { self.written } else { 0 };
                *part = IoSlice::new(&message.framed()[from..]);
            }
            match stream.write_vectored(&parts[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.advance(n);
                    taken += n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(taken)
    }

    fn advance(&mut self, n: usize) {
        self.len -= n;
        self.written += n;
        while let Some(first) = self.messages.front()
            && self.written >= first.framed().len()
        {
            self.written -= first.framed().len();
            self.messages.pop_front();
        }
        if self.messages.is_empty() {
            // What a burst has needed is given back.
            self.messages = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes of each call, and nothing of every second one.
    struct Slow {
        taken: Vec<u8>,
        at_once: usize,
        blocks: bool,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            self.blocks = !self.blocks;
            if self.blocks {
                return Err(ErrorKind::WouldBlock.into());
            }
            let all: Vec<u8> =
                parts.iter().flat_map(|part| part.iter().copied()).take(self.at_once).collect();
            self.taken.extend(&all);
            Ok(all.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_is_written_in_order_however_little_the_stream_takes() {
        for at_once in [1, 2, 3, 5, 7, 64, 1000] {
            let mut unsent = Unsent::default();
            let messages: Vec<_> = (0..100u8).map(|i| vec![i; usize::from(i) % 7]).collect();
            let framed: Vec<u8> = messages.iter().flat_map(|m| Message::new(m).framed().to_vec()).collect();
            messages.iter().for_each(|message| unsent.push(Message::new(message)).unwrap());
            assert_eq!(unsent.len, framed.len());
            let mut slow = Slow { taken: Vec::new(), at_once, blocks: false };
            while !unsent.is_empty() {
                unsent.write_to(&mut slow).unwrap();
            }
            assert_eq!((unsent.len, unsent.written), (0, 0));
            assert!(slow.taken == framed, "{at_once} bytes at once");
        }
    }

    #[test]
    fn a_message_for_many_is_in_memory_once() {
        let message = Message::new(b"to all");
        let mut all: Vec<_> = (0..3).map(|_| Unsent::default()).collect();
        all.iter_mut().for_each(|unsent| unsent.push(message.clone()).unwrap());
        assert_eq!(Arc::strong_count(&message.0), 4);
        assert_eq!(message.content(), b"to all");
    }

    #[test]
    fn who_does_not_read_is_given_up() {
        let mut unsent = Unsent::default();
        let long = Message::new(&vec![0; MESSAGE_LEN_MAX - LENGTH]);
        for _ in 0..BACKLOG_MAX / MESSAGE_LEN_MAX {
            unsent.push(long.clone()).unwrap();
        }
        assert!(unsent.push(long).is_err());
    }
}
