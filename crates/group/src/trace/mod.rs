//! The flight recorder: what each group on this rank did lately, kept always, written when it is needed.
//!
//! When a group fails, when SIGUSR1 asks for it, or when [`ProcessGroup::dump_trace`](crate::ProcessGroup::dump_trace) is called, all that this
//! rank remembers becomes a [`Trace`]. [`merged`], the traces of all ranks say more: a [`verdict`](verdict()) in words, and a timeline for
//! [`chrome`](chrome()).

pub(crate) mod clock;
pub(crate) mod writer;

pub use phalanx_trace::{
    Entry, Frame, GroupConfig, GroupStatus, Merged, State, Trace, Unread, chrome, merged, verdict,
    verdict_json,
};
