//! The driver's streams and events, before anybody asks on which device: the pools of a device need them too.

use crate::context::Context;
use crate::sys::cuda::{EVENT_WITHOUT_TIME, NOT_READY, RawEvent, RawStream, STREAM_NON_BLOCKING};
use crate::wait::wait_until;
use phalanx_core::{Deadline, Result};
use std::ffi::c_uint;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The driver's stream.
pub(crate) struct Queue {
    context: Arc<Context>,
    pub(crate) raw: RawStream,
    /// Made here, so destroyed here.
    is_ours: bool,
}

// SAFETY: the driver may be called from any thread, with handles that another thread got.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is good for one pointer.
        let code = unsafe { (context.cuda.table().stream_create)(&raw mut raw, STREAM_NON_BLOCKING) };
        context.cuda.check("cuStreamCreate", code)?;
        Ok(Self { context: context.clone(), raw, is_ours: true })
    }

    /// A stream of somebody else, which lives as long as this.
    pub(crate) fn of_another(context: &Arc<Context>, raw: RawStream) -> Self {
        Self { context: context.clone(), raw, is_ours: false }
    }

    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        let _entered = self.context.enter()?;
        let cuda = self.context.cuda;
        // SAFETY: both live.
        cuda.check("cuEventRecord", unsafe { (cuda.table().event_record)(event.raw, self.raw) })
    }

    pub(crate) fn wait_for(&self, event: &Event) -> Result<()> {
        let _entered = self.context.enter()?;
        let cuda = self.context.cuda;
        // SAFETY: both live.
        let code = unsafe { (cuda.table().stream_wait_event)(self.raw, event.raw, 0) };
        cuda.check("cuStreamWaitEvent", code)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.is_ours
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: nobody else has it. What it was given goes on to its end.
            unsafe { (self.context.cuda.table().stream_destroy)(self.raw) };
        }
    }
}

/// A place in a stream, which the device comes past.
pub struct Event {
    pub(crate) context: Arc<Context>,
    raw: RawEvent,
}

// SAFETY: the driver may be called from any thread, with handles that another thread got.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("device", &self.context.ordinal).finish_non_exhaustive()
    }
}

impl Event {
    /// An event that is over: it was recorded nowhere yet.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        Self::with(context, EVENT_WITHOUT_TIME)
    }

    pub(crate) fn with(context: &Arc<Context>, flags: c_uint) -> Result<Self> {
        let _entered = context.enter()?;
        let cuda = context.cuda;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is good for one pointer.
        let code = unsafe { (cuda.table().event_create)(&raw mut raw, flags) };
        cuda.check("cuEventCreate", code)?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Whether the device has come past it.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): something that the device did has failed.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let event = stream.record()?;
    /// assert!(event.wait(limit)?);
    /// assert!(event.is_over()?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn is_over(&self) -> Result<bool> {
        let _entered = self.context.enter()?;
        let cuda = self.context.cuda;
        // SAFETY: it lives.
        let code = unsafe { (cuda.table().event_query)(self.raw) };
        if code == NOT_READY { Ok(false) } else { cuda.check("cuEventQuery", code).map(|()| true) }
    }

    /// How long after `earlier` the device came past it, by the device's clock. Both were [recorded with the time](crate::Stream::record_time), and are over.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): they were not, or are not.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let before = stream.record_time()?;
    /// let buffer = DeviceBuffer::<f32>::zeros(stream, 1 << 20)?;
    /// let after = stream.record_time()?;
    /// assert!(after.wait(limit)?);
    /// println!("{} zeros in {:?}", buffer.len(), after.since(&before)?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn since(&self, earlier: &Self) -> Result<Duration> {
        let _entered = self.context.enter()?;
        let (cuda, mut ms) = (self.context.cuda, 0f32);
        let elapsed = cuda.table().event_elapsed_time.of(&cuda)?;
        // SAFETY: both live, and `ms` is good for one float.
        cuda.check("cuEventElapsedTime", unsafe { elapsed(&raw mut ms, earlier.raw, self.raw) })?;
        Ok(Duration::from_secs_f32(ms.max(0.0) / 1e3))
    }

    /// Waits until the device has come past it; `false` when that took longer.
    ///
    /// # Errors
    /// As for [`is_over`](Self::is_over).
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert!(stream.record()?.wait(limit)?); // the stream has nothing to do
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        wait_until(&Deadline::after(Instant::now(), timeout), || self.is_over())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: nobody else has it; the driver keeps it for streams that wait for it.
            unsafe { (self.context.cuda.table().event_destroy)(self.raw) };
        }
    }
}
