//! Means over the ranks that are formed while the training goes on.

use crate::element::{all_reduce, multiply};
use phalanx::{CallSite, DType, Error, ProcessGroup, ReduceOp, RegisteredBuffer, Result};
use phalanx_compress::{Bucket, CommHook, Traffic};
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Pseudo-gradients that are averaged together.
#[derive(Debug)]
pub(super) struct FragmentGradients {
    /// Which fragment.
    pub(super) index: usize,
    pub(super) bytes: usize,
    pub(super) shapes: Vec<Vec<usize>>,
    /// The line of the program that asked for the mean.
    pub(super) site: CallSite,
}

/// Forms means, and holds the memory that they travel in: registered, and large enough for any fragment.
pub(super) struct Averager {
    /// The averager's own group: nothing else calls operations on it.
    group: ProcessGroup,
    dtype: DType,
    memory: RegisteredBuffer<u64>,
    pub(super) hook: Option<Box<dyn CommHook>>,
    sent: u64,
}

impl Averager {
    /// Collective: every rank makes its own.
    #[track_caller]
    pub(super) fn new(group: ProcessGroup, dtype: DType, bytes: usize) -> Result<Self> {
        let memory = group.alloc(bytes.div_ceil(size_of::<u64>()))?;
        Ok(Self { group, dtype, memory, hook: None, sent: 0 })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }

    /// Bytes that this rank has sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent + self.hook.as_ref().map_or(0, |hook| hook.traffic().sent)
    }

    /// Replaces what lies in the memory by its mean over the ranks.
    fn average(&mut self, fragment: &FragmentGradients) -> Result<()> {
        let group = &self.group.with_call_site(fragment.site.clone());
        let bytes = &mut bytemuck::cast_slice_mut(&mut self.memory)[..fragment.bytes];
        match &mut self.hook {
            Some(hook) if self.dtype == DType::F32 => {
                multiply(self.dtype, bytes, 1.0 / group.world_size() as f64);
                let shapes: Vec<&[usize]> = fragment.shapes.iter().map(Vec::as_slice).collect();
                let gradients = bytemuck::cast_slice_mut(bytes);
                hook.reduce(Bucket { index: fragment.index, gradients, shapes: &shapes }, group)
            }
            _ => {
                self.sent += Traffic::of_all_reduce(fragment.bytes, group);
                all_reduce(group, self.dtype, bytes, ReduceOp::Avg)
            }
        }
    }
}

/// The averager, or the thread that it is on.
pub(super) struct AveragerHandle {
    location: Mutex<Location>,
    /// The averager's: to fail it if the thread does not end.
    group: Box<ProcessGroup>,
    /// The process in which the thread is.
    process: u32,
}

/// How long a mean that nobody waits for may still take when the handle is dropped.
const LAST_MEAN_TIME: Duration = Duration::from_secs(5);

enum Location {
    Here(Box<Averager>),
    OnThread(JoinHandle<Result<Box<Averager>>>),
    /// The averager is gone, because a mean that was under way has failed.
    Lost(Error),
}

impl AveragerHandle {
    pub(super) fn new(averager: Averager) -> Self {
        let group = Box::new(averager.group.clone());
        Self { location: Mutex::new(Location::Here(Box::new(averager))), group, process: std::process::id() }
    }

    /// Waits for the mean that is under way, if there is one, and calls `work` with the averager.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Averager) -> R) -> Result<R> {
        let mut location = self.location();
        *location = match std::mem::replace(&mut *location, panicked()) {
            Location::OnThread(thread) => {
                let came_back = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                came_back.map_or_else(Location::Lost, Location::Here)
            }
            settled => settled,
        };
        match &mut *location {
            Location::Here(averager) => Ok(work(averager)),
            Location::Lost(error) => Err(error.clone()),
            Location::OnThread(_) => unreachable!("it was waited for"),
        }
    }

    /// Averages the contents of the averager's memory over the ranks.
    pub(super) fn average(&self, fragment: FragmentGradients) -> Result<()> {
        self.with(|averager| averager.average(&fragment))?
    }

    /// Begins to have it averaged. What goes wrong is told by the next call.
    ///
    /// Hooks block, so this takes a thread; an all_reduce goes the same way.
    pub(super) fn begin(&self, fragment: FragmentGradients) {
        let mut location = self.location();
        *location = match std::mem::replace(&mut *location, panicked()) {
            Location::Here(mut averager) => {
                let work = move || averager.average(&fragment).map(|()| averager);
                let thread = thread::Builder::new().name("phalanx-diloco".into()).spawn(work);
                thread.map_or_else(
                    |e| Location::Lost(Error::io("starting a thread that averages", e)),
                    Location::OnThread,
                )
            }
            busy => busy,
        };
    }

    fn location(&self) -> MutexGuard<'_, Location> {
        self.location.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends with its thread, which has a handle on the group: a process that ended before that would not leave the group in order.
impl Drop for AveragerHandle {
    fn drop(&mut self) {
        let location = self.location.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Location::OnThread(thread) = std::mem::replace(location, panicked()) else { return };
        if self.process != std::process::id() {
            // This one was forked from it.
            return std::mem::forget(thread);
        }
        let ends_within = |limit: Duration| {
            let begun = Instant::now();
            while !thread.is_finished() && begun.elapsed() < limit {
                thread::sleep(Duration::from_millis(1));
            }
            thread.is_finished()
        };
        if !ends_within(LAST_MEAN_TIME) {
            let limit = LAST_MEAN_TIME.as_secs();
            self.group.abort(&format!(
                "an optimizer was dropped whose last mean was not formed within {limit} s: call `finish`"
            ));
            if !ends_within(LAST_MEAN_TIME) {
                return tracing::warn!("the thread that averages does not end");
            }
        }
        // It has ended, so this does not wait. A panic was told to whom it concerns.
        let _ = thread.join();
    }
}

/// The state that stays behind if the thread panics.
fn panicked() -> Location {
    Location::Lost(Error::Internal { what: "the thread that averages panicked".into() })
}

impl fmt::Debug for AveragerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AveragerHandle").finish_non_exhaustive()
    }
}
