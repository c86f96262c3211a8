//! The flight recorder: what each group on this rank did lately, kept always, written when it is needed.
//!
//! A `Log` remembers the latest calls of a group. When the group fails, when SIGUSR1 asks for it, or when
//! [`ProcessGroup::dump_trace`](crate::ProcessGroup::dump_trace) is called, all that this rank remembers becomes a [`Trace`].

mod clock;
pub(crate) mod format;
pub(crate) mod log;
#[cfg(unix)]
pub(crate) mod signal;
mod snapshot;
pub(crate) mod writer;

pub use format::{Entry, Frame, GroupConfig, GroupStatus, State, Trace};
