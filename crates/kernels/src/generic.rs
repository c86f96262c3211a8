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

/// As above, in pairs.
impl<T: Lane, const N: usize> Lanes for [[T; 2]; N] {
    type Item = T;

    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        let (into, from) = (self.as_flattened_mut(), other.as_flattened());
        for i in 0..2 * N {
            into[i] = f(into[i], from[i]);
        }
        self
    }

    #[inline(always)]
    fn map(mut self, f: impl Fn(T) -> T) -> Self {
        for a in self.as_flattened_mut() {
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
    type Wide: Lanes<Item = f32>;
    const WIDE_ZERO: Self::Wide;

    fn widen_in_order(isa: I, block: Self::Block) -> Self::Wide;
    fn from_order(wide: Self::Wide) -> Self::Acc;
}

/// A loop that an instance compiles for its instructions, as a [`Reduce`].
pub(crate) trait Body<I> {
    /// # Safety
    /// As [`Reduce`]; `isa` stands for the features.
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize);
}

/// What a loop does with one block.
trait Step {
    /// Bytes of a block, as `len` counts them.
    const BLOCK: usize;

    /// Does it with one block, or the first `bytes` of one.
    ///
    /// # Safety
    /// All pointers are valid for `at + bytes`, as `len` counts them, a destination may be a source, and `bytes` is at most a block.
    unsafe fn step(&self, at: usize, bytes: usize);
}

/// Does all whole blocks of `len` bytes, and says how many bytes that were.
///
/// # Safety
/// As [`Step::step`], for all of `len`.
#[inline(always)]
unsafe fn whole_blocks<S: Step>(step: &S, len: usize) -> usize {
    let mut at = 0;
    while len - at >= S::BLOCK {
        // SAFETY: `at + BLOCK <= len`, for which the caller says all pointers are valid. The length is known to the compiler, which moves
        // such blocks without a call.
        unsafe { step.step(at, S::BLOCK) };
        at += S::BLOCK;
    }
    at
}

/// # Safety
/// As [`Step::step`], for all of `len`.
#[inline(always)]
unsafe fn all_blocks<S: Step>(step: &S, len: usize) {
    // SAFETY: what the caller promised.
    let at = unsafe { whole_blocks(step, len) };
    // SAFETY: the bytes from `at` up to `len`, which are fewer than a block.
    unsafe { rest(step, at, len) };
}

/// # Safety
/// As [`Step::step`], for all of `len`; fewer than a block are left from `at` on.
#[inline(always)]
unsafe fn rest<S: Step>(step: &S, at: usize, len: usize) {
    if at < len {
        // SAFETY: the bytes from `at` up to `len`, which are fewer than a block.
        unsafe { step.step(at, len - at) };
    }
}

/// Combines numbers of a format by an operator.
pub(crate) struct Reduction<F, O>(PhantomData<(F, O)>);

impl<I: Copy, F: Format<I>, O: Op<<F::Acc as Lanes>::Item>> Body<I> for Reduction<F, O> {
    #[inline(always)]
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
        // A loop for each way to end, so that what one of them needs takes no registers from the others.
        match Division::of(O::AVERAGES, divide_by) {
            // SAFETY: what the caller promised.
            Division::None => unsafe { combine::<I, F, O, _>(isa, into, sources, len, Undivided) },
            // SAFETY: what the caller promised.
            Division::Times(times) => unsafe { combine::<I, F, O, _>(isa, into, sources, len, times) },
            // SAFETY: what the caller promised.
            Division::By(by) => unsafe { combine::<I, F, O, _>(isa, into, sources, len, by) },
        }
    }
}

/// # Safety
/// As [`Reduce`]; `isa` stands for the features.
#[inline(always)]
unsafe fn combine<I: Copy, F: Format<I>, O: Op<<F::Acc as Lanes>::Item>, E: End<<F::Acc as Lanes>::Item>>(
    isa: I,
    into: &[*mut u8],
    sources: &[*const u8],
    len: usize,
    end: E,
) {
    let any = Combining { isa, into, sources, end, what: PhantomData::<(F, O)> };
    let at = match (into, sources) {
        // What is called most often has a loop of its own, without loops over sources and destinations in it.
        (&[into], &[one, other]) => {
            let two = Combining { isa, into: &[into], sources: &[one, other], end, what: any.what };
            // SAFETY: what the caller promised.
            unsafe { whole_blocks(&two, len) }
        }
        // SAFETY: what the caller promised.
        _ => unsafe { whole_blocks(&any, len) },
    };
    // SAFETY: what the caller promised.
    unsafe { rest(&any, at, len) };
}

/// The step of a [`Reduction`].
struct Combining<'a, I, F, O, E> {
    isa: I,
    into: &'a [*mut u8],
    sources: &'a [*const u8],
    end: E,
    what: PhantomData<(F, O)>,
}

impl<I: Copy, F: Format<I>, O: Op<<F::Acc as Lanes>::Item>, E: End<<F::Acc as Lanes>::Item>> Step
    for Combining<'_, I, F, O, E>
{
    const BLOCK: usize = size_of::<F::Block>();

    #[inline(always)]
    unsafe fn step(&self, at: usize, bytes: usize) {
        // SAFETY: what the caller promised.
        let mut acc = F::widen(self.isa, unsafe { load(self.sources[0], at, bytes, F::ZERO) });
        for &source in &self.sources[1..] {
            // SAFETY: what the caller promised.
            let block = unsafe { load(source, at, bytes, F::ZERO) };
            acc = acc.zip(F::widen(self.isa, block), O::apply);
        }
        let block = F::narrow(self.isa, self.end.end(acc));
        for &destination in self.into {
            // SAFETY: valid for `at + bytes`, says the caller; all sources were read before.
            unsafe { store(&block, destination, at, bytes) };
        }
    }
}

/// Writes the numbers of the first source, `len` bytes of them, to the first destination as `f32`, which are twice as many bytes.
pub(crate) struct Widen<F>(PhantomData<F>);

impl<I: Copy, F: Widening<I>> Body<I> for Widen<F> {
    #[inline(always)]
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, _: usize) {
        // SAFETY: what the caller promised.
        unsafe { all_blocks(&Converting::<I, F, true>(isa, into[0], sources[0], PhantomData), len) }
    }
}

/// The way back: `len` bytes of `f32` to half as many, each number rounded to nearest even, every NaN the one NaN.
pub(crate) struct Narrow<F>(PhantomData<F>);

impl<I: Copy, F: Widening<I>> Body<I> for Narrow<F> {
    #[inline(always)]
    unsafe fn run(isa: I, into: &[*mut u8], sources: &[*const u8], len: usize, _: usize) {
        // SAFETY: what the caller promised.
        unsafe { all_blocks(&Converting::<I, F, false>(isa, into[0], sources[0], PhantomData), len / 2) }
    }
}

/// The step of [`Widen`] (`WIDER`) and [`Narrow`]. Its length is that of the half numbers.
struct Converting<I, F, const WIDER: bool>(I, *mut u8, *const u8, PhantomData<F>);

impl<I: Copy, F: Widening<I>, const WIDER: bool> Step for Converting<I, F, WIDER> {
    const BLOCK: usize = size_of::<F::Block>();

    #[inline(always)]
    unsafe fn step(&self, at: usize, bytes: usize) {
        let Self(isa, into, source, _) = *self;
        if WIDER {
            // SAFETY: the caller says that the source is valid for `at + bytes`.
            let wide = F::widen_in_order(isa, unsafe { load(source, at, bytes, F::ZERO) });
            // SAFETY: and the destination for twice as many.
            unsafe { store(&wide, into, 2 * at, 2 * bytes) };
        } else {
            // SAFETY: the caller says that the source is valid for twice `at + bytes`.
            let acc = F::from_order(unsafe { load(source, 2 * at, 2 * bytes, F::WIDE_ZERO) });
            // SAFETY: and the destination for half as many.
            unsafe { store(&F::narrow(isa, acc), into, at, bytes) };
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
        let (into, sources) = (into[0], [sources[0], sources[1]]);
        match Division::<f32>::of(LAST && O::AVERAGES, divide_by) {
            // SAFETY: what the caller promised.
            Division::None => unsafe { mix::<I, F, O, _, WIDE, LAST>(isa, into, sources, len, Undivided) },
            // SAFETY: what the caller promised.
            Division::Times(times) => unsafe {
                mix::<I, F, O, _, WIDE, LAST>(isa, into, sources, len, times);
            },
            // SAFETY: what the caller promised.
            Division::By(by) => unsafe { mix::<I, F, O, _, WIDE, LAST>(isa, into, sources, len, by) },
        }
    }
}

/// # Safety
/// As [`Reduce`]; `isa` stands for the features.
#[inline(always)]
unsafe fn mix<I: Copy, F: Widening<I>, O: Op<f32>, E: End<f32>, const WIDE: bool, const LAST: bool>(
    isa: I,
    into: *mut u8,
    sources: [*const u8; 2],
    len: usize,
    end: E,
) {
    let mixing = Mixing::<I, F, O, E, WIDE, LAST> { isa, into, sources, end, what: PhantomData };
    // SAFETY: what the caller promised.
    unsafe { all_blocks(&mixing, len) };
}

/// The step of [`Mixed`]. Its length is that of the half numbers.
struct Mixing<I, F, O, E, const WIDE: bool, const LAST: bool> {
    isa: I,
    into: *mut u8,
    sources: [*const u8; 2],
    end: E,
    what: PhantomData<(F, O)>,
}

impl<I: Copy, F: Widening<I>, O: Op<f32>, E: End<f32>, const WIDE: bool, const LAST: bool> Step
    for Mixing<I, F, O, E, WIDE, LAST>
{
    const BLOCK: usize = size_of::<F::Block>();

    #[inline(always)]
    unsafe fn step(&self, at: usize, bytes: usize) {
        let Self { isa, into, sources: [first, second], end, .. } = *self;
        // SAFETY: the caller says that the source is valid for `at + bytes`.
        let second = unsafe { load(second, at, bytes, F::ZERO) };
        let first = if WIDE {
            // SAFETY: the caller says that such a source is valid for twice `at + bytes`.
            unsafe { load(first, 2 * at, 2 * bytes, F::WIDE_ZERO) }
        } else {
            // SAFETY: the caller says that the source is valid for `at + bytes`.
            F::widen_in_order(isa, unsafe { load(first, at, bytes, F::ZERO) })
        };
        if LAST {
            let acc = F::from_order(first).zip(F::widen(isa, second), O::apply);
            // SAFETY: the destination is valid for `at + bytes`, says the caller; the sources were read before.
            unsafe { store(&F::narrow(isa, end.end(acc)), into, at, bytes) };
        } else {
            let sum = first.zip(F::widen_in_order(isa, second), O::apply);
            // SAFETY: such a destination is valid for twice as many, says the caller; the sources were read before.
            unsafe { store(&sum, into, 2 * at, 2 * bytes) };
        }
    }
}

/// What becomes of a sum before it is narrowed.
trait End<T>: Copy {
    fn end<A: Lanes<Item = T>>(self, acc: A) -> A;
}

#[derive(Clone, Copy)]
struct Undivided;

impl<T> End<T> for Undivided {
    #[inline(always)]
    fn end<A: Lanes<Item = T>>(self, acc: A) -> A {
        acc
    }
}

#[derive(Clone, Copy)]
struct Times<T>(T);

impl<T: Lane> End<T> for Times<T> {
    #[inline(always)]
    fn end<A: Lanes<Item = T>>(self, acc: A) -> A {
        acc.map(|a| a.mul(self.0))
    }
}

#[derive(Clone, Copy)]
struct By<T: Lane>(T::Divisor);

impl<T: Lane> End<T> for By<T> {
    #[inline(always)]
    fn end<A: Lanes<Item = T>>(self, acc: A) -> A {
        acc.map(|a| a.divide(self.0))
    }
}

/// The division at the end of an average.
enum Division<T: Lane> {
    None,
    /// Exact for powers of two, and many times faster than a division.
    Times(Times<T>),
    By(By<T>),
}

impl<T: Lane> Division<T> {
    #[inline(always)]
    fn of(averages: bool, divide_by: usize) -> Self {
        if !averages || divide_by == 1 {
            return Self::None;
        }
        match T::reciprocal(divide_by) {
            Some(reciprocal) => Self::Times(Times(reciprocal)),
            None => Self::By(By(T::divisor(divide_by))),
        }
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
