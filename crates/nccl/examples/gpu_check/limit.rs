//! How long anything may take.

use std::time::Duration;

/// Far more than anything takes.
pub(super) const LONG: Duration = Duration::from_secs(60);
