//! The frame, as it goes over the wire: a 40-byte header, perhaps a signature, then payload.
//!
//! ```text
//!  0      1         2         4           8    16        20     24            32            40
//!  | chan | mention | sig_len | frame_len | id | ordinal | zero | message_len | fingerprint | signature | payload
//! ```
//! With checksums, bytes 20 to 24 hold the header's, and 8 bytes more behind the header that of signature and payload.
//!
//! All numbers little endian. A message is one frame or several in a row; the first frame of an operation to each peer
//! carries the operation's [`Signature`](phalanx_core::Signature), so that a mismatch can name both call sites; or mentions where the receiver
//! [keeps it](crate::known_signatures) from an earlier operation.

use crate::known_signatures::Mention;
use phalanx_core::Signature;

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 40;
/// Most payload bytes in one frame, over whatever transport.
pub const FRAME_LEN_MAX: usize = 4 << 20;
/// Most payload bytes in one frame, unless the [transport](crate::Transport::frame_len) says otherwise.
pub const FRAME_LEN: usize = 1 << 20;
/// Longest signature accepted: fixed fields and the end of a file name.
pub(crate) const SIGNATURE_LEN_MAX: usize = 512;
/// Room for most of them.
const SIGNATURE_LEN_USUAL: usize = 96;

/// Which stream of messages a frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Collectives; the id is the operation's place in the group's sequence.
    Collective = 1,
    /// Point-to-point; the id is the tag.
    Message = 2,
    /// The sender leaves in order; nothing follows.
    Farewell = 3,
}

/// The operation or message to which a frame belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The stream.
    pub channel: Channel,
    /// The sequence number or tag.
    pub id: u64,
}

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The operation or message that it belongs to.
    pub key: Key,
    /// Counts the messages of its operation from this sender to this receiver.
    pub ordinal: u32,
    /// Payload bytes of this frame.
    pub frame_len: u32,
    /// Payload bytes of the whole message.
    pub message_len: u64,
    /// The sender's [`Signature::fingerprint`].
    pub fingerprint: u64,
    /// Bytes of the encoded signature that follows the header; 0 for none.
    pub(crate) signature_len: u16,
    /// Whose signature it is, or where it is known from.
    pub(crate) mention: Mention,
}

impl Header {
    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.key.channel as u8;
        bytes[1] = self.mention.encode();
        bytes[2..4].copy_from_slice(&self.signature_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.frame_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.message_len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.fingerprint.to_le_bytes());
        bytes
    }

    /// Reads and checks a header; an error says what is wrong with it.
    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, String> {
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let channel = match bytes[0] {
            1 => Channel::Collective,
            2 => Channel::Message,
            3 => Channel::Farewell,
            other => return Err(format!("a frame of unknown kind {other}")),
        };
        let mention =
            Mention::decode(bytes[1]).ok_or_else(|| format!("a signature mentioned as {:#x}", bytes[1]))?;
        let header = Self {
            mention,
            key: Key { channel, id: u64_at(8) },
            ordinal: u32_at(16),
            frame_len: u32_at(4),
            message_len: u64_at(24),
            fingerprint: u64_at(32),
            signature_len: u16::from_le_bytes([bytes[2], bytes[3]]),
        };
        let fits =
            header.frame_len as usize <= FRAME_LEN_MAX && u64::from(header.frame_len) <= header.message_len;
        // A message of frames that bring nothing would never end.
        let brings = header.frame_len > 0 || header.message_len == 0;
        if !fits || !brings {
            return Err(format!(
                "a frame of {} bytes in a message of {}",
                header.frame_len, header.message_len
            ));
        }
        if header.signature_len as usize > SIGNATURE_LEN_MAX {
            return Err(format!("a signature of {} bytes", header.signature_len));
        }
        if bytes[20..24] != [0; 4] {
            return Err("reserved bytes that are not zero".into());
        }
        Ok(header)
    }
}

/// Encodes a signature for the wire.
pub fn encode_signature(signature: &Signature) -> Vec<u8> {
    let room = Vec::with_capacity(SIGNATURE_LEN_USUAL);
    let bytes = postcard::to_extend(signature, room).expect("signatures are plain data");
    assert!(bytes.len() <= SIGNATURE_LEN_MAX, "file names in call sites are cut to fit");
    bytes
}

/// `None` for anything that is not an encoded signature, nothing at all included.
pub(crate) fn decode_signature(bytes: &[u8]) -> Option<Box<Signature>> {
    postcard::from_bytes(bytes).ok().map(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::{CallSite, Method, OpKind};

    fn header() -> Header {
        Header {
            key: Key { channel: Channel::Message, id: 0xfeed_beef_dead },
            ordinal: 7,
            frame_len: 9,
            message_len: 10,
            fingerprint: u64::MAX - 1,
            signature_len: 3,
            mention: Mention::New(1),
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let refused = |change: &dyn Fn(&mut [u8; HEADER_LEN])| {
            let mut bytes = header().encode();
            change(&mut bytes);
            Header::decode(&bytes).expect_err("should be refused")
        };
        assert!(refused(&|b| b[0] = 0).contains("unknown kind"));
        assert!(refused(&|b| b[7] = 255).contains("bytes in a message"));
        assert!(refused(&|b| b[4] = 11).contains("bytes in a message"));
        assert!(refused(&|b| b[4] = 0).contains("a frame of 0 bytes in a message of 10"));
        assert!(refused(&|b| b[3] = 255).contains("signature"));
        assert!(refused(&|b| b[1] = 1).contains("mentioned as 0x1"));
        assert!(refused(&|b| b[21] = 1).contains("reserved"));
    }

    #[test]
    fn a_longer_file_name_than_travels_is_refused() {
        let read = |len: usize| {
            let site = CallSite { file: "f".repeat(len).into(), line: 1 };
            let (dtype, op) = (None, OpKind::Barrier);
            let call = Signature {
                op,
                dtype,
                count: 0,
                reduce: None,
                root: None,
                detail: 0,
                method: Method::UNSAID,
                site,
            };
            decode_signature(&encode_signature(&call)).map(|read| *read == call)
        };
        assert_eq!(read(CallSite::FILE_LEN_MAX), Some(true));
        assert_eq!(read(CallSite::FILE_LEN_MAX + 1), None);
    }
}
