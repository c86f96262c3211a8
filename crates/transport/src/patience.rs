//! How long a call of a transport may wait.

use std::fmt;
use std::time::Duration;

/// How long a call of a [`Transport`](crate::Transport) may wait for a peer.
///
/// Calls of a transport move what can be moved now. One can't return at once: a call into whose buffer a peer is copying straight from its own process. The copy is short, unless
/// the peer's process was stopped in the middle of it.
pub trait Patience: fmt::Debug + Send + Sync {
    /// Whether a call that has waited for `waited` waits in vain: the operation that made it has failed, or its time is over. Asked every millisecond.
    fn is_over(&self, waited: Duration) -> bool;
}
