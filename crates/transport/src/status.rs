//! The acceptor's answer at the end of a handshake.

use std::fmt;

/// The acceptor's answer to a caller that knows the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Come in.
    Welcome,
    /// A process with that rank is connected already.
    Taken,
    /// Both ends dialled at once, and the other connection is kept.
    Crossed,
    /// The purpose is not served here, or the rank does not fit this job.
    Unwanted,
    /// The caller meant another rank.
    Misled,
    /// The job here has so many ranks, and the caller believes otherwise.
    OtherSize(u32),
}

impl Status {
    /// Bytes on the wire: a number, three that are not used, and the world size if that is what differs.
    pub(crate) fn encode(self) -> [u8; 8] {
        let (code, size) = match self {
            Self::Welcome => (0, 0),
            Self::Taken => (1, 0),
            Self::Crossed => (2, 0),
            Self::Unwanted => (3, 0),
            Self::Misled => (4, 0),
            Self::OtherSize(size) => (5, size),
        };
        let mut bytes = [0; 8];
        bytes[0] = code;
        bytes[4..].copy_from_slice(&size.to_le_bytes());
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 8] = bytes.try_into().ok()?;
        let [code, .., a, b, c, d] = bytes;
        let size = u32::from_le_bytes([a, b, c, d]);
        let status = match code {
            0 => Self::Welcome,
            1 => Self::Taken,
            2 => Self::Crossed,
            3 => Self::Unwanted,
            4 => Self::Misled,
            5 => Self::OtherSize(size),
            _ => return None,
        };
        (status.encode() == bytes).then_some(status)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Welcome => "welcome",
            Self::Taken => "a process with this rank is connected already (was a rank started twice?)",
            Self::Crossed => "the connection made from the other side is kept",
            Self::Unwanted => "the process at that address does not take this connection: it belongs to another job, or has closed this group",
            Self::Misled => {
                "another rank of the job answers there (has the address a new owner, or does something on the way redirect?)"
            }
            Self::OtherSize(size) => return write!(f, "the job at that address has {size} ranks, not as many as this process was told"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        use Status::*;
        for status in [Welcome, Taken, Crossed, Unwanted, Misled, OtherSize(0), OtherSize(u32::MAX)] {
            assert_eq!(Status::decode(&status.encode()), Some(status));
        }
        for bytes in
            [&[6, 0, 0, 0, 0, 0, 0, 0][..], &[0, 1, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 1, 0, 0, 0], &[0; 7]]
        {
            assert_eq!(Status::decode(bytes), None, "{bytes:?}");
        }
    }
}
