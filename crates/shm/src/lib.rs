//! Collectives among ranks that share memory.
//!
//! Ranks on one host need no wire: they read each other's data where it lies. A [`Team`] is one rank's part in a group of
//! such ranks. Its ranks share one anonymous segment (no name anywhere, gone with the last of them) with flags,
//! staging for small and medium messages, and room for addresses: large messages are copied straight from one
//! address space into another where the kernel allows it, and not at all in buffers that all ranks map
//! ([`Window`]).
//!
//! Between any two of them there are byte pipes as well ([`ShmTransport`]), for messages and for schedules.
//!
//! `region` says what lies in the segment, `team` how ranks take steps together, `counter` how they tell each other how far
//! they are, `backoff` and `waker` how they wait, `process_vm` how they get at each other's memory, `lease` how one that gives up knows that nobody writes its memory any more.
//! The operations: `all_reduce`, `reduce_scatter`, `pull`, `broadcast`, `barrier`. `pipe` is one pipe, `transport` all of a
//! group.
//!
//! Deliberately absent: who the ranks are, how they met, what an error means to the group. Linux only: elsewhere this
//! crate is empty.
#![cfg(target_os = "linux")]

mod all_reduce;
mod backoff;
mod barrier;
mod broadcast;
mod cells;
mod choice;
mod copy_choice;
mod copy_clock;
mod copy_path;
mod copy_probe;
mod cores;
mod counter;
mod first_look;
mod forced;
mod futex;
mod gather_scatter;
mod hash;
mod last_level_cache;
mod lease;
mod letters;
mod library_copy;
mod loan;
mod long_reads;
mod memory;
mod other_process;
mod peer_memory;
mod pipe;
mod plan;
mod process_vm;
mod pull_shared;
mod quick_owner_process;
mod reading;
mod reduce_scatter;
mod region;
mod shown_calls;
mod span;
mod staged_copy;
mod staging_probe;
mod stores;
mod sync;
mod team;
#[cfg(all(test, not(loom)))]
mod tests;
mod transport;
mod waker;
mod window;

pub use all_reduce::Reduction;
pub use copy_probe::{KernelCopyTimes, force_kernel_copy, measure_kernel_copy};
pub use forced::NotTaken;
pub use gather_scatter::{Buffers, Givers, Own, Transfer};
pub use library_copy::force_library_copy;
pub use memory::{create, longest};
pub use other_process::Processes;
pub use quick_owner_process::QuickOwnerProcess;
pub use region::segment_len;
pub use staging_probe::{force_staging, measure_staging};
pub use team::Team;
pub use transport::{LEND_BYTES, ShmTransport, pipes_len};
pub use window::{Window, window_len};

use phalanx_core::{Error, Method, Signature};
use std::time::Duration;

/// A call of an operation.
pub struct Call<'a> {
    /// The call's place in the sequence of the team's calls, the same on all ranks.
    pub seq: u64,
    /// The part on which all ranks must agree.
    pub signature: &'a Signature,
    /// Decides how long to wait.
    pub wait_check: &'a mut dyn WaitCheck,
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("signature", self.signature).finish_non_exhaustive()
    }
}

/// Looks around while a rank waits: at the clock, and for news of the others.
pub trait WaitCheck {
    /// Called before a waiting rank falls asleep, and every 20 ms while it sleeps. `peer` is who has not come, a rank of the team.
    ///
    /// # Errors
    /// [`Stopped`] ends the wait; the check knows why.
    fn look(&mut self, peer: usize, waited: Duration) -> Result<(), Stopped>;

    /// Called now and then in a long operation that waits for nobody, while the data of `peer` move.
    ///
    /// # Errors
    /// [`Stopped`] ends the operation; the check knows why.
    fn look_meanwhile(&mut self, peer: usize) -> Result<(), Stopped>;

    /// Called once in every operation: when this rank begins to wait for the others, or at the end. What is done here takes no time while their
    /// data are on their way.
    fn on_the_way(&mut self) {}
}

/// A check has ended the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// Why an operation failed. The team is closed then.
#[derive(Debug)]
pub enum Fault {
    /// The check ended the wait.
    Stopped,
    /// Another rank closed the team.
    Closed {
        /// The rank of the team that gave up first; `None` where its memory says what cannot be.
        by: Option<usize>,
    },
    /// A rank of the team called something else, or performs it in another way, at this place or before.
    Mismatch {
        /// The other rank.
        peer: usize,
        /// The place of the call in this rank's sequence …
        seq: u64,
        /// … and in theirs.
        their_seq: u64,
        /// The call that they made at that place, and how they perform it, where it can be read.
        theirs: Option<Box<Signature>>,
        /// How this rank performs what it called.
        method: Method,
    },
    /// A rank of the team sends another count than this one expects.
    Counts {
        /// The other rank.
        peer: usize,
        /// Bytes they send.
        sent: usize,
        /// Bytes expected here.
        expected: usize,
    },
    /// The memory of a rank could not be reached.
    Unreachable {
        /// The other rank.
        peer: usize,
        /// Why.
        error: std::io::Error,
    },
    /// Trouble of this rank's own.
    Failed(Box<Error>),
}

impl From<Stopped> for Fault {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}
