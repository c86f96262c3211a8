//! Which way bytes move on a link.

/// Which way bytes are to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the peer.
    Send,
    /// From the peer.
    Recv,
}
