//! Partial sums of half types.
//!
//! A sum of `f16` or `bf16` that is rounded wherever it passes through a rank loses what small contributions add, and overflows on the way
//! to an average that does not. So a rank keeps what it has added up so far as `f32`, beside the buffer, and sends it as `f32`. Contributions
//! of one rank and results are half numbers, which travel as they are. Each element is rounded once: where its last contribution is added,
//! and after the division of an average.
//!
//! A message of partial sums is twice as long as one of half numbers, by which its receiver knows it: what a rank has added up when it sends
//! depends on the algorithm and on its place in it.

use crate::plan::Sums;
use crate::scratch::Scratch;
use phalanx_core::{DType, Error, ReduceOp, Result, Signature};
use phalanx_kernels::{Conversion, HalfSum, Kernel};
use std::ops::Range;

/// Bytes of half numbers, or of partial sums, that are received at a time: they are combined in the cache.
pub(crate) const READ_LEN: usize = 128 << 10;

/// How a reduction combines.
#[derive(Debug, Clone, Copy)]
pub struct Arithmetic {
    kernel: Kernel,
    /// Of half types whose rounding depends on the order.
    wide: Option<Wide>,
    /// How many contributions an average has.
    divide_by: usize,
    /// Whether contributions are combined in the order of the ranks.
    in_rank_order: bool,
}

#[derive(Debug, Clone, Copy)]
struct Wide {
    /// Contributions are added to partial sums, and partial sums to each other.
    halves: HalfSum,
    kernel: Kernel,
    conversion: Conversion,
}

/// One side of a combination: bytes of elements, or of partial sums.
#[derive(Debug)]
pub(crate) enum Operand<'a> {
    /// Half numbers.
    Elements(&'a [u8]),
    /// Sums in `f32`.
    Partial(&'a [u8]),
}

impl Arithmetic {
    /// Of values of the type that this call carries, which are combined by `reduce`, in a group of so many ranks; `None` for what is no reduction.
    ///
    /// # Errors
    /// The operator is not defined for the type.
    pub fn of(signature: &Signature, reduce: Option<ReduceOp>, divide_by: usize) -> Result<Option<Self>> {
        let (Some(op), Some(dtype)) = (reduce, signature.carries()) else { return Ok(None) };
        let kernel = Kernel::new(op, dtype)
            .ok_or_else(|| Error::misuse(signature.op, format!("{op} is not defined for {dtype}")))?;
        let in_rank_order = signature.method.is_in_rank_order();
        Ok(Some(Self { kernel, wide: Wide::of(op, dtype), divide_by, in_rank_order }))
    }

    /// Whether partial sums are kept as `f32`.
    pub fn is_wide(&self) -> bool {
        self.wide.is_some()
    }

    /// `into[i] = into[i] ∘ from[i]`, all of them elements; the `last` time it is the result.
    pub(crate) fn combine(&self, into: &mut [u8], from: &[u8], last: bool) {
        if last {
            self.kernel.combine_last(into, from, self.divide_by);
        } else {
            self.kernel.combine(into, from);
        }
    }

    /// Where the sums of a collective are.
    pub fn sums(&self) -> Sums {
        match (self.in_rank_order, self.is_wide()) {
            (true, _) => Sums::InRankOrder,
            (false, true) => Sums::Kept,
            (false, false) => Sums::InPlace,
        }
    }

    /// The result, of the contributions of all ranks in this order; `None` stands for what is in `into`.
    pub(crate) fn fold(&self, into: &mut [u8], contributions: &[Option<&[u8]>]) {
        self.kernel.fold(into, contributions, self.divide_by);
    }

    /// Widens elements, the first time that they are combined.
    pub fn widen(&self, elements: &[u8], partial: &mut [u8]) {
        self.wide().conversion.widen(elements, partial);
    }

    /// The first time: of two contributions a partial sum.
    pub(crate) fn begin(&self, own: &[u8], from: Operand<'_>, partial: &mut [u8]) {
        let Wide { halves, kernel, conversion } = self.wide();
        match from {
            Operand::Elements(from) => halves.begin(own, from, partial),
            Operand::Partial(from) => {
                conversion.widen(own, partial);
                kernel.combine(partial, from);
            }
        }
    }

    /// `partial[i] = partial[i] ∘ from[i]`.
    pub(crate) fn add(&self, partial: &mut [u8], from: Operand<'_>) {
        match from {
            Operand::Elements(from) => self.wide().halves.add(partial, from),
            Operand::Partial(from) => self.wide().kernel.combine(partial, from),
        }
    }

    /// The last time: of a partial sum the result, `into` elements. What becomes of the partial sum means nothing.
    pub(crate) fn end(&self, partial: &mut [u8], from: Operand<'_>, into: &mut [u8]) {
        match from {
            Operand::Elements(from) => self.wide().halves.end(partial, from, into, self.divide_by),
            Operand::Partial(from) => {
                self.wide().kernel.combine_last(partial, from, self.divide_by);
                self.wide().conversion.narrow(partial, into);
            }
        }
    }

    fn wide(&self) -> &Wide {
        self.wide.as_ref().expect("half types have partial sums")
    }
}

impl Wide {
    fn of(op: ReduceOp, dtype: DType) -> Option<Self> {
        let (halves, conversion) = (HalfSum::new(op, dtype)?, Conversion::new(dtype)?);
        Some(Self { halves, kernel: Kernel::new(op, DType::F32)?, conversion })
    }
}

/// The partial sums of one collective on one rank: two bytes for each byte of the buffer, of which those are used that its plan says.
#[derive(Debug, Default)]
pub struct Partials {
    memory: Scratch,
    /// Where the buffer begins.
    start: usize,
}

impl Partials {
    /// For a buffer of `len` bytes.
    pub fn new(len: usize) -> Self {
        Self { memory: Scratch::new(2 * len), start: 0 }
    }

    /// From now on those of a buffer that begins `start` bytes further on.
    pub fn from(mut self, start: usize) -> Self {
        self.start = start;
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The partial sums of those bytes of the buffer.
    pub fn of(&mut self, range: &Range<usize>) -> &mut [u8] {
        let (start, end) = (2 * (self.start + range.start), 2 * (self.start + range.end));
        &mut self.memory.bytes_mut()[start..end]
    }

    /// Bytes of partial sums, as they travel.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.memory.bytes()[2 * self.start + range.start..2 * self.start + range.end]
    }
}
