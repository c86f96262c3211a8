//! A GPU.

use crate::context::{self, Context, Entered};
use crate::load::Cuda;
use crate::pool::Pool;
use crate::queue::Queue;
use phalanx_core::Result;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One GPU of this machine. Cheap to clone; usable from any thread.
///
/// It uses the device's *primary* context, as the CUDA runtime, candle and PyTorch do, so memory and streams can be shared with them. It needs a driver
/// with memory pools (CUDA 11.4 or later on Linux): freeing memory the old way waits for all that the device does, for ever if need be. The device's default
/// pool, which others in the process use too, is told not to reuse memory by making one stream wait for another.
#[derive(Clone)]
pub struct Device(Arc<Opened>);

struct Opened {
    context: Arc<Context>,
    /// On which memory is allocated, and nothing is waited for.
    allocating: Queue,
    /// On which memory is freed when its last use is over.
    freeing: Queue,
    /// Pinned memory for copies.
    staging: Pool,
    /// Something on the device never ends, not even when it is aborted.
    is_stuck: AtomicBool,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.context, f)
    }
}

impl Device {
    /// How many there are.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): the driver could not say.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// assert!(Device::count(Cuda::load()?)? > 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn count(cuda: Cuda) -> Result<usize> {
        context::devices(cuda)
    }

    /// The device with this number, from 0. It is always said which: nothing is guessed from ranks.
    ///
    /// # Errors
    /// [`Config`](phalanx_core::Error::Config): there is none with this number. [`Library`](phalanx_core::Error::Library): the driver refused.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let cuda = Cuda::load()?;
    /// assert_eq!(Device::open(cuda, 0)?.ordinal(), 0);
    /// assert!(Device::open(cuda, 1_000).is_err());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn open(cuda: Cuda, ordinal: usize) -> Result<Self> {
        let context = Arc::new(Context::retain(cuda, ordinal)?);
        let (allocating, freeing) = (Queue::new(&context)?, Queue::new(&context)?);
        let (staging, is_stuck) = (Pool::new(&context), AtomicBool::new(false));
        Ok(Self(Arc::new(Opened { context, allocating, freeing, staging, is_stuck })))
    }

    /// The device's number on this machine.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// assert_eq!(Device::open(Cuda::load()?, 1)?.ordinal(), 1);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn ordinal(&self) -> usize {
        self.0.context.ordinal
    }

    /// The name that its maker gave it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let device = Device::open(Cuda::load()?, 0)?;
    /// println!("{}", device.name()); // NVIDIA H100 80GB HBM3
    /// # assert!(!device.name().is_empty());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.0.context.name
    }

    /// The UUID, which no other GPU has, as `nvidia-smi -L` shows it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let cuda = Cuda::load()?;
    /// assert_ne!(Device::open(cuda, 0)?.uuid(), Device::open(cuda, 1)?.uuid());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn uuid(&self) -> String {
        self.0.context.uuid()
    }

    /// The compute capability, (9, 0) of a Hopper: the types that NCCL reduces depend on it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let device = Device::open(Cuda::load()?, 0)?;
    /// let reduces_eight_bits = device.compute_capability() >= (9, 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn compute_capability(&self) -> (u32, u32) {
        self.0.context.capability
    }

    pub(crate) fn cuda(&self) -> Cuda {
        self.0.context.cuda
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.0.context.enter()
    }

    pub(crate) fn allocating(&self) -> &Queue {
        &self.0.allocating
    }

    pub(crate) fn freeing(&self) -> &Queue {
        &self.0.freeing
    }

    /// Pinned memory for copies.
    pub(crate) fn staging(&self) -> &Pool {
        &self.0.staging
    }

    /// Marks the device as stuck: nothing waits for it from now on.
    pub(crate) fn is_stuck(&self) {
        self.0.is_stuck.store(true, Ordering::Relaxed);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.staging.close(self.is_stuck.load(Ordering::Relaxed));
    }
}
