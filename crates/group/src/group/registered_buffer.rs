//! Buffers that suit a group: where its ranks share a host, all of them have them mapped.

use crate::ProcessGroup;
use crate::group::backend::BufferMemory;
use crate::group::pending::Bytes;
use crate::group::work::Buffer;
use phalanx_core::{Element, Error, OpKind, Result};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Elements in memory that all ranks of this host can reach, made by [`ProcessGroup::alloc`].
///
/// It is used like a slice, and is this rank's own: the other ranks look at it, and write to it, only in collectives
/// that this rank takes part in with it. Collectives on it, or on parts of it, copy nothing between ranks of one host,
/// except [`all_to_all_in_place`](ProcessGroup::all_to_all_in_place).
/// Where ranks share no memory it is a buffer like any other. When the last rank has dropped its buffer the memory is given
/// back: by each rank as it begins the group's next collective, or drops the group.
#[derive(Debug)]
pub struct RegisteredBuffer<T> {
    memory: BufferMemory,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Deref for RegisteredBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes: &[u8] = match &self.memory {
            #[cfg(target_os = "linux")]
            BufferMemory::Shared(window) => window.bytes(),
            BufferMemory::Private(words) => bytemuck::cast_slice(words),
        };
        bytemuck::cast_slice(&bytes[..self.len * size_of::<T>()])
    }
}

impl<T: Element> DerefMut for RegisteredBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = match &mut self.memory {
            #[cfg(target_os = "linux")]
            BufferMemory::Shared(window) => window.bytes_mut(),
            BufferMemory::Private(words) => bytemuck::cast_slice_mut(words),
        };
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<T>()])
    }
}

impl<T: Element> Bytes for RegisteredBuffer<T> {
    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl<T: Element> Buffer for RegisteredBuffer<T> {
    type Element = T;
}

impl ProcessGroup {
    /// Makes a buffer of `len` elements, all zero, that suits this group: see [`RegisteredBuffer`].
    ///
    /// Collective: every rank makes its own, of equal length and element type.
    ///
    /// # Cost
    /// A handshake with each rank of the host, and the first touch of every page (about 0.5 s a GiB): make it once and keep it.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract); [`Misuse`](Error::Misuse) for more elements than there can be.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{ReduceOp, threads};
    /// std::thread::scope(|ranks| {
    ///     for group in threads(2) {
    ///         ranks.spawn(move || -> phalanx_core::Result<()> {
    ///             let mut gradients = group.alloc::<f32>(1000)?;
    ///             gradients.fill(1.5);
    ///             group.all_reduce(&mut gradients, ReduceOp::Sum)?;
    ///             assert!(gradients.iter().all(|&g| g == 3.0));
    ///             Ok(())
    ///         });
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<RegisteredBuffer<T>> {
        let site = self.site();
        let Some(bytes) = len.checked_mul(size_of::<T>()).filter(|&b| b <= isize::MAX as usize / 2) else {
            return Err(Error::misuse(
                OpKind::Alloc,
                format!("{len} elements are more than memory can hold, at {site}"),
            ));
        };
        let signature = self.signature(OpKind::Alloc, T::DTYPE, len, site)?;
        Ok(RegisteredBuffer {
            memory: self.backend.alloc(signature, bytes, self.timeout())?,
            len,
            element: PhantomData,
        })
    }
}
