//! What stands before the bytes of each message: whose it is, of which link, and what it says.
//!
//! ```text
//!  0       16      24     28     29        32      40
//!  | token | group | from | kind | nothing | value |   bytes
//! ```

use phalanx_core::GroupId;

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 40;

/// Shown in each message, as UCX takes messages of whoever reaches it.
pub(crate) type Token = [u8; 16];

/// What a message says of its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The sender uses the link. With it comes the address of its worker, so that it can be answered.
    Open,
    /// The answer: messages arrive.
    Opened,
    /// Bytes of the pipe, of which so many stand before these.
    Data(u64),
    /// The sender has read so many bytes of the pipe: there is room for as many more.
    Read(u64),
    /// The sender has ended its side, after so many bytes.
    Close(u64),
    /// The answer: the end of the pipe has arrived, and so has all before it that will.
    Closed,
}

/// A header that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) token: Token,
    pub(crate) group: GroupId,
    /// The sender's rank in the job.
    pub(crate) from: u32,
    pub(crate) kind: Kind,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let (kind, value) = match self.kind {
            Kind::Open => (1, 0),
            Kind::Opened => (2, 0),
            Kind::Data(offset) => (3, offset),
            Kind::Read(read) => (4, read),
            Kind::Close(end) => (5, end),
            Kind::Closed => (6, 0),
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[..16].copy_from_slice(&self.token);
        bytes[16..24].copy_from_slice(&self.group.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.from.to_le_bytes());
        bytes[28] = kind;
        bytes[32..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// `None` for what no rank of this version sends.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let value = number(32);
        let kind = match bytes[28] {
            1 => Kind::Open,
            2 => Kind::Opened,
            3 => Kind::Data(value),
            4 => Kind::Read(value),
            5 => Kind::Close(value),
            6 => Kind::Closed,
            _ => return None,
        };
        Some(Self {
            token: bytes[..16].try_into().expect("sixteen bytes"),
            group: GroupId(number(16)),
            from: u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes")),
            kind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let kinds = [
            Kind::Open,
            Kind::Opened,
            Kind::Data(7),
            Kind::Read(u64::MAX),
            Kind::Close(1 << 40),
            Kind::Closed,
        ];
        for kind in kinds {
            let header = Header { token: [9; 16], group: GroupId(u64::MAX - 3), from: 70_000, kind };
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        let mut unknown = Header { token: [0; 16], group: GroupId(0), from: 0, kind: Kind::Open }.encode();
        for kind in [0, 7, 255] {
            unknown[28] = kind;
            assert_eq!(Header::decode(&unknown), None);
        }
    }
}
