//! The flight recorder: what each group on a rank did lately, kept always, written when it is needed.
//!
//! A [`Log`] remembers the latest calls of a group. When the group fails, or somebody asks, all that a rank remembers becomes a [`Trace`]
//! ([`snapshot`]). [`merged`], the traces of all ranks say more: a [`verdict`](verdict()) in words, and a timeline for
//! [`chrome`](chrome()).
//!
//! Deliberately absent: clocks, threads and files. Times are arguments; `phalanx-group` reads the clock and writes the files.
//!
//! # Examples
//! ```
//! use phalanx_core::{CallSite, OpKind, Signature};
//! use phalanx_trace::Log;
//!
//! let log = Log::new(64);
//! let barrier = Signature::bare(OpKind::Barrier, CallSite::caller());
//! log.begin(1, &barrier, |_| 1_000);
//! assert_eq!(log.open_collective().1, 1);
//! log.end(1, &barrier, |_| 2_000);
//! assert_eq!(log.finished(), 1);
//! assert_eq!(log.open_collective().0, None);
//! ```

mod chrome;
mod diagnosis;
mod finding;
mod format;
mod latecomers;
mod log;
mod merge;
mod snapshot;
mod verdict_json;

pub use chrome::json as chrome;
pub use diagnosis::text as verdict;
pub use format::{Entry, Frame, GroupConfig, GroupStatus, State, Trace};
pub use log::{Call, End, Log, is_precise};
pub use merge::{Merged, Unread, merged};
pub use snapshot::{GroupRecord, Now, Recorded, snapshot};
pub use verdict_json::json as verdict_json;
