//! Slices of cudarc, in which candle keeps its tensors, as buffers.
//!
//! cudarc and this crate both use a device's primary context, so addresses and streams of the one are good for the other. A slice is given away while it is
//! a buffer, and given back afterwards: so nothing needs to be vouched for.

use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::device_memory::OnDevice;
use crate::element::DeviceElement;
use crate::stream::Stream;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};
use phalanx_core::{Error, OpKind, Result};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

impl<T: DeviceElement> DeviceBuffer<T> {
    /// The elements in `range` of `slice`, which [`into_slice`](Self::into_slice) gives back. Uses here come behind what the slice's stream was given so far.
    ///
    /// If the buffer is dropped instead, the slice is freed behind the last use.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse): the slice is of another device, or of another library of the driver than that of `device`; it is freed, as it would have been.
    /// [`Library`](Error::Library): the driver refused.
    ///
    /// # Panics
    /// If the slice has not so many elements.
    ///
    /// # Examples
    /// ```no_run
    /// use cudarc::driver::CudaContext;
    /// use phalanx_nccl::{Cuda, Device, DeviceBuffer};
    ///
    /// let device = Device::open(Cuda::load()?, 0)?;
    /// let slice = CudaContext::new(0)?.default_stream().alloc_zeros::<f32>(4)?;
    /// let buffer = DeviceBuffer::from_slice(&device, slice, 1..3)?;
    /// assert_eq!(buffer.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_slice(device: &Device, mut slice: CudaSlice<T>, range: Range<usize>) -> Result<Self> {
        assert!(
            range.start <= range.end && range.end <= slice.len(),
            "{range:?} of {} elements",
            slice.len()
        );
        let stream = slice.stream().clone();
        let theirs = stream.context();
        if !device.is_of(theirs) {
            let what = format!("memory of device {} for a rank on {device}", theirs.ordinal());
            return Err(Error::misuse(OpKind::Alloc, what));
        }
        // Where a program has several streams, the slice's own is now behind what the others do with the slice.
        let start = slice.device_ptr_mut(&stream).0;
        let address = start + (range.start * size_of::<T>()) as u64;
        let queue = queue(device, &stream);
        let memory = Some(OnDevice::lent(&queue, address, Box::new(slice))?);
        Ok(Self { device: device.clone(), memory, len: range.len(), elements: PhantomData })
    }

    /// The slice that the buffer was made of. What its stream is given from now on comes behind the uses here.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse): it was made of none. [`Unavailable`](Error::Unavailable), [`Library`](Error::Library): an operation has failed in such a way
    /// that it may still use the memory, which is neither given back nor freed.
    ///
    /// # Examples
    /// ```no_run
    /// # use cudarc::driver::CudaContext;
    /// # use phalanx_nccl::{Cuda, Device, DeviceBuffer};
    /// # let device = Device::open(Cuda::load()?, 0)?;
    /// # let slice = CudaContext::new(0)?.default_stream().alloc_zeros::<f32>(4)?;
    /// let buffer = DeviceBuffer::from_slice(&device, slice, 1..3)?;
    /// // … operations on the buffer …
    /// let slice = buffer.into_slice()?;
    /// assert_eq!(slice.len(), 4); // all of it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_slice(self) -> Result<CudaSlice<T>> {
        let keeper = self.memory.map(OnDevice::give_back).transpose()?.flatten();
        let slice = keeper.and_then(|keeper| keeper.downcast::<CudaSlice<T>>().ok());
        let mut slice =
            slice.ok_or_else(|| Error::misuse(OpKind::Alloc, "the buffer was made of no slice"))?;
        // The slice's other streams, if there are any, hear that it was written on this one.
        let stream = slice.stream().clone();
        drop(slice.device_ptr_mut(&stream).1);
        Ok(*slice)
    }
}

impl Device {
    /// Whether memory and streams of `context` are those of this device: it is the device's primary context, of the same library of the driver.
    ///
    /// # Examples
    /// ```no_run
    /// # use cudarc::driver::CudaContext;
    /// # use phalanx_nccl::{Cuda, Device};
    /// let device = Device::open(Cuda::load()?, 0)?;
    /// assert!(device.is_of(&*CudaContext::new(0)?));
    /// assert!(!device.is_of(&*CudaContext::new(1)?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_of(&self, context: &CudaContext) -> bool {
        context.cu_ctx().cast() == self.context().raw()
    }
}

/// cudarc's stream as ours.
fn queue(device: &Device, stream: &Arc<CudaStream>) -> Stream {
    // SAFETY: it is a stream of this context. It goes with the slice, which keeps it alive, and only as long.
    unsafe { Stream::from_raw(device, stream.cu_stream().cast()) }
}
