//! Half types: pairs of `bf16` in words, `f16` by the instance's instructions, and both as ordered keys.

use crate::generic::{Format, Lanes, Widening};
use crate::ops::Lane;
use half::{bf16, f16};
use std::marker::PhantomData;

/// The operations on half types that only an instruction set does well.
pub(crate) trait Isa: Copy {
    /// How many `f16` it converts at a time.
    const LANES: usize;

    /// # Safety
    /// `from` is valid for reads, `to` for writes, of `LANES` numbers at any address.
    unsafe fn widen_f16(self, from: *const u16, to: *mut f32);

    /// Rounds to nearest even.
    ///
    /// # Safety
    /// As [`widen_f16`](Self::widen_f16).
    unsafe fn narrow_f16(self, from: *const f32, to: *mut u16);

    /// Words whose lower halves are the upper ones of `lower`, and whose upper halves are those of `upper`.
    #[inline(always)]
    fn upper_halves<const N: usize>(self, lower: [u32; N], upper: [u32; N]) -> [u32; N] {
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            *word = lower[i] >> 16 | upper[i] & 0xffff_0000;
        }
        words
    }
}

/// A 16-bit float, by what its bits mean.
pub(crate) trait Half {
    const INFINITY: u16;
    const NAN: u16;
}

#[derive(Debug)]
pub(crate) struct F16;
impl Half for F16 {
    const INFINITY: u16 = f16::INFINITY.to_bits();
    const NAN: u16 = f16::NAN.to_bits();
}

#[derive(Debug)]
pub(crate) struct Bf16;
impl Half for Bf16 {
    const INFINITY: u16 = bf16::INFINITY.to_bits();
    const NAN: u16 = bf16::NAN.to_bits();
}

/// Whether any number is NaN; one comparison looks at two.
///
/// Half types are bound by computing, not by memory, and to look for NaN is cheaper than to replace each.
#[inline(always)]
fn any_nan<const N: usize>(a: [f32; N], b: [f32; N]) -> bool {
    let mut any = 0;
    for i in 0..N {
        any |= u32::from(a[i].is_nan() | b[i].is_nan());
    }
    any != 0
}

/// `N` elements of `f16`.
#[derive(Debug)]
pub(crate) struct F16Block<const N: usize>;

impl<I: Isa, const N: usize> Format<I> for F16Block<N> {
    type Block = [u16; N];
    type Acc = [f32; N];
    const ZERO: [u16; N] = [0; N];

    #[inline(always)]
    fn widen(isa: I, block: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(I::LANES)) };
        let mut acc = [0.0; N];
        for (from, to) in block.chunks_exact(I::LANES).zip(acc.chunks_exact_mut(I::LANES)) {
            // SAFETY: both have `LANES` numbers.
            unsafe { isa.widen_f16(from.as_ptr(), to.as_mut_ptr()) };
        }
        acc
    }

    #[inline(always)]
    fn narrow(isa: I, mut acc: [f32; N]) -> [u16; N] {
        if any_nan(acc, acc) {
            acc = Lanes::map(acc, Lane::canonical);
        }
        let mut block = [0; N];
        for (from, to) in acc.chunks_exact(I::LANES).zip(block.chunks_exact_mut(I::LANES)) {
            // SAFETY: both have `LANES` numbers.
            unsafe { isa.narrow_f16(from.as_ptr(), to.as_mut_ptr()) };
        }
        block
    }
}

impl<I: Isa, const N: usize> Widening<I> for F16Block<N> {
    type Wide = [f32; N];
    const WIDE_ZERO: [f32; N] = [0.0; N];

    #[inline(always)]
    fn widen_in_order(isa: I, block: [u16; N]) -> [f32; N] {
        Self::widen(isa, block)
    }

    #[inline(always)]
    fn from_order(wide: [f32; N]) -> [f32; N] {
        wide
    }
}

/// `N` words of two `bf16` each.
///
/// A `bf16` is the upper half of an `f32`, so one word is widened to two numbers by a shift and a mask, and never
/// shuffled. The instruction that rounds to `bf16` (AVX-512 BF16) is not used: it takes subnormals for zeros.
#[derive(Debug)]
pub(crate) struct Bf16Block<const N: usize>;

/// The numbers in the lower and the upper halves of the words.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<const N: usize> {
    lower: [f32; N],
    upper: [f32; N],
}

impl<const N: usize> Lanes for Pairs<N> {
    type Item = f32;

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self { lower: self.lower.zip(other.lower, &f), upper: self.upper.zip(other.upper, &f) }
    }

    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Self { lower: Lanes::map(self.lower, &f), upper: Lanes::map(self.upper, &f) }
    }
}

impl<I: Isa, const N: usize> Format<I> for Bf16Block<N> {
    type Block = [u32; N];
    type Acc = Pairs<N>;
    const ZERO: [u32; N] = [0; N];

    #[inline(always)]
    fn widen(_: I, block: [u32; N]) -> Pairs<N> {
        let mut pairs = Pairs { lower: [0.0; N], upper: [0.0; N] };
        for (i, word) in block.into_iter().enumerate() {
            pairs.lower[i] = f32::from_bits(word << 16);
            pairs.upper[i] = f32::from_bits(word & 0xffff_0000);
        }
        pairs
    }

    #[inline(always)]
    fn narrow(isa: I, mut acc: Pairs<N>) -> [u32; N] {
        if any_nan(acc.lower, acc.upper) {
            acc = acc.map(Lane::canonical);
        }
        let (mut lower, mut upper) = ([0; N], [0; N]);
        for i in 0..N {
            lower[i] = rounded(acc.lower[i]);
            upper[i] = rounded(acc.upper[i]);
        }
        isa.upper_halves(lower, upper)
    }
}

impl<I: Isa, const N: usize> Widening<I> for Bf16Block<N> {
    type Wide = [[f32; 2]; N];
    const WIDE_ZERO: [[f32; 2]; N] = [[0.0; 2]; N];

    // From halves, not from words: those would be widened as above, and then have to be brought into their order.
    #[inline(always)]
    fn widen_in_order(_: I, block: [u32; N]) -> [[f32; 2]; N] {
        // SAFETY: a word is two halves, of any bits.
        let halves = unsafe { (&raw const block).cast::<[[u16; 2]; N]>().read() };
        let mut wide = [[0.0; 2]; N];
        let (from, to) = (halves.as_flattened(), wide.as_flattened_mut());
        for i in 0..2 * N {
            to[i] = f32::from_bits(u32::from(from[i]) << 16);
        }
        wide
    }

    #[inline(always)]
    fn from_order(wide: [[f32; 2]; N]) -> Pairs<N> {
        let mut acc = Pairs { lower: [0.0; N], upper: [0.0; N] };
        for (i, [first, second]) in wide.into_iter().enumerate() {
            // The number in the lower half of a word comes first in memory, where the least byte does.
            (acc.lower[i], acc.upper[i]) =
                if cfg!(target_endian = "little") { (first, second) } else { (second, first) };
        }
        acc
    }
}

/// The bits of `value` (any number, or the one NaN), of which the upper half is the nearest `bf16`, ties to even.
///
/// Adding just under half of the last place carries where more than half is below it. At exactly half it must carry only
/// if the last place is odd: then its bit, laid over the lowest one, adds what was missing.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    (bits | bits >> 16 & 1) + 0x7fff
}

/// `N` half-precision numbers as integers of the same order, for minimum (`LEAST`) and maximum.
///
/// Nothing is widened or rounded, and no NaN is looked for on the way in: the order is turned round until all NaN, which lie
/// beyond both infinities, are at the end that wins.
#[derive(Debug)]
pub(crate) struct Ordered<H, const LEAST: bool, const N: usize>(PhantomData<H>);

impl<H: Half, const LEAST: bool, const N: usize> Ordered<H, LEAST, N> {
    /// As many places as there are NaN of one sign.
    const TURN: i16 = {
        let nans = i16::MAX - H::INFINITY as i16;
        if LEAST { nans } else { -nans }
    };

    /// Whether a key is beyond that of the infinity that would win otherwise.
    #[inline(always)]
    fn is_nan(key: i16) -> bool {
        if LEAST {
            key < mirrored(H::INFINITY as i16 | i16::MIN).wrapping_add(Self::TURN)
        } else {
            key > (H::INFINITY as i16).wrapping_add(Self::TURN)
        }
    }
}

/// Bits of a float to an integer of the same order, and back: the negative ones run the other way.
///
/// Of all ways to write it the one that AVX-512 does in two instructions: the compiler makes others a selection.
#[inline(always)]
fn mirrored(bits: i16) -> i16 {
    (bits >> 15) ^ (bits & 0x7fff)
}

impl<I, H: Half, const LEAST: bool, const N: usize> Format<I> for Ordered<H, LEAST, N> {
    type Block = [i16; N];
    type Acc = [i16; N];
    const ZERO: [i16; N] = [0; N];

    #[inline(always)]
    fn widen(_: I, mut block: [i16; N]) -> [i16; N] {
        for bits in &mut block {
            *bits = mirrored(*bits).wrapping_add(Self::TURN);
        }
        block
    }

    #[inline(always)]
    fn narrow(_: I, mut acc: [i16; N]) -> [i16; N] {
        for key in &mut acc {
            let bits = mirrored(key.wrapping_sub(Self::TURN));
            *key = if Self::is_nan(*key) { H::NAN as i16 } else { bits };
        }
        acc
    }
}
