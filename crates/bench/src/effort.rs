//! How long and how one case is measured.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long and how one case is measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Effort {
    /// About how long one case is measured, unless `samples` says how often.
    pub(crate) budget: Duration,
    pub(crate) samples: Option<usize>,
    /// Operations before those that count; a tenth of the samples unless this says how many.
    pub(crate) warmup: Option<usize>,
    /// Whether each rank rewrites its buffer before each operation.
    pub(crate) touch: bool,
}
