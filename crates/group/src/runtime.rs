//! The process around a rank's control plane: its clock, how its threads sleep, its launcher, its traces.

use crate::control::changes::Changes;
use crate::control::launcher_link::LauncherLink;
use crate::control::membership::Membership;
use crate::control::runtime::{Here, NextTrace, Runtime};
use crate::standstill::Waiting;
use crate::trace::clock;
use crate::trace::writer::Recorder;
use phalanx_core::Peer;
use phalanx_rendezvous::TRACE_LEN;
use phalanx_trace::{Now, Recorded};
use phalanx_transport::{OwnerProcess, WakeSource, Waker};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// This process, as the control plane of one of its ranks knows it.
#[derive(Debug)]
pub(crate) struct OsRuntime {
    owner_process: OwnerProcess,
    recorder: Arc<Recorder>,
    /// The launcher, which is told what went wrong first, and knows how processes end.
    launcher: Option<Arc<dyn LauncherLink>>,
    /// The program's threads that wait, where they are those of this process.
    waiting: Option<Arc<Waiting>>,
}

impl OsRuntime {
    /// Of a rank that is one thread of this process among others.
    pub(crate) fn of_thread(recorder: Recorder) -> Self {
        Self {
            owner_process: OwnerProcess::here(),
            recorder: Arc::new(recorder),
            launcher: None,
            waiting: None,
        }
    }

    /// Of a rank that has this process for itself.
    pub(crate) fn of_process(recorder: Recorder, launcher: Option<Arc<dyn LauncherLink>>) -> Self {
        Self { launcher, waiting: Some(Arc::default()), ..Self::of_thread(recorder) }
    }
}

/// The membership of a rank that is a thread of this process, and writes no traces.
pub(crate) fn membership(me: Peer, world_size: usize, timeout: Duration) -> Arc<Membership> {
    let runtime = OsRuntime::of_thread(Recorder::new(me.clone(), None));
    Membership::new(Recorded { me, world_size, timeout }, TRACE_LEN, Arc::new(runtime))
}

impl Runtime for OsRuntime {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, changes: &Changes, seen: u64, limit: Duration) {
        let sleeper = Arc::new(Sleeper::default());
        let waker = Waker::at(sleeper.clone());
        changes.listen(&waker);
        let wakes = sleeper.wakes();
        if changes.seen() == seen {
            sleeper.sleep(wakes, limit);
        }
        changes.hush(&waker);
    }

    fn trace_time(&self) -> Now {
        clock::of_trace()
    }

    fn is_here(&self) -> bool {
        self.owner_process.is_here()
    }

    fn launcher(&self) -> Option<&dyn LauncherLink> {
        self.launcher.as_deref()
    }

    fn write_trace(&self, next: NextTrace, reason: String) {
        self.recorder.begin_to_write(next, reason);
    }

    fn finish_traces(&self) {
        self.recorder.finish_writing();
    }

    fn wait_begins(&self) -> Here {
        Some(Box::new(self.waiting.as_ref()?.here()))
    }

    fn stands_still(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.is_all())
    }
}

/// A thread that sleeps until it is woken.
#[derive(Debug, Default)]
struct Sleeper {
    wakes: Mutex<u32>,
    woken: Condvar,
}

impl WakeSource for Sleeper {
    fn wakes(&self) -> u32 {
        *self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        *wakes = wakes.wrapping_add(1);
        self.woken.notify_all();
    }

    fn sleep(&self, wakes: u32, limit: Duration) {
        let now = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.woken.wait_timeout_while(now, limit, |now| *now == wakes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_wakes_of_a_change_that_came_before_it_slept_or_after() {
        let me = Peer { rank: 0, host: "h".into() };
        let (runtime, changes) = (OsRuntime::of_thread(Recorder::new(me, None)), Changes::default());
        let hour = Duration::from_secs(3600);
        let seen = changes.seen();
        changes.tell();
        runtime.sleep(&changes, seen, hour);
        let seen = changes.seen();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                while changes.seen() == seen {
                    runtime.sleep(&changes, seen, hour);
                }
            });
            std::thread::sleep(Duration::from_millis(50));
            changes.tell();
            sleeper.join().unwrap();
        });
        let begun = runtime.now();
        runtime.sleep(&changes, changes.seen(), Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
