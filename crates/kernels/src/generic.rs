//! The one loop, over any block format and operator. An instance is this file compiled for an instruction set.
//!
//! Everything here is `#[inline(always)]`: it must be compiled inside the function that enables the target features. A
//! block is as many bytes as the compiler moves without a call and unrolls into vectors (each instance states its own);
//! whole blocks are read before any is written, which is what allows a destination to be a source.

use crate::ops::{Lane, Op};
use std::marker::PhantomData;
use std::ptr;

/// A kernel as bytes see it: destinations, sources, bytes of each, what an average divides by. Of which of them these are the bytes where some are
/// longer, its [`Body`] says.
///
/// Unsafe to call for two reasons: the memory (see [`Kernel::reduce`](crate::Kernel::reduce)) and the CPU, which must have
/// the features of the instance. Expects at least one source, whole elements, and a divisor that is not 0.
pub(crate) type Reduce = unsafe fn(&[*mut u8], &[*const u8], usize, usize);

/// How a block travels between memory and accumulator.
pub(crate) trait Format<I> {
    /// A block in memory. Any bits are a value of it, zeros among them, and it has no padding.
    type Block: Copy;
    /// The block as it is computed with.
    type Acc: Lanes;

    /// A block of zeros, whose first bytes the end of a buffer is laid over.
    const ZERO: Self::Block;

    fn widen(isa: I, block: Self::Block) -> Self::Acc;
    /// Makes every NaN the one NaN.
    fn narrow(isa: I, acc: Self::Acc) -> Self::Block;
}

/// Many equal computations side by side.
pub(crate) trait Lanes: Copy {
    type Item: Lane;
    fn zip(self, other: Self, f: impl Fn(Self::Item, Self::Item) -> Self::Item) -> Self;
    fn map(self, f: impl Fn(Self::Item) -> Self::Item) -> Self;
}

impl<T: Lane, const N: usize> Lanes for [T; N] {
    type Item = T;

    // Loops over indices in place: of all ways to write this, the one that becomes vectors for every type and length.
    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        for i in 0..N {
            self[i] = f(self[i], other[i]);
        }
        self
    }

    #[inline(always)]
    fn map(mut self, f: impl Fn(T) -> T) -> Self {
        for a in &mut self {
            *a = f(*a);
        }
        self
    }
}

/// Elements that are computed with as they lie in memory.
#[derive(Debug)]
pub(crate) struct Direct<T, const N: usize>(PhantomData<T>);

impl<I, T: Lane, const N: usize> Format<I> for Direct<T, N> {
    type Block = [T; N];
    type Acc = [T; N];
    const ZERO: [T; N] = [T::ZERO; N];

    #[inline(always)]
    fn widen(_: I, block: [T; N]) -> [T; N] {
        block
    }

    #[inline(always)]
    fn narrow(_: I, acc: [T; N]) -> [T; N] {
        Lanes::map(acc, Lane::canonical)
    }
}

/// A format whose numbers can be kept in memory as `f32` too.
pub(crate) trait Widening<I>: Format<I, Acc: Lanes<Item = f32>> {
    /// The numbers of a block one after the other. Any bits are a value of it, and it has no padding.
    type Wide: Copy;
    const WIDE_ZERO: Self::Wide;

    fn in_order(acc: Self::Acc) -> Self::Wide;
    fn from_order(wide: Self::Wide) -> Self::Acc;
}

/// A loop that an instance compiles for its instructions, as a [`Reduce`].
pub(crate) trait Body<I> {
    /// # Safety
    /// As [`Reduce`]; `isa` stands for the features.
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize);
}

/// Combines numbers of a format by an operator.
pub(crate) struct Reduction<F, O>(PhantomData<(F, O)>);

impl<I: Copy, F: Format<I>, O: Op<<F::Acc as Lanes>::Item>> Body<I> for Reduction<F, O> {
    #[inline(always)]
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
        // SAFETY: what the caller promised.
        unsafe { reduce::<I, F, O>(isa, into, sources, len, divide_by) }
    }
}

/// Writes the numbers of the first source, `len` bytes of them, to the first destination as `f32`, which are twice as many bytes.
pub(crate) struct Widen<F>(PhantomData<F>);

impl<I: Copy, F: Widening<I>> Body<I> for Widen<F> {
    #[inline(always)]
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, _: usize) {
        for at in (0..len).step_by(size_of::<F::Block>()) {
            let bytes = size_of::<F::Block>().min(len - at);
            // SAFETY: the caller says that the source is valid for `len`, which is at least `at + bytes`.
            let wide = F::in_order(F::widen(isa, unsafe { load(sources[0], at, bytes, F::ZERO) }));
            // SAFETY: and the destination for twice as many.
            unsafe { store(&wide, into[0], 2 * at, 2 * bytes) };
        }
    }
}

/// The way back: `len` bytes of `f32` to half as many, each number rounded to nearest even, every NaN the one NaN.
pub(crate) struct Narrow<F>(PhantomData<F>);

impl<I: Copy, F: Widening<I>> Body<I> for Narrow<F> {
    #[inline(always)]
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, _: usize) {
        for at in (0..len).step_by(size_of::<F::Wide>()) {
            let bytes = size_of::<F::Wide>().min(len - at);
            // SAFETY: the caller says that the source is valid for `len`, which is at least `at + bytes`.
            let acc = F::from_order(unsafe { load(sources[0], at, bytes, F::WIDE_ZERO) });
            // SAFETY: and the destination for half as many.
            unsafe { store(&F::narrow(isa, acc), into[0], at / 2, bytes / 2) };
        }
    }
}

/// Combines the first source with the second, which are numbers of a format, `len` bytes of them. `WIDE`: the first is `f32`, twice as many
/// bytes. The result is divided and narrowed if it is the `LAST`, and `f32` if not.
pub(crate) struct Mixed<F, O, const WIDE: bool, const LAST: bool>(PhantomData<(F, O)>);

impl<I: Copy, F: Widening<I>, O: Op<f32>, const WIDE: bool, const LAST: bool> Body<I>
    for Mixed<F, O, WIDE, LAST>
{
    #[inline(always)]
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
        let division = Division::<f32>::of(O::AVERAGES, divide_by);
        for at in (0..len).step_by(size_of::<F::Block>()) {
            let bytes = size_of::<F::Block>().min(len - at);
            let first = if WIDE {
                // SAFETY: the caller says that such a source is valid for twice `len`, which is at least `2 * (at + bytes)`.
                F::from_order(unsafe { load(sources[0], 2 * at, 2 * bytes, F::WIDE_ZERO) })
            } else {
                // SAFETY: the caller says that the source is valid for `len`, which is at least `at + bytes`.
                F::widen(isa, unsafe { load(sources[0], at, bytes, F::ZERO) })
            };
            // SAFETY: the caller says that the source is valid for `len`, which is at least `at + bytes`.
            let second = F::widen(isa, unsafe { load(sources[1], at, bytes, F::ZERO) });
            let acc = first.zip(second, O::apply);
            if LAST {
                // SAFETY: the destination is valid for `len`, says the caller; the sources were read before.
                unsafe { store(&F::narrow(isa, division.apply(acc)), into[0], at, bytes) };
            } else {
                // SAFETY: such a destination is valid for twice `len`, says the caller; the sources were read before.
                unsafe { store(&F::in_order(acc), into[0], 2 * at, 2 * bytes) };
            }
        }
    }
}

/// The division at the end of an average.
#[derive(Clone, Copy)]
enum Division<T> {
    None,
    /// Exact for powers of two, and many times faster than a division.
    Times(T),
    By(usize),
}

impl<T: Lane> Division<T> {
    #[inline(always)]
    fn of(averages: bool, divide_by: usize) -> Self {
        match T::reciprocal(divide_by) {
            _ if !averages || divide_by == 1 => Self::None,
            Some(reciprocal) => Self::Times(reciprocal),
            None => Self::By(divide_by),
        }
    }

    #[inline(always)]
    fn apply<A: Lanes<Item = T>>(self, acc: A) -> A {
        match self {
            Self::None => acc,
            Self::Times(reciprocal) => acc.map(|a| a.mul(reciprocal)),
            Self::By(divisor) => acc.map(|a| a.divide(divisor)),
        }
    }
}

/// # Safety
/// As [`Reduce`]; `isa` stands for the features.
#[inline(always)]
pub(crate) unsafe fn reduce<I: Copy, F: Format<I>, O: Op<<F::Acc as Lanes>::Item>>(
    isa: I,
    into: &[*mut u8],
    sources: &[*const u8],
    len: usize,
    divide_by: usize,
) {
    let division = Division::of(O::AVERAGES, divide_by);
    let block = size_of::<F::Block>();
    let mut at = 0;
    while len - at >= block {
        // SAFETY: `at + block <= len`, for which the caller says all pointers are valid.
        unsafe { step::<I, F, O>(isa, into, sources, at, block, division) };
        at += block;
    }
    if at < len {
        // SAFETY: the bytes from `at` up to `len`, which are fewer than a block.
        unsafe { step::<I, F, O>(isa, into, sources, at, len - at, division) };
    }
}

/// Combines one block, or the first `bytes` of one.
///
/// # Safety
/// All pointers are valid for `at + bytes`, a destination may be a source, and `bytes` is at most a block.
#[inline(always)]
unsafe fn step<I: Copy, F: Format<I>, O: Op<<F::Acc as Lanes>::Item>>(
    isa: I,
    into: &[*mut u8],
    sources: &[*const u8],
    at: usize,
    bytes: usize,
    division: Division<<F::Acc as Lanes>::Item>,
) {
    // SAFETY: what the caller promised.
    let mut acc = F::widen(isa, unsafe { load(sources[0], at, bytes, F::ZERO) });
    for &source in &sources[1..] {
        // SAFETY: what the caller promised.
        let block = unsafe { load(source, at, bytes, F::ZERO) };
        acc = acc.zip(F::widen(isa, block), O::apply);
    }
    let block = F::narrow(isa, division.apply(acc));
    for &destination in into {
        // SAFETY: valid for `at + bytes`, says the caller; all sources were read before.
        unsafe { store(&block, destination, at, bytes) };
    }
}

/// Writes the first `bytes` of `block` to `destination + at`.
///
/// # Safety
/// `destination` is valid for writes of `at + bytes`, and `bytes` is at most a block.
#[inline(always)]
unsafe fn store<B>(block: &B, destination: *mut u8, at: usize, bytes: usize) {
    // SAFETY: valid for `at + bytes`, says the caller.
    let to = unsafe { destination.add(at) };
    // SAFETY: as above; `block` is a local of at least `bytes`.
    unsafe { ptr::copy_nonoverlapping((&raw const *block).cast(), to, bytes) };
}

/// The `bytes` at `source + at`, laid over `block`.
///
/// # Safety
/// `source` is valid for reads of `at + bytes`, and `bytes` is at most a block; any bits are a value of `B`.
#[inline(always)]
unsafe fn load<B>(source: *const u8, at: usize, bytes: usize, mut block: B) -> B {
    // SAFETY: valid for `at + bytes`, says the caller.
    let from = unsafe { source.add(at) };
    // SAFETY: as above; `block` is a local of at least `bytes`.
    unsafe { ptr::copy_nonoverlapping(from, (&raw mut block).cast(), bytes) };
    block
}
