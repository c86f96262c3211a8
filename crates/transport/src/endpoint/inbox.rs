//! How messages lie in a stream: four bytes of length (little endian), then the message.

use super::limits::MESSAGE_LEN_MAX;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};

/// Memory that an inbox keeps for the next message.
const KEPT_CAPACITY: usize = 4 << 10;

/// Reassembles messages from the bytes of a stream. Memory grows with what arrived, not with what was announced.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: VecDeque<u8>,
    /// Longest message.
    len_max: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::of_at_most(MESSAGE_LEN_MAX)
    }
}

impl Inbox {
    pub(crate) fn of_at_most(len_max: usize) -> Self {
        Self { bytes: VecDeque::new(), len_max }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Bytes held, and those there is memory for.
    #[cfg(feature = "__fuzz")]
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.bytes.len(), self.bytes.capacity())
    }

    /// The next whole message, if it has arrived.
    pub(crate) fn pop(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.bytes.len() < 4 {
            return Ok(None);
        }
        let len = (0..4).fold(0usize, |len, i| len | usize::from(self.bytes[i]) << (8 * i));
        if len > self.len_max {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("a message of {len} bytes is too long"),
            ));
        }
        if self.bytes.len() < 4 + len {
            return Ok(None);
        }
        self.bytes.drain(..4);
        let mut message = Vec::with_capacity(len);
        let (front, back) = self.bytes.as_slices();
        message.extend_from_slice(&front[..len.min(front.len())]);
        message.extend_from_slice(&back[..len - message.len()]);
        self.bytes.drain(..len);
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_CAPACITY {
            self.bytes = VecDeque::new();
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Message;

    #[test]
    fn messages_are_reassembled_from_any_split() {
        let stream: Vec<u8> = [&b"one"[..], b"", b"three"]
            .into_iter()
            .flat_map(|message| Message::new(message).framed().to_vec())
            .collect();
        for split in 1..stream.len() {
            let mut inbox = Inbox::default();
            let mut messages = Vec::new();
            for part in stream.chunks(split) {
                inbox.push(part);
                messages.extend(std::iter::from_fn(|| inbox.pop().unwrap()));
            }
            assert_eq!(messages, [&b"one"[..], b"", b"three"]);
        }
    }

    #[test]
    fn an_absurd_length_is_refused_before_it_is_believed() {
        let mut inbox = Inbox::default();
        inbox.push(&u32::MAX.to_le_bytes());
        assert!(inbox.pop().is_err());
    }
}
