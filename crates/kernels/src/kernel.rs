//! The face: a kernel is a function for one operator, one element type, one instance.

use crate::generic::Reduce;
use crate::{Instance, float_state, isa, reference};
use phalanx_core::{DType, ReduceOp};

/// Up to so many bytes are combined one element at a time: laying them over a block and taking them off again costs 40 ns.
const TINY: usize = 16;

/// How buffers of one element type are combined.
///
/// A small value, made in a few nanoseconds: no state, no allocation.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    op: ReduceOp,
    dtype: DType,
    instance: Instance,
    reduce: Reduce,
}

impl Kernel {
    /// The fastest kernel for an operator on an element type; `None` where the operator is not defined.
    ///
    /// # Cost
    /// One atomic load (what the CPU offers was found out before) and one jump.
    #[inline]
    pub fn new(op: ReduceOp, dtype: DType) -> Option<Self> {
        Self::of(Instance::best(), op, dtype)
    }

    /// The kernel of a given instance, for tests and benchmarks; `None` where the operator is not defined, or this
    /// machine can't run the instance.
    pub fn with(instance: Instance, op: ReduceOp, dtype: DType) -> Option<Self> {
        if instance.is_available() { Self::of(instance, op, dtype) } else { None }
    }

    /// `instance` must be available: [`Kernel::reduce`] relies on it.
    #[inline]
    fn of(instance: Instance, op: ReduceOp, dtype: DType) -> Option<Self> {
        let reduce = match instance {
            Instance::Plain => reference::kernel(op, dtype),
            Instance::Baseline => isa::baseline::kernel(op, dtype),
            #[cfg(target_arch = "x86_64")]
            Instance::Avx2 => isa::avx2::kernel(op, dtype),
            #[cfg(target_arch = "x86_64")]
            Instance::Avx512 => isa::avx512::kernel(op, dtype),
            #[cfg(target_arch = "aarch64")]
            Instance::Neon => isa::neon::kernel(op, dtype),
            _ => None,
        }?;
        Some(Self { op, dtype, instance, reduce })
    }

    /// Which instance this is.
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// `into[i] = into[i] ∘ from[i]`. An average is only summed up; [`Kernel::finish`] divides.
    ///
    /// # Shape
    /// Two buffers of the same length in bytes, whole elements, at any address.
    ///
    /// # Panics
    /// If the lengths differ, or are not a whole number of elements.
    pub fn combine(&self, into: &mut [u8], from: &[u8]) {
        assert_eq!(into.len(), from.len(), "buffers of one length are combined");
        let (len, into) = (into.len(), into.as_mut_ptr());
        // SAFETY: both are good for `len` bytes as slices are; `from` can't overlap the exclusive `into`, which is also a
        // source at the same address.
        unsafe { self.reduce(&[into], &[into, from.as_ptr()], len, 1) }
    }

    /// As [`combine`](Self::combine) and [`finish`](Self::finish) after it, but half types are rounded once, after the division.
    ///
    /// # Panics
    /// As those two.
    pub fn combine_last(&self, into: &mut [u8], from: &[u8], world_size: usize) {
        assert_eq!(into.len(), from.len(), "buffers of one length are combined");
        let (len, into) = (into.len(), into.as_mut_ptr());
        // SAFETY: as in `combine`.
        unsafe { self.reduce(&[into], &[into, from.as_ptr()], len, world_size) }
    }

    /// Combines `sources` in the order given, into `into`; `None` stands for what is in there. `divide_by`: as of [`reduce`](Self::reduce).
    ///
    /// # Panics
    /// As [`reduce`](Self::reduce) does, and if the lengths differ.
    pub fn fold(&self, into: &mut [u8], sources: &[Option<&[u8]>], divide_by: usize) {
        let len = into.len();
        assert!(
            sources.iter().flatten().all(|source| source.len() == len),
            "buffers of one length are combined"
        );
        let into = into.as_mut_ptr();
        let sources: Vec<_> =
            sources.iter().map(|source| source.map_or(into.cast_const(), <[u8]>::as_ptr)).collect();
        // SAFETY: as in `combine`: all are good for `len` bytes, and the shared slices can't overlap the exclusive `into`.
        unsafe { self.reduce(&[into], &sources, len, divide_by) }
    }

    /// Ends a reduction over `world_size` contributions: divides, for averages.
    ///
    /// # Panics
    /// If the buffer is not a whole number of elements, or `world_size` is 0.
    pub fn finish(&self, buffer: &mut [u8], world_size: usize) {
        if self.op == ReduceOp::Avg {
            let (len, buffer) = (buffer.len(), buffer.as_mut_ptr());
            // SAFETY: the slice is good for `len` bytes; it is source and destination at the same address.
            unsafe { self.reduce(&[buffer], &[buffer], len, world_size) }
        }
    }

    /// Combines all `sources`, element by element in the order given, and stores the result to every destination.
    ///
    /// # Shape
    /// `len`: bytes of each source and destination, a whole number of elements. `divide_by`: what an average divides by
    /// at the end (1: not at all); other operators ignore it. No address needs an alignment.
    ///
    /// # Cost
    /// Each source is read once, each destination written once. Half types are rounded once.
    ///
    /// # Determinism
    /// The bits are those of round to nearest even with subnormals, whatever state the thread's floats are in (flush to
    /// zero, another rounding, traps). The state is afterwards what it was.
    ///
    /// # Panics
    /// If there is no source, `len` is not a whole number of elements, or an average is to be divided by 0.
    ///
    /// # Safety
    /// - Every source is valid for reads, every destination for writes, of `len` bytes.
    /// - A destination overlaps no other destination, and no source unless it begins at the same address.
    /// - Nobody else writes to the sources, or touches the destinations, until this returns. (The memory may be shared
    ///   with other processes: no reference to it is ever made.)
    pub unsafe fn reduce(&self, into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
        let (op, dtype) = (self.op, self.dtype);
        assert!(!sources.is_empty(), "{op} of {dtype}: a reduction needs a source");
        // Sizes are powers of two; a division would take as long as the smallest reductions.
        assert!(len & (dtype.size() - 1) == 0, "{len} bytes are not a whole number of {dtype}");
        assert!(divide_by > 0 || op != ReduceOp::Avg, "an average of {dtype} is divided by 0");
        let tiny = if len <= TINY { reference::kernel(op, dtype) } else { None };
        let reduce = tiny.unwrap_or(self.reduce);
        // SAFETY: the caller answers for the memory; the shape was just checked; the instance is available (see `of`).
        unsafe { float_state::call(reduce, into, sources, len, divide_by) }
    }
}
