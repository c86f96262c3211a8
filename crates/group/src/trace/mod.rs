//! The flight recorder: what each group on this rank did lately, kept always, written when it is needed.
//!
//! A `Log` remembers the latest calls of a group. When the group fails, when SIGUSR1 asks for it, or when
//! [`ProcessGroup::dump_trace`](crate::ProcessGroup::dump_trace) is called, all that this rank remembers becomes a [`Trace`].
//! [`merged`], the traces of all ranks say more: a [`verdict`](verdict()) in words, and a timeline for [`chrome`](chrome()).

mod chrome;
mod clock;
mod diagnosis;
mod finding;
pub(crate) mod format;
mod latecomers;
pub(crate) mod log;
mod merge;
pub(crate) mod snapshot;
pub(crate) mod writer;

pub use chrome::json as chrome;
pub use diagnosis::text as verdict;
pub use merge::{Merged, Unread, merged};

pub use format::{Entry, Frame, GroupConfig, GroupStatus, State, Trace};
