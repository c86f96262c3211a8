//! Streams: what happens on a device in which order.

use crate::device::Device;
use crate::queue::{Event, Queue};
use crate::sys::cuda::{CAPTURE_NONE, EVENT_WITH_TIME, STREAM_PER_THREAD};
use phalanx_core::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A queue of work on a device. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    queue: Arc<Queue>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:?} of {}", self.queue.raw, self.device)
    }
}

impl Stream {
    /// A new one, which does not wait for the legacy default stream.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): the driver refused.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Stream;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let compute = Stream::new(&device)?;
    /// assert_ne!(compute.raw(), stream.raw());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { device: device.clone(), queue: Arc::new(Queue::new(device.context())?) })
    }

    /// A stream of somebody else, a `CUstream` or `cudaStream_t`. It is not destroyed.
    ///
    /// While it captures a graph, what would use it here is refused.
    ///
    /// Null, and `CU_STREAM_LEGACY` (1), are the device's legacy default stream, whichever default streams the program was built for. `CU_STREAM_PER_THREAD` (2)
    /// is on each thread another stream: it does for the buffers of one thread, but operations between ranks, which begin on threads of
    /// NCCL's, refuse it.
    ///
    /// # Safety
    /// It is a stream of this device, and lives as long as this and its clones.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Stream;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// // SAFETY: it is a stream of this device, and outlives what is made of it.
    /// let same = unsafe { Stream::from_raw(&device, stream.raw()) }; // or one of another library
    /// assert!(same.synchronize(limit)?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub unsafe fn from_raw(device: &Device, raw: *mut std::ffi::c_void) -> Self {
        let queue = Queue::of_another(device.context(), raw);
        Self { device: device.clone(), queue: Arc::new(queue) }
    }

    /// The `CUstream`, for calls of other libraries.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert!(!stream.raw().is_null());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.queue.raw
    }

    /// The device that the stream belongs to.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert_eq!(stream.device().ordinal(), device.ordinal());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Refuses operations of a rank on another device, and to mean another stream on the thread on which an operation begins.
    pub(crate) fn check(&self, device: &Device) -> Result<()> {
        if self.device.ordinal() != device.ordinal() {
            return Err(Error::config(format!("{self:?} for a rank on {device}")));
        }
        if self.queue.raw as usize == STREAM_PER_THREAD {
            return Err(Error::config(
                "operations on the default stream of each thread: they begin on other threads, where it is another stream; leave them on the \
                 group's own, or make one with Stream::new",
            ));
        }
        Ok(())
    }

    /// Refuses what nothing here can be a part of.
    pub(crate) fn check_capture(&self) -> Result<()> {
        let (cuda, mut status) = (self.device.cuda(), CAPTURE_NONE);
        let _entered = self.device.enter()?;
        // SAFETY: the stream lives, and `status` is good for one int.
        let code = unsafe { (cuda.table().stream_is_capturing)(self.queue.raw, &raw mut status) };
        cuda.check("cuStreamIsCapturing", code)?;
        if status == CAPTURE_NONE {
            return Ok(());
        }
        Err(Error::config(format!(
            "{self:?} captures a graph, of which nothing here can be a part: ranks agree on each call, and the uses of buffers wait for events from outside; end the \
             capture first, or take another stream"
        )))
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// An event that is over when the stream has done all that it was given so far.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): the driver refused. [`Config`](phalanx_core::Error::Config): the stream captures a graph.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let buffer = DeviceBuffer::<f32>::zeros(stream, 1 << 20)?;
    /// let event = stream.record()?;
    /// assert!(event.wait(limit)?); // the zeros are there
    /// # assert_eq!(buffer.len(), 1 << 20);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn record(&self) -> Result<Event> {
        // Whoever waited for such an event would become part of the graph.
        self.check_capture()?;
        let event = Event::new(self.device.context())?;
        self.queue.record(&event)?;
        Ok(event)
    }

    /// As [`record`](Self::record), to [measure](Event::since) how long the device takes; such an event is a little dearer.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let (first, second) = (stream.record_time()?, stream.record_time()?);
    /// assert!(second.wait(limit)?);
    /// println!("{:?} passed between them", second.since(&first)?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn record_time(&self) -> Result<Event> {
        self.check_capture()?;
        let event = Event::with(self.device.context(), EVENT_WITH_TIME)?;
        self.queue.record(&event)?;
        Ok(event)
    }

    /// Makes later work on the stream wait for `event`, on the device; this thread does not wait.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): the driver refused. [`Config`](phalanx_core::Error::Config): the stream captures a graph.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Stream;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let compute = Stream::new(&device)?;
    /// compute.wait_for(&stream.record()?)?; // what comes now is behind what `stream` was given
    /// assert!(compute.synchronize(limit)?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        // An event from outside would break the capture.
        self.check_capture()?;
        self.queue.wait_for(event)
    }

    /// Waits until the stream has done all that it was given; `false` when that took longer.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): something that the stream did has failed.
    ///
    /// # Examples
    /// ```
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert!(stream.synchronize(limit)?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn synchronize(&self, timeout: Duration) -> Result<bool> {
        self.record()?.wait(timeout)
    }
}
