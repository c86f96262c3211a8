//! The flight recorder: what each group on this rank did lately, kept always, written when it is needed.
//!
//! A `Log` remembers the latest calls of a group. When the group fails, when SIGUSR1 asks for it, or when
//! [`ProcessGroup::dump_trace`](crate::ProcessGroup::dump_trace) is called, all that this rank remembers becomes a [`Trace`].
//! [`merged`], the traces of all ranks say more: a [`verdict`](verdict()) in words, and a timeline for [`chrome`](chrome()).

mod chrome;
mod clock;
mod finding;
pub(crate) mod format;
mod latest;
pub(crate) mod log;
mod merge;
#[cfg(unix)]
pub(crate) mod signal;
mod snapshot;
mod verdict;
pub(crate) mod writer;

pub use chrome::json as chrome;
pub use merge::{Merged, Unread, merged};
pub use verdict::text as verdict;

pub use format::{Entry, Frame, GroupConfig, GroupStatus, State, Trace};
