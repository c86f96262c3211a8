//! The thread of a group that performs what nobody waits for, and the jobs on their way to it.

use super::own_thread::OwnThread;
use super::queue::Queue;
use crate::control::group_health::GroupHealth;
use phalanx_core::Result;

/// One thread of a group and its queue. What the thread does with its jobs is the affair of whoever starts it.
pub(crate) struct ProgressThread<J> {
    queue: Queue<J>,
    thread: OwnThread,
}

impl<J> std::fmt::Debug for ProgressThread<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgressThread").field("queue", &self.queue).field("thread", &self.thread).finish()
    }
}

impl<J> Default for ProgressThread<J> {
    fn default() -> Self {
        Self { queue: Queue::default(), thread: OwnThread::default() }
    }
}

impl<J> ProgressThread<J> {
    /// Starts the thread, unless it runs. It takes jobs until there will be none.
    ///
    /// # Errors
    /// [`Io`](phalanx_core::Error::Io) if no thread can be started.
    pub(crate) fn start(&self, run: impl FnOnce() + Send + 'static) -> Result<()> {
        self.thread.start(run)
    }

    /// Gives a job to the thread, which was started. Jobs are made one after the other, in the order in which they are taken.
    pub(crate) fn submit(&self, make: impl FnOnce() -> J) {
        self.queue.push(make);
    }

    /// Waits until there is a job; false if none will come.
    pub(crate) fn wait(&self) -> bool {
        self.queue.wait()
    }

    /// The next job, in the order in which they were submitted; `None`, if none will come.
    pub(crate) fn next(&self) -> Option<J> {
        self.queue.next()
    }

    /// Gives all jobs that are there to `taker`.
    pub(crate) fn take(&self, taker: impl FnMut(J)) {
        self.queue.take(taker);
    }

    /// The last handle on the group is gone: waits for what the thread still has to do, but not for long.
    pub(crate) fn end(&self, health: &GroupHealth) {
        self.queue.close();
        self.thread.end(health);
    }
}
