//! What the control plane asks of the process around it: the time, sleep, a launcher, and somebody who writes traces.

use crate::changes::Changes;
use crate::launcher_link::LauncherLink;
use phalanx_trace::{Now, Trace};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// The process around a rank's control plane, which has no clock, thread or file of its own. A simulation gives it virtual time.
pub trait Runtime: Send + Sync + Debug {
    /// The time.
    fn now(&self) -> Instant;

    /// Sleeps until `changes` have gone on from `seen`, and not longer than `limit`. May wake for no reason.
    fn sleep(&self, changes: &Changes, seen: u64, limit: Duration);

    /// The time by the clock of the logs of calls.
    fn trace_time(&self) -> Now;

    /// Whether this is the process in which it was made, and no copy that was forked from it.
    fn is_here(&self) -> bool {
        true
    }

    /// The launcher that started the process.
    fn launcher(&self) -> Option<&dyn LauncherLink> {
        None
    }

    /// Begins to write traces, where the job keeps them: one for this reason, and another for each that comes meanwhile. It is called while a
    /// verdict is taken, so `next` is called on another thread, or later. `next` takes the reason from what it is given, and makes the trace.
    fn write_trace(&self, next: NextTrace, reason: String) {
        let _ = (next, reason);
    }

    /// Waits until what was begun is written, but not for long.
    fn finish_traces(&self) {}

    /// The calling thread of the program waits in an operation, for as long as what is returned lives.
    fn wait_begins(&self) -> Here {
        None
    }

    /// Whether no thread of the program can do anything before one that waits in an operation goes on. Any doubt is a no.
    fn stands_still(&self) -> bool {
        false
    }
}

/// The next trace that is to be written, for the reason that is asked for; `None` if there is no reason.
pub type NextTrace = Box<dyn Fn(&dyn Fn() -> Option<String>) -> Option<Trace> + Send>;

/// A thread is known to wait, as long as this lives.
pub type Here = Option<Box<dyn Debug + Send + Sync>>;
