//! Device memory with a type.

use crate::device::Device;
use crate::device_memory::OnDevice;
use crate::element::DeviceElement;
use crate::in_order::use_in_order;
use crate::memory::Memory;
use crate::pool::LONGEST;
use crate::stream::Stream;
use crate::sys::cuda::RawPointer;
use phalanx_core::{Deadline, Error, OpKind, Result};
use phalanx_group::Extent;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// Elements in the memory of a device.
///
/// Each use of it is put on a stream and waits there for the use before, on the device. So streams need not be ordered by hand, and a
/// buffer may be dropped while a stream still uses it: the memory is freed later.
pub struct DeviceBuffer<T> {
    pub(crate) device: Device,
    /// The memory; `None` for a buffer without elements.
    pub(crate) memory: Option<OnDevice>,
    pub(crate) len: usize,
    pub(crate) elements: PhantomData<T>,
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = std::any::type_name::<T>();
        write!(f, "DeviceBuffer({name} x {} on device {})", self.len, self.device.ordinal())
    }
}

impl<T: DeviceElement> DeviceBuffer<T> {
    /// `len` zeros, from when `stream` comes to it.
    ///
    /// # Errors
    /// [`Library`](Error::Library): there is not enough memory.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let buffer = DeviceBuffer::<f32>::zeros(stream, 3)?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [0.0; 3]);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn zeros(stream: &Stream, len: usize) -> Result<Self> {
        let buffer = Self::new(stream.device(), len)?;
        if let Some(memory) = buffer.memory() {
            let (table, bytes) = (stream.device().cuda().table(), len * size_of::<T>());
            buffer.enqueue(stream, &[memory], "cuMemsetD8Async", || {
                // SAFETY: the memory has so many bytes, and the driver gets it in order.
                unsafe { (table.memset_d8_async)(memory.address(), 0, bytes, stream.raw()) }
            })?;
        }
        Ok(buffer)
    }

    /// A copy of `elements`, from when `stream` comes to it.
    ///
    /// # Cost
    /// They are first copied to pinned memory of the host, so they may change at once. That is kept for later copies as long as the device is open, in pieces of at most 8 MiB;
    /// for copies there are four such pieces, and of the sizes below at most 16 or 8 MiB each, 128 MiB in all. Where all of them are on their way, this waits for the stream that uses one, for a
    /// minute at most.
    ///
    /// # Errors
    /// [`Library`](Error::Library): there is not enough memory. [`Unavailable`](Error::Unavailable): no piece became free.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let buffer = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_host(stream: &Stream, elements: &[T]) -> Result<Self> {
        let mut buffer = Self::new(stream.device(), elements.len())?;
        buffer.copy_from_host(stream, elements)?;
        Ok(buffer)
    }

    /// Memory of somebody else, a tensor of candle, say, or an array of the CUDA runtime. Its uses here wait for what `stream` was given so far; call
    /// [`order`](Self::order) afterwards, and `stream` waits for them. It is not freed.
    ///
    /// # Errors
    /// [`Library`](Error::Library): the driver refused.
    ///
    /// # Safety
    /// There are `len` elements at `address` in the memory of the stream's device. They are there, and nobody uses them who is not ordered behind the uses here, until the
    /// last of these is over.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::ReduceOp;
    /// # use phalanx_nccl::{DeviceBuffer, Stream};
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let devices = phalanx_nccl::NcclGroup::new(&group, group.rank())?;
    /// # let compute = &Stream::new(devices.device())?;
    /// # let memory = DeviceBuffer::from_host(compute, &[group.rank() as f32, 1.0])?;
    /// let (address, len) = (memory.address(), memory.len()); // of a tensor that is computed on `compute`
    /// // SAFETY: the tensor lives until `compute` is past the average.
    /// let mut tensor = unsafe { DeviceBuffer::<f32>::from_raw(compute, address, len)? };
    /// let work = devices.all_reduce(&mut tensor, ReduceOp::Avg)?; // behind what computes the tensor
    /// tensor.order(compute)?; // what is put on `compute` from now on sees the average
    /// work.wait()?;
    /// assert_eq!(memory.to_host(compute, limit)?, [0.5, 1.0]);
    /// # devices.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub unsafe fn from_raw(stream: &Stream, address: RawPointer, len: usize) -> Result<Self> {
        let memory = if len == 0 { None } else { Some(OnDevice::of_another(stream, address)?) };
        Ok(Self { device: stream.device().clone(), memory, len, elements: PhantomData })
    }

    /// Overwrites all elements, when `stream` comes to it. Costs as [`from_host`](Self::from_host).
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse): another number of elements; else as for `from_host`, and the buffer may have part of them then.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let mut buffer = DeviceBuffer::zeros(stream, 2)?;
    /// buffer.copy_from_host(stream, &[1.0f32, 2.0])?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// assert!(buffer.copy_from_host(stream, &[1.0]).is_err());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn copy_from_host(&mut self, stream: &Stream, elements: &[T]) -> Result<()> {
        if elements.len() != self.len {
            let what = format!("{} elements into a buffer of {}", elements.len(), self.len);
            return Err(Error::misuse(OpKind::Alloc, what));
        }
        let Some(memory) = self.memory() else { return Ok(()) };
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        let (table, pool) = (self.device.cuda().table(), self.device.staging());
        for (i, part) in bytes.chunks(LONGEST).enumerate() {
            let mut piece = pool.for_copy(part.len())?;
            piece.write(part);
            let (to, from) =
                (memory.address() + (i * LONGEST) as u64, piece.memory().address() as *const c_void);
            self.enqueue(stream, &[memory, piece.memory()], "cuMemcpyHtoDAsync_v2", || {
                // SAFETY: both have so many bytes, and live until the stream is past this.
                unsafe { (table.memcpy_to_device_async)(to, from, part.len(), stream.raw()) }
            })?;
        }
        Ok(())
    }

    /// The elements, when `stream` has come to it and the copy is here.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): that took longer than `timeout`. [`Library`](Error::Library): something before it has failed, or there is not
    /// enough pinned memory.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let buffer = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn to_host(&self, stream: &Stream, timeout: Duration) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.len];
        let Some(memory) = self.memory() else { return Ok(elements) };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut elements);
        let deadline = Deadline::after(Instant::now(), timeout);
        for (i, part) in bytes.chunks_mut(LONGEST).enumerate() {
            let left = deadline.remaining(Instant::now());
            if !self.fetch(stream, memory, (i * LONGEST) as u64, part, left)? {
                let what = format!("the content of {self:?} within {:.1} s", timeout.as_secs_f64());
                return Err(Error::Unavailable { what, tried: format!("{stream:?}") });
            }
        }
        Ok(elements)
    }

    /// Part of the content; `false` when it does not come in time.
    fn fetch(
        &self,
        stream: &Stream,
        memory: &Memory,
        offset: u64,
        part: &mut [u8],
        timeout: Duration,
    ) -> Result<bool> {
        let (table, piece) = (self.device.cuda().table(), self.device.staging().for_copy(part.len())?);
        let (to, from) = (piece.memory().address() as *mut c_void, memory.address() + offset);
        self.enqueue(stream, &[memory, piece.memory()], "cuMemcpyDtoHAsync_v2", || {
            // SAFETY: both have so many bytes, and live until the stream is past this.
            unsafe { (table.memcpy_to_host_async)(to, from, part.len(), stream.raw()) }
        })?;
        let is_there = piece.memory().wait(timeout)?;
        if is_there {
            piece.read(part);
        }
        Ok(is_there)
    }

    /// Later work on `stream` waits, on the device, for the last use of this buffer: for work of other libraries, which goes by its
    /// [address](Self::address).
    ///
    /// # Errors
    /// [`Library`](Error::Library): the driver refused. [`Config`](Error::Config): the stream captures a graph.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{DeviceBuffer, Stream};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// let buffer = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// let compute = Stream::new(&device)?;
    /// buffer.order(&compute)?; // what another library puts there from now on sees the copy
    /// # assert!(compute.synchronize(limit)?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn order(&self, stream: &Stream) -> Result<()> {
        stream.check_capture()?;
        self.memory().map_or(Ok(()), |memory| memory.order(stream.queue()))
    }

    fn new(device: &Device, len: usize) -> Result<Self> {
        let memory = match len.checked_mul(size_of::<T>()) {
            None => {
                return Err(Error::misuse(
                    OpKind::Alloc,
                    format!("{len} elements are more than memory has addresses"),
                ));
            }
            Some(0) => None,
            Some(bytes) => Some(OnDevice::new(device, bytes)?),
        };
        Ok(Self { device: device.clone(), memory, len, elements: PhantomData })
    }

    fn enqueue(
        &self,
        stream: &Stream,
        memory: &[&Memory],
        call: &'static str,
        enqueue: impl FnOnce() -> crate::sys::cuda::Code,
    ) -> Result<()> {
        use_in_order(stream, memory, || {
            let _entered = self.device.enter()?;
            self.device.cuda().check(call, enqueue())
        })
    }
}

impl<T> DeviceBuffer<T> {
    /// Elements.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert_eq!(DeviceBuffer::<f32>::zeros(stream, 3)?.len(), 3);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert!(DeviceBuffer::<f32>::zeros(stream, 0)?.is_empty());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that has the memory.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert_eq!(DeviceBuffer::<f32>::zeros(stream, 3)?.device().ordinal(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The `CUdeviceptr`; 0 where there are no elements.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let device = phalanx_nccl::Device::open(phalanx_nccl::Cuda::load()?, 0)?;
    /// # let stream = &phalanx_nccl::Stream::new(&device)?;
    /// assert_ne!(DeviceBuffer::<f32>::zeros(stream, 3)?.address(), 0);
    /// assert_eq!(DeviceBuffer::<f32>::zeros(stream, 0)?.address(), 0);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn address(&self) -> RawPointer {
        self.memory().map_or(0, Memory::address)
    }

    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref().map(OnDevice::memory)
    }
}

impl<T> Extent for &DeviceBuffer<T> {
    fn len_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> Extent for &mut DeviceBuffer<T> {
    fn len_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}
