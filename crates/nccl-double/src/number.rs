//! Arithmetic in every element type of NCCL, one element at a time, in a type that holds them all. Each step is rounded to the element type, or wraps in it.

use half::{bf16, f16};

/// An element of any type.
#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

/// How contributions become one: an operator of NCCL.
#[derive(Clone, Copy)]
pub(crate) enum Operator {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    /// Each contribution is [`scaled`] before.
    PreMulSum,
}

impl Operator {
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum].get(code as usize).copied()
    }
}

/// Bytes of an element of type `dtype`, as `ncclDataType_t` numbers them.
pub(crate) fn size(dtype: u64) -> Option<usize> {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1].get(dtype as usize).copied()
}

pub(crate) fn is_float_of_eight_bits(dtype: u64) -> bool {
    matches!(dtype, 10 | 11)
}

/// All `parts` as one.
pub(crate) fn reduce(parts: &[&[u8]], dtype: u64, operator: Operator) -> Vec<u8> {
    let size = size(dtype).expect("the type was checked when the call came");
    let elements = parts[0].len() / size;
    let mut result = Vec::with_capacity(parts[0].len());
    for i in 0..elements {
        let all = parts.iter().map(|part| read(&part[i * size..][..size], dtype));
        let rounded = |x| read(&write(x, dtype), dtype);
        let scaled = all.map(|x| match (operator, x) {
            // Floats are multiplied before they are added, and of integers the sum is divided.
            (Operator::Avg, Number::Float(_)) => {
                rounded(combine(x, rounded(Number::Float(1.0 / parts.len() as f64)), Operator::Prod))
            }
            (_, x) => x,
        });
        let one = scaled.reduce(|a, b| rounded(combine(a, b, operator))).expect("there is a rank");
        let one = if matches!(operator, Operator::Avg) { divide(one, parts.len()) } else { one };
        result.extend(write(one, dtype));
    }
    result
}

/// A contribution, multiplied by the scalar of its rank.
pub(crate) fn scaled(part: &[u8], dtype: u64, by: f64) -> Vec<u8> {
    let size = size(dtype).expect("the type was checked when the call came");
    part.chunks(size).flat_map(|element| write(scale(read(element, dtype), by), dtype)).collect()
}

/// The value of a scalar of type `dtype`.
pub(crate) fn scalar(bytes: &[u8], dtype: u64) -> f64 {
    match read(bytes, dtype) {
        Number::Int(x) => x as f64,
        Number::Float(x) => x,
    }
}

fn combine(a: Number, b: Number, operator: Operator) -> Number {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Number::Int(match operator {
            Operator::Prod => a.wrapping_mul(b),
            Operator::Max => a.max(b),
            Operator::Min => a.min(b),
            _ => a + b,
        }),
        (Number::Float(a), Number::Float(b)) => Number::Float(match operator {
            Operator::Prod => a * b,
            Operator::Max => a.max(b),
            Operator::Min => a.min(b),
            _ => a + b,
        }),
        _ => unreachable!("both have one type"),
    }
}

fn scale(x: Number, by: f64) -> Number {
    match x {
        Number::Int(x) => Number::Int(x * by as i128),
        Number::Float(x) => Number::Float(x * by),
    }
}

fn divide(x: Number, by: usize) -> Number {
    match x {
        Number::Int(x) => Number::Int(x / by as i128),
        Number::Float(x) => Number::Float(x),
    }
}

fn read(bytes: &[u8], dtype: u64) -> Number {
    macro_rules! of {
        ($t:ty) => {
            <$t>::from_ne_bytes(bytes.try_into().expect("as many bytes as the type has"))
        };
    }
    match dtype {
        0 => Number::Int(of!(i8).into()),
        1 => Number::Int(of!(u8).into()),
        2 => Number::Int(of!(i32).into()),
        3 => Number::Int(of!(u32).into()),
        4 => Number::Int(of!(i64).into()),
        5 => Number::Int(of!(u64).into()),
        6 => Number::Float(of!(f16).to_f64()),
        7 => Number::Float(of!(f32).into()),
        8 => Number::Float(of!(f64)),
        9 => Number::Float(of!(bf16).to_f64()),
        10 => Number::Float(eight_bits(bytes[0], 4)),
        _ => Number::Float(eight_bits(bytes[0], 5)),
    }
}

fn write(x: Number, dtype: u64) -> Vec<u8> {
    match (x, dtype) {
        (Number::Int(x), 0 | 1) => (x as u8).to_ne_bytes().to_vec(),
        (Number::Int(x), 2 | 3) => (x as u32).to_ne_bytes().to_vec(),
        (Number::Int(x), _) => (x as u64).to_ne_bytes().to_vec(),
        (Number::Float(x), 6) => f16::from_f64(x).to_ne_bytes().to_vec(),
        (Number::Float(x), 7) => (x as f32).to_ne_bytes().to_vec(),
        (Number::Float(x), 8) => x.to_ne_bytes().to_vec(),
        (Number::Float(x), 9) => bf16::from_f64(x).to_ne_bytes().to_vec(),
        (Number::Float(x), dtype) => vec![nearest(x, if dtype == 10 { 4 } else { 5 })],
    }
}

/// The value of a float of eight bits with so many bits of exponent: e4m3 has no infinities, e5m2 has.
fn eight_bits(bits: u8, exponent_bits: i32) -> f64 {
    let fraction_bits = 7 - exponent_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits & 0x7f) >> fraction_bits;
    let fraction = f64::from(i32::from(bits) & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    let not_a_number = if exponent_bits == 4 { bits & 0x7f == 0x7f } else { bits & 0x7f > 0x7c };
    let magnitude = match exponent {
        _ if not_a_number => f64::NAN,
        31 => f64::INFINITY,
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    sign * magnitude
}

/// The finite float of eight bits that is nearest, of two the one that ends with a zero.
fn nearest(x: f64, exponent_bits: i32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let finite = (0..=255u8).filter(|&bits| eight_bits(bits, exponent_bits).is_finite());
    let distance = |bits: u8| ((eight_bits(bits, exponent_bits) - x).abs(), bits & 1, bits >> 7);
    finite.min_by(|&a, &b| distance(a).partial_cmp(&distance(b)).expect("finite")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_eight_bits() {
        assert_eq!(
            (eight_bits(0x38, 4), eight_bits(0x7e, 4), eight_bits(0x01, 4)),
            (1.0, 448.0, 1.0 / 512.0)
        );
        assert_eq!((eight_bits(0x3c, 5), eight_bits(0x7b, 5), eight_bits(0xbc, 5)), (1.0, 57344.0, -1.0));
        for bits in (0..=255u8).filter(|bits| !eight_bits(*bits, 4).is_nan()) {
            assert_eq!(eight_bits(nearest(eight_bits(bits, 4), 4), 4), eight_bits(bits, 4));
        }
        assert_eq!(nearest(1e9, 4), 0x7e);
    }

    #[test]
    fn integers_wrap_and_averages_divide_once() {
        assert_eq!(reduce(&[&[200], &[100]], 1, Operator::Sum), [44]);
        assert_eq!(reduce(&[&[200], &[100]], 1, Operator::Avg), [22]);
        let [one, other] = [scaled(&[3], 1, 2.0), scaled(&[4], 1, 3.0)];
        assert_eq!(reduce(&[&one, &other], 1, Operator::PreMulSum), [18]);
    }

    #[test]
    fn averages_multiply_floats_before_they_add() {
        let average = |x: f16, ranks: usize| {
            let part = x.to_ne_bytes();
            reduce(&vec![&part[..]; ranks], 6, Operator::Avg)
        };
        // The smallest of all is nothing when it is halved.
        assert_eq!(average(f16::from_bits(1), 2), [0, 0]);
        assert_ne!(average(f16::from_f32(7.0), 3), f16::from_f32(7.0).to_ne_bytes());
    }
}
