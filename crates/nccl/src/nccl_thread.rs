//! The thread on which NCCL is told what to do with a communicator, from its init to its end.
//!
//! What a call leaves to be done behind the caller's back, NCCL keeps in memory of the calling thread until 2.26, and reads it there when the communicator is used again or ended:
//! by then a program's own thread may be gone, which ends in a crash or in a wait for ever. So a program's threads hand calls over, and wait for what comes of them.

use crate::context::Context;
use phalanx_core::{Error, Result};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The thread that calls NCCL for one communicator. When this is dropped, the thread does what it was asked, and ends.
pub(crate) struct NcclThread(Mutex<mpsc::Sender<Job>>);

type Job = Box<dyn FnOnce() + Send>;

/// The outcome, to come, of something that the thread was asked to do.
pub(crate) struct Answer<R> {
    hear: mpsc::Receiver<R>,
    stage: Arc<AtomicU8>,
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The error that there is no answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// The work was not begun, and will not be.
    Never,
    /// The work is being done.
    UnderWay,
}

impl NcclThread {
    /// Starts a thread that has the context of a device for as long as it lives.
    pub(crate) fn start(context: &Arc<Context>) -> Result<Self> {
        let (jobs, work) = mpsc::channel::<Job>();
        let (tell, hear) = mpsc::channel();
        let context = context.clone();
        let run = move || {
            let entered = context.enter();
            // Who asks waits for it.
            let _ = tell.send(entered.as_ref().map(drop).map_err(Clone::clone));
            if entered.is_ok() {
                work.into_iter().for_each(|job| job());
            }
        };
        let named = std::thread::Builder::new().name("phalanx-nccl".into());
        named.spawn(run).map_err(|e| Error::io("starting the thread that calls NCCL", e))?;
        let ended = |_| Err(Error::Internal { what: "the thread that calls NCCL has ended".into() });
        hear.recv().unwrap_or_else(ended)?;
        Ok(Self(Mutex::new(jobs)))
    }

    /// Asks the thread to do `work`, behind all that was asked before.
    pub(crate) fn ask<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Answer<R> {
        let ((tell, hear), stage) = (mpsc::channel(), Arc::new(AtomicU8::new(WAITING)));
        let mine = stage.clone();
        let job = move || {
            if mine.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // Who has given up does not listen.
                let _ = tell.send(work());
            }
        };
        let jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If it has ended, nobody will answer.
        let _ = jobs.send(Box::new(job));
        Answer { hear, stage }
    }
}

impl<R> Answer<R> {
    /// The answer, if it comes in time.
    pub(crate) fn within(&self, time: Duration) -> Option<R> {
        match self.hear.recv_timeout(time) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            // Nobody comes back from a panic.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(time);
                None
            }
        }
    }

    /// The answer; given up when `time` is over, or soon when `is_over` says so.
    pub(crate) fn wait(self, time: Duration, is_over: impl Fn() -> bool) -> Result<R, Late> {
        const LOOK: Duration = Duration::from_millis(20);
        const SOON: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        let mut over_since = None;
        loop {
            let left = time.saturating_sub(begun.elapsed());
            if let Some(answer) = self.within(left.min(LOOK)) {
                return Ok(answer);
            }
            if is_over() {
                over_since = over_since.or_else(|| Some(Instant::now()));
            }
            if left.is_zero() || over_since.is_some_and(|since| since.elapsed() > SOON) {
                break;
            }
        }
        match self.stage.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Err(Late::Never),
            Err(_) => self.hear.try_recv().map_err(|_| Late::UnderWay),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::{Cuda, Device};

    const LONG: Duration = Duration::from_secs(20);

    fn nccl_thread() -> NcclThread {
        let file = std::env::current_exe().unwrap().with_file_name("libphalanx_nccl_double.so");
        NcclThread::start(Device::open(Cuda::open(file).unwrap(), 0).unwrap().context()).unwrap()
    }

    #[test]
    fn all_is_done_on_one_thread_and_in_order() {
        let nccl_thread = nccl_thread();
        let me = || std::thread::current().id();
        let answers: Vec<_> = (0..3).map(|i| nccl_thread.ask(move || (i, me()))).collect();
        let answers: Vec<_> =
            answers.into_iter().map(|answer| answer.wait(LONG, || false).unwrap()).collect();
        assert!(answers.iter().enumerate().all(|(i, (j, thread))| i == *j && *thread == answers[0].1));
        assert_ne!(answers[0].1, me());
    }

    #[test]
    fn what_was_given_up_is_not_begun() {
        let nccl_thread = nccl_thread();
        let (go, gone) = mpsc::channel::<()>();
        let busy = nccl_thread.ask(move || gone.recv());
        let never = nccl_thread.ask(|| panic!("it was given up"));
        assert_eq!(never.wait(Duration::from_millis(1), || false), Err::<(), _>(Late::Never));
        assert!(matches!(busy.wait(Duration::from_millis(1), || false), Err(Late::UnderWay)));
        go.send(()).unwrap();
        assert_eq!(nccl_thread.ask(|| 1).wait(LONG, || false), Ok(1));
    }

    /// What a hand-over costs on this machine.
    #[test]
    #[ignore = "a measurement: run it alone, with --nocapture"]
    #[expect(clippy::print_stdout, reason = "it is what it is for")]
    fn round_trip() {
        let nccl_thread = nccl_thread();
        let mut times: Vec<_> = (0..20_000)
            .map(|_| {
                let begun = Instant::now();
                nccl_thread.ask(|| ()).wait(LONG, || false).unwrap();
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("median {:?}, 99 % {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
    }
}
