//! Memory of the host that a request is about: borrowed for a call, or owned by an operation.

use crate::group::pending::Bytes;
use crate::group::request::Buffers;
use phalanx_core::{CallSite, OpKind};
use phalanx_kernels::copy_slice;
use std::ops::Range;

/// Memory that has a length.
pub trait Extent {
    /// Bytes of it.
    fn len_bytes(&self) -> usize;
}

impl<T> Extent for &[T] {
    fn len_bytes(&self) -> usize {
        size_of_val(*self)
    }
}

impl<T> Extent for &mut [T] {
    fn len_bytes(&self) -> usize {
        size_of_val(*self)
    }
}

/// A buffer that an operation owns, and the length that it had when it was given.
pub struct OwnedBuffer {
    buffer: Box<dyn Bytes>,
    len: usize,
}

impl std::fmt::Debug for OwnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl OwnedBuffer {
    /// A buffer as it is now.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{Extent, OwnedBuffer};
    /// let buffer = OwnedBuffer::new(Box::new(vec![0.5f32; 3]));
    /// assert_eq!(buffer.len_bytes(), 12);
    /// ```
    pub fn new(mut buffer: Box<dyn Bytes>) -> Self {
        let len = buffer.bytes().len();
        Self { buffer, len }
    }

    /// Its bytes, if they are still as many.
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making returned another slice.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{Bytes, OwnedBuffer};
    /// let mut buffer = OwnedBuffer::new(Box::new(vec![1u8, 2]));
    /// assert_eq!(buffer.bytes().unwrap(), [1, 2]);
    /// ```
    pub fn bytes(&mut self) -> Result<&mut [u8], Changed> {
        let bytes = self.buffer.bytes();
        match bytes.len() == self.len {
            true => Ok(bytes),
            false => Err(Changed { begun: self.len, now: bytes.len() }),
        }
    }

    /// Gives the buffer back.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{Bytes, OwnedBuffer};
    /// let buffer = OwnedBuffer::new(Box::new(vec![1u8, 2]));
    /// let buffer = buffer.into_inner().into_any().downcast::<Vec<u8>>();
    /// assert_eq!(*buffer.unwrap(), [1, 2]);
    /// ```
    pub fn into_inner(self) -> Box<dyn Bytes> {
        self.buffer
    }
}

impl Extent for OwnedBuffer {
    fn len_bytes(&self) -> usize {
        self.len
    }
}

/// A buffer has other bytes than when its operation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    begun: usize,
    now: usize,
}

impl Changed {
    /// What is wrong with a buffer of the operation that was called there.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::{Bytes, OwnedBuffer};
    /// # use phalanx_core::{CallSite, OpKind};
    /// struct Grows(Vec<u8>);
    ///
    /// impl Bytes for Grows {
    ///     fn bytes(&mut self) -> &mut [u8] {
    ///         self.0.push(0);
    ///         &mut self.0
    ///     }
    /// #   fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> { self }
    /// }
    /// let changed = OwnedBuffer::new(Box::new(Grows(Vec::new()))).bytes().unwrap_err();
    /// let what = changed.describe(OpKind::AllReduce, &CallSite::caller());
    /// assert!(what.contains("has 2 bytes now, and had 1"));
    /// ```
    pub fn describe(self, op: OpKind, site: &CallSite) -> String {
        let Self { begun, now } = self;
        format!(
            "the buffer of {op} at {site} has {now} bytes now, and had {begun} when it began: its Bytes must always return the same slice"
        )
    }
}

/// Memory that is read.
pub(crate) trait Readable: Extent {
    fn read(&mut self) -> Result<&[u8], Changed>;
}

/// Memory that is written.
pub(crate) trait Writable: Extent {
    fn write(&mut self) -> Result<&mut [u8], Changed>;
}

impl Readable for &[u8] {
    fn read(&mut self) -> Result<&[u8], Changed> {
        Ok(self)
    }
}

impl Writable for &mut [u8] {
    fn write(&mut self) -> Result<&mut [u8], Changed> {
        Ok(self)
    }
}

impl Readable for OwnedBuffer {
    fn read(&mut self) -> Result<&[u8], Changed> {
        self.bytes().map(|bytes| &*bytes)
    }
}

impl Writable for OwnedBuffer {
    fn write(&mut self) -> Result<&mut [u8], Changed> {
        self.bytes()
    }
}

impl Buffers<&[u8], &mut [u8]> {
    /// The output, to which an input of the same length is copied.
    pub(crate) fn whole(&mut self) -> &mut [u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Separate(input, output) => {
                copy_slice(output, input);
                output
            }
        }
    }

    /// The output, to which an input is copied as its part `own`.
    pub(crate) fn with_own(&mut self, own: Range<usize>) -> &mut [u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Separate(input, output) => {
                copy_slice(&mut output[own], input);
                output
            }
        }
    }
}
