//! Messages that are over at once: a short one for which its link has room, or one that is here.

use super::{Arrival, AtOnce, Incoming, Outbound, Wire, WireFault};
use crate::checksum::CHECKED_LEN_MAX;
use crate::frame::{Channel, HEADER_LEN, Header, Key};
use crate::known_signatures::Mention;
use std::io::IoSlice;

impl Incoming {
    /// The payload of the frame that comes next, if all of that is here and is a message of `len` bytes whose call is known, with this key and fingerprint. There is
    /// one header that it can have, so that is not taken apart. For frames without checksums.
    #[inline]
    fn take_expected(&mut self, key: Key, fingerprint: u64, len: usize) -> Option<&[u8]> {
        let frame = self.buffer.get(self.start..self.end)?.get(..HEADER_LEN + len)?;
        let (head, payload) = frame.split_first_chunk::<HEADER_LEN>()?;
        let mention = Mention::decode(head[1]).filter(|mention| matches!(mention, Mention::Known(_)))?;
        let (message_len, frame_len) = (len as u64, len as u32);
        let expected =
            Header { mention, key, ordinal: 0, frame_len, message_len, fingerprint, signature_len: 0 };
        let is_next = self.frame.is_none() && !self.farewell;
        if !is_next || expected.encode() != *head || self.known.mentioned(mention, &[]).is_err() {
            return None;
        }
        self.start += HEADER_LEN + len;
        Some(payload)
    }

    /// Puts bytes behind the unread ones.
    fn keep(&mut self, bytes: &[u8]) {
        self.move_to_front();
        let end = self.end + bytes.len();
        self.buffer.resize(self.buffer.len().max(end), 0);
        self.buffer[self.end..end].copy_from_slice(bytes);
        self.end = end;
    }
}

impl Wire {
    /// Sends a whole message in one frame, if the link is free and takes all of it now. Nothing is sent otherwise.
    ///
    /// # Errors
    /// The link is gone.
    pub fn send_at_once(&mut self, message: &Outbound<'_>, payload: &[u8]) -> Result<bool, WireFault> {
        let out = &mut self.outgoing[message.peer];
        if out.owner.is_some() || payload.len() > self.frame_len.min(CHECKED_LEN_MAX) {
            return Ok(false);
        }
        let mention = out.known.mention(message.signature);
        let encoded;
        let head = if self.checked || matches!(mention, Mention::New(_)) {
            out.begin(message, mention, payload, self.checked);
            &out.head[..]
        } else {
            encoded = message.header(mention, payload.len(), 0).encode();
            &encoded
        };
        match self.transport.send_at_once(message.peer, &[IoSlice::new(head), IoSlice::new(payload)]) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(fault) => return Err(self.last_words(message.peer, fault)),
        }
        self.tally.moved(head.len() + payload.len());
        out.known.sent(mention, message.signature);
        self.tally_begun(message);
        Ok(true)
    }

    /// Receives a whole message with this tag and fingerprint, and of the length of `buffer`, that came in one frame, if it is here and first on its link. Otherwise what `buffer` has is
    /// of no meaning, and no payload is lost: what has come of this message, or of another, can be [read](Self::read).
    ///
    /// # Errors
    /// As [`arrival`](Self::arrival).
    pub fn recv_at_once(
        &mut self,
        peer: usize,
        tag: u64,
        fingerprint: u64,
        buffer: &mut [u8],
    ) -> Result<AtOnce, WireFault> {
        let key = Key { channel: Channel::Message, id: tag };
        // What was set aside comes first. If a part of that is still on the link, the link has its frame.
        if !self.aside.is_empty() && self.aside.contains_key(&(peer, key)) {
            return Ok(AtOnce::Impossible);
        }
        let link = &self.incoming[peer];
        if link.frame.is_none() && link.start == link.end && !self.refill(peer)? {
            return Ok(AtOnce::NotYet);
        }
        let link = &mut self.incoming[peer];
        if !self.checked
            && let Some(payload) = link.take_expected(key, fingerprint, buffer.len())
        {
            buffer.copy_from_slice(payload);
            self.tally.message_arrives(peer);
            return Ok(AtOnce::Done);
        }
        if link.frame.is_none() && !self.read_head(peer)? {
            return Ok(AtOnce::NotYet);
        }
        let (link, len) = (&mut self.incoming[peer], buffer.len());
        let is_this = link.frame.is_some_and(|Arrival { header, left }| {
            let is_whole = left == len && header.message_len == len as u64;
            header.key == key && header.fingerprint == fingerprint && is_whole
        });
        if !is_this {
            return Ok(AtOnce::Impossible);
        }
        let here = link.end - link.start;
        if here < len {
            // The rest goes straight to where it belongs, or, if it is not all of the rest, behind what is here.
            let read = self.transport.recv(peer, &mut buffer[here..]);
            let n = read.map_err(|fault| self.gone(peer, fault))?;
            self.tally.moved(n);
            if here + n < len {
                if n > 0 {
                    self.incoming[peer].keep(&buffer[here..here + n]);
                }
                return Ok(AtOnce::NotYet);
            }
        }
        let link = &mut self.incoming[peer];
        let first = here.min(len);
        buffer[..first].copy_from_slice(&link.buffer[link.start..link.start + first]);
        link.start += first;
        link.frame = None;
        Ok(AtOnce::Done)
    }
}
