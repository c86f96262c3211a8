//! Division of integers by one divisor, without a division for each: what an average ends with.
//!
//! No CPU divides vectors of integers. A multiplication by the reciprocal is exact where that is precise enough, which it is here in twice
//! the bits.

/// A divisor, at least 2, of integers of one type.
pub(crate) trait Divides<T> {
    /// The quotient, rounded toward zero.
    fn quotient(self, number: T) -> T;
}

/// The divisor, and ⌊(2⁸ − 1) / divisor⌋, with which the upper half of a product is the quotient or one less.
#[derive(Debug, Clone, Copy)]
pub(crate) struct By8 {
    by: u16,
    reciprocal: u16,
}

impl By8 {
    #[inline(always)]
    pub(crate) fn new(by: usize) -> Self {
        let by = u16::try_from(by).unwrap_or(u16::MAX);
        Self { by, reciprocal: u16::from(u8::MAX) / by }
    }
}

impl Divides<u8> for By8 {
    // In 16 bits from end to end: the compiler widens to 32 for the upper half of a product of 16.
    #[inline(always)]
    fn quotient(self, number: u8) -> u8 {
        let number = u16::from(number);
        let least = (number * self.reciprocal) >> 8;
        let left = number.wrapping_sub(least.wrapping_mul(self.by));
        (least + u16::from(left >= self.by)) as u8
    }
}

impl Divides<i8> for By8 {
    #[inline(always)]
    fn quotient(self, number: i8) -> i8 {
        let (quotient, sign) = (self.quotient(number.unsigned_abs()) as i8, number >> 7);
        (quotient ^ sign).wrapping_sub(sign)
    }
}

macro_rules! by_floats {
    ($($by:ident: $float:ty, $signed:ty, $unsigned:ty;)*) => { $(
        /// The least float above 1 / divisor, or 0 where the divisor is more than any number. A product is never below a quotient that is
        /// whole, since floats are rounded to the nearest; and above it by so little that it does not reach the next one: the float has at
        /// least 8 bits more than the numbers.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $by($float);

        impl $by {
            #[inline(always)]
            pub(crate) fn new(by: usize) -> Self {
                Self(<$unsigned>::try_from(by).map_or(0.0, |by| (1.0 / <$float>::from(by)).next_up()))
            }
        }

        impl Divides<$signed> for $by {
            #[inline(always)]
            fn quotient(self, number: $signed) -> $signed {
                let quotient = <$float>::from(number) * self.0;
                // SAFETY: a finite number, at most half as large as the largest of the type, since the divisor is at least 2.
                unsafe { quotient.to_int_unchecked::<i32>() as $signed }
            }
        }

        impl Divides<$unsigned> for $by {
            #[inline(always)]
            fn quotient(self, number: $unsigned) -> $unsigned {
                let quotient = <$float>::from(number) * self.0;
                // SAFETY: a finite number, less than 2³¹, since the divisor is at least 2.
                unsafe { quotient.to_int_unchecked::<i32>() as $unsigned }
            }
        }
    )* };
}

by_floats! {
    By16: f32, i16, u16;
    By32: f64, i32, u32;
}

/// The divisor, and ⌊(2⁶⁴ − 1) / divisor⌋, with which the upper half of a product is the quotient or one less. What stands for the upper half
/// may be one less again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct By64 {
    by: u64,
    reciprocal: u64,
}

impl By64 {
    #[inline(always)]
    pub(crate) fn new(by: usize) -> Self {
        let by = by as u64;
        Self { by, reciprocal: u64::MAX / by }
    }
}

impl Divides<u64> for By64 {
    #[inline(always)]
    fn quotient(self, number: u64) -> u64 {
        let mut quotient = nearly_upper_half(number, self.reciprocal);
        let mut left = number.wrapping_sub(quotient.wrapping_mul(self.by));
        for _ in 0..2 {
            let more = left >= self.by;
            left = left.wrapping_sub(if more { self.by } else { 0 });
            quotient += u64::from(more);
        }
        quotient
    }
}

impl Divides<i64> for By64 {
    #[inline(always)]
    fn quotient(self, number: i64) -> i64 {
        let (quotient, sign) = (self.quotient(number.unsigned_abs()) as i64, number >> 63);
        (quotient ^ sign).wrapping_sub(sign)
    }
}

/// The upper half of a product of 128 bits, or one less, of products of 64, since vectors have no larger ones. (The compiler would know the exact
/// one, whose fourth product is left out here, and would compute it outside of vectors.)
#[inline(always)]
fn nearly_upper_half(a: u64, b: u64) -> u64 {
    const LOWER: u64 = u32::MAX as u64;
    let (a1, a0, b1, b0) = (a >> 32, a & LOWER, b >> 32, b & LOWER);
    let middle = a1 * b0;
    let other = a0 * b1 + (middle & LOWER);
    a1 * b1 + (middle >> 32) + (other >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_by_every_divisor() {
        for by in (2..=300).chain([u16::MAX as usize, 1 << 16, usize::MAX]) {
            for number in u8::MIN..=u8::MAX {
                assert_eq!(
                    u128::from(By8::new(by).quotient(number)),
                    u128::from(number) / by as u128,
                    "{by}"
                );
                let signed = number as i8;
                assert_eq!(
                    i128::from(By8::new(by).quotient(signed)),
                    i128::from(signed) / by as i128,
                    "{by}"
                );
            }
        }
    }

    /// Around every multiple of a divisor quotients change, and products are nearest to the next quotient.
    macro_rules! at_multiples {
        ($($name:ident: $by:ident, $signed:ty, $unsigned:ty;)*) => { $(
            #[test]
            fn $name() {
                let most = u128::from(<$unsigned>::MAX);
                let powers = (1..usize::BITS).flat_map(|power| [(1usize << power) - 1, 1 << power, (1 << power) + 1]);
                let divisors = (2..if cfg!(miri) { 5 } else { 300 }).chain(powers).chain([usize::MAX]).filter(|&by| by > 1);
                for by in divisors {
                    let last = most / by as u128;
                    let few = if cfg!(miri) { 3 } else { 300 };
                    let quotients = (0..=last.min(few)).chain(last.saturating_sub(few)..=last);
                    for near in quotients.flat_map(|q| (q * by as u128).saturating_sub(1)..=q * by as u128 + 1) {
                        let number = near.min(most) as $unsigned;
                        let divisor = $by::new(by);
                        assert_eq!(u128::from(divisor.quotient(number)), u128::from(number) / by as u128, "{number} by {by}");
                        for signed in [number as $signed, (number as $signed).wrapping_neg()] {
                            let expected = i128::from(signed) / by as i128;
                            assert_eq!(i128::from(divisor.quotient(signed)), expected, "{signed} by {by}");
                        }
                    }
                }
            }
        )* };
    }

    at_multiples! {
        sixteen_bits: By16, i16, u16;
        thirty_two_bits: By32, i32, u32;
        sixty_four_bits: By64, i64, u64;
    }
}
