//! Limits of handshakes.

use std::time::Duration;

/// How long a handshake may take.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Handshakes with callers under way at once; one more ends the oldest of the address that has most.
pub(super) const HALF_OPEN_MAX: usize = 256;
