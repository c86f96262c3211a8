//! Limits of handshakes and of sessions.

use std::time::Duration;

/// How long a handshake may take.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Handshakes with callers under way at once; one more ends the oldest of the address that has most.
pub(super) const HALF_OPEN_MAX: usize = 256;
/// Longest message either side accepts: an address book of 100,000 ranks fits.
pub const MESSAGE_LEN_MAX: usize = 16 << 20;

/// Bytes queued for a session that does not read them; beyond this it is closed.
pub(super) const BACKLOG_MAX: usize = 64 << 20;
