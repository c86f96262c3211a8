//! What a kernel is given: parameters, and memory that is laid out as a tensor.

use crate::memory::Address;
use std::ffi::c_void;

/// What a launch leaves to its stream.
pub(super) type Work = Box<dyn FnOnce() + Send>;
/// Reads its parameters, which the caller may drop after the launch.
pub(super) type Kernel = fn(&mut Params) -> Work;

/// The parameters of a launch, one after the other.
pub(super) struct Params(*const *const c_void);

impl Params {
    pub(super) fn new(first: *const *const c_void) -> Self {
        Self(first)
    }

    /// The next one, which has this type.
    pub(super) fn next<T: Copy>(&mut self) -> T {
        // SAFETY: the caller of the launch gives as many pointers as the kernel has parameters.
        let value = unsafe { *self.0 };
        // SAFETY: see above.
        self.0 = unsafe { self.0.add(1) };
        // SAFETY: it points to a value of the type that the kernel has there.
        unsafe { value.cast::<T>().read_unaligned() }
    }

    pub(super) fn size(&mut self) -> usize {
        self.next()
    }

    pub(super) fn memory<T: Copy>(&mut self) -> Elements<T> {
        Elements::new(Address(self.next::<u64>() as *mut u8))
    }
}

/// Elements in device memory.
pub(crate) struct Elements<T>(Address, std::marker::PhantomData<fn() -> T>);

impl<T> Clone for Elements<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<T> {}

impl<T: Copy> Elements<T> {
    pub(crate) fn new(first: Address) -> Self {
        Self(first, std::marker::PhantomData)
    }

    pub(super) fn is_null(self) -> bool {
        self.0.0.is_null()
    }

    pub(crate) fn at(self, i: usize) -> T {
        // SAFETY: who launches a kernel vouches for what it reads.
        let place = unsafe { self.0.0.cast::<T>().add(i) };
        // SAFETY: see above.
        unsafe { place.read_unaligned() }
    }

    pub(crate) fn set(self, i: usize, value: T) {
        // SAFETY: who launches a kernel vouches for what it writes.
        let place = unsafe { self.0.0.cast::<T>().add(i) };
        // SAFETY: see above.
        unsafe { place.write_unaligned(value) };
    }

    /// So many of them, as they are now.
    pub(super) fn some(self, n: usize) -> Vec<T> {
        (0..n).map(|i| self.at(i)).collect()
    }
}

/// Where the elements of a tensor lie: dimensions, and the strides of each of several tensors of that shape. None: one after the other.
pub(super) struct Layout {
    pub(super) dims: Vec<usize>,
    pub(super) strides: Vec<Vec<usize>>,
}

impl Layout {
    /// What the device's memory says when the kernel runs.
    pub(super) fn read(info: Elements<usize>, dims: usize, tensors: usize) -> Option<Self> {
        let part = |i: usize| (0..dims).map(|at| info.at(i * dims + at)).collect();
        (!info.is_null()).then(|| Self { dims: part(0), strides: (1..=tensors).map(part).collect() })
    }

    /// Where the `i`th element of a tensor lies.
    pub(super) fn index(layout: Option<&Self>, tensor: usize, mut i: usize) -> usize {
        let Some(Self { dims, strides }) = layout else { return i };
        let mut at = 0;
        for (dim, stride) in dims.iter().zip(&strides[tensor]).rev() {
            at += i % dim * stride;
            i /= dim;
        }
        at
    }
}
