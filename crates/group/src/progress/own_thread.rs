//! A thread of a group's own: started at first use, and waited for when the group is dropped. What it does over links is
//! [`progress_thread`](super::progress_thread); in shared memory, with collectives, [`call_thread`](crate::host::call_thread).
//!
//! The thread holds the group's links, and what says farewell on them. A process that ended before the thread would say none,
//! and the others would take that for a death.

use crate::control::failure_report::SETTLE_TIME;
use crate::control::group_health::GroupHealth;
use phalanx_core::{Error, Result};
use phalanx_transport::OwnerProcess;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long operations that nobody waits for may still take when the last handle on their group is dropped.
pub(crate) const LAST_OPERATIONS_TIME: Duration = Duration::from_secs(5);
/// How long the thread may take to end its operations once the group has failed.
const END_TIME: Duration = SETTLE_TIME.saturating_add(Duration::from_secs(1));

/// A thread of one group, which is waited for within a bound when the group ends.
#[derive(Debug, Default)]
pub(crate) struct OwnThread(Mutex<Option<Running>>);

#[derive(Debug)]
struct Running {
    owner_process: OwnerProcess,
    thread: JoinHandle<()>,
    /// Disconnected when the thread has done its work, or panicked.
    ended: Receiver<()>,
}

impl OwnThread {
    /// Starts the thread, unless it runs. It performs jobs until there will be none.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub(crate) fn start(&self, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            let (works, ended) = channel::<()>();
            let run = move || {
                let _works = works;
                run();
            };
            let thread = std::thread::Builder::new().name("phalanx-progress".into()).spawn(run);
            let thread = thread.map_err(|e| Error::io("starting the progress thread", e))?;
            *running = Some(Running { owner_process: OwnerProcess::here(), thread, ended });
        }
        Ok(())
    }

    /// Waits until the thread has ended, which was told that nothing more will come. What it still has to do may take
    /// [`LAST_OPERATIONS_TIME`]; then the group fails on all its ranks, so that the others hear why. A thread that does not
    /// end even then is left alone.
    pub(crate) fn end(&self, health: &GroupHealth) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { thread, ended, .. }) = running else { return };
        if thread.thread().id() == std::thread::current().id() {
            // The last handle was in the hands of an operation.
            return;
        }
        let has_ended = |limit| ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected);
        if !has_ended(LAST_OPERATIONS_TIME) {
            let limit = LAST_OPERATIONS_TIME.as_secs();
            let reason = format!(
                "its program let go of the group, and operations that nobody waits for were not done within {limit} s: \
                 wait for each `Work`, or call `finalize`"
            );
            health.give_up(health.own_fault(&reason));
            if !has_ended(END_TIME) {
                return tracing::warn!("the progress thread of a group that was dropped does not end");
            }
        }
        // It has ended, so this does not wait. A panic was told to whom it concerns.
        let _ = thread.join();
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        let running = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if running.as_ref().is_some_and(|running| !running.owner_process.is_here()) {
            // A forked child has no such thread.
            std::mem::forget(running);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Buffers, Bytes, OwnedBuffer, ProcessGroup, ReduceOp, Request, threads};
    use phalanx_core::{CallSite, DType, OpKind};
    use std::any::Any;
    use std::sync::mpsc::Sender;

    fn pair() -> [ProcessGroup; 2] {
        threads(2).try_into().expect("two were asked for")
    }

    #[test]
    fn an_operation_to_which_nobody_comes_is_told_of_and_ends() {
        let [left, other] = pair();
        drop(left.recv_async(vec![0u8; 8], 1, 0).unwrap());
        drop(left);
        let error = other.barrier().unwrap_err();
        let Error::Aborted { peer, reason, .. } = &error else { panic!("{error}") };
        assert!(peer.rank == 0 && reason.contains("let go of the group"), "{error}");
    }

    #[test]
    fn a_work_keeps_its_group() {
        let [left, other] = pair();
        let work = left.recv_async(vec![0u8; 8], 1, 0).unwrap();
        drop(left);
        // Far longer than an operation that nobody waits for has.
        std::thread::sleep(LAST_OPERATIONS_TIME + Duration::from_secs(1));
        other.send(&[7u8; 8], 0, 0).unwrap();
        assert_eq!(work.wait().unwrap(), [7; 8]);
    }

    /// A buffer with a handle on the group in it; says when it is gone.
    struct Holds(Vec<u8>, #[expect(dead_code, reason = "it is only held")] ProcessGroup, Sender<()>);

    impl Bytes for Holds {
        fn bytes(&mut self) -> &mut [u8] {
            &mut self.0
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
            self
        }
    }

    impl Drop for Holds {
        fn drop(&mut self) {
            let _ = self.2.send(());
        }
    }

    #[test]
    fn the_thread_itself_may_hold_the_last_handle() {
        let [group, other] = pair();
        let (gone, is_gone) = channel();
        let buffer = OwnedBuffer::new(Box::new(Holds(vec![1; 8], group.clone(), gone)));
        let request = Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: ReduceOp::Sum };
        let (op, site) = (OpKind::AllReduce, CallSite::caller());
        let call = group.call(op, Some(DType::U8), request, 0, site).unwrap();
        drop(group.backend.submit(call, group.timeout()).unwrap());
        drop(group);
        other.all_reduce(&mut [1u8; 8], ReduceOp::Sum).unwrap();
        is_gone.recv_timeout(Duration::from_secs(60)).expect("it waits for itself");
        // It has left in order.
        let error = other.barrier().unwrap_err();
        assert!(matches!(&error, Error::PeerLost { how: phalanx_core::Loss::Left, .. }), "{error}");
    }
}
