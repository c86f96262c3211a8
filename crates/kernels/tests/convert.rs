//! Half types to `f32` and back: every instance as the plain one, bit for bit, for any length and alignment.

use phalanx_core::DType;
use phalanx_kernels::{Conversion, Instance};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn conversions(dtype: DType) -> (Conversion, Vec<(Instance, Conversion)>) {
    let of = |instance| Conversion::with(instance, dtype);
    let all = Instance::ALL.into_iter().filter_map(|instance| Some((instance, of(instance)?)));
    (of(Instance::Plain).unwrap(), all.collect())
}

fn widened(conversion: Conversion, halves: &[u8]) -> Vec<u8> {
    let mut wide = vec![0xa5; 2 * halves.len() + 1];
    conversion.widen(halves, &mut wide[1..]);
    assert_eq!(wide[0], 0xa5);
    wide.split_off(1)
}

fn narrowed(conversion: Conversion, wide: &[u8]) -> Vec<u8> {
    let mut halves = vec![0xa5; wide.len() / 2 + 1];
    conversion.narrow(wide, &mut halves[1..]);
    assert_eq!(halves[0], 0xa5);
    halves.split_off(1)
}

#[test]
fn every_half_number_survives_and_equals_what_the_half_crate_says() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in HALVES {
        let (plain, all) = conversions(dtype);
        let expected: Vec<f32> = (0..=u16::MAX)
            .map(|bits| match dtype {
                DType::F16 => half::f16::from_bits(bits).to_f32(),
                _ => half::bf16::from_bits(bits).to_f32(),
            })
            .collect();
        let back = narrowed(plain, &widened(plain, &halves));
        for (instance, conversion) in all {
            let wide = widened(conversion, &halves);
            for (bits, (wide, expected)) in wide.chunks_exact(4).zip(&expected).enumerate() {
                let wide = f32::from_le_bytes(wide.try_into().unwrap());
                assert!(
                    wide.to_bits() == expected.to_bits() || wide.is_nan() && expected.is_nan(),
                    "{bits:#x}"
                );
            }
            assert_eq!(narrowed(conversion, &wide), back, "{dtype} {instance}");
            for (bits, back) in back.chunks_exact(2).enumerate() {
                let back = u16::from_le_bytes(back.try_into().unwrap());
                assert!(usize::from(back) == bits || expected[bits].is_nan(), "{dtype} {bits:#x}");
            }
        }
    }
}

#[test]
fn every_instance_rounds_as_the_plain_one() {
    // All exponents, and fractions around what decides the rounding of either type.
    let fractions = [0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0x18000, 0x7f_efff];
    let fractions = fractions.into_iter().chain([0x7f_f000, 0x7f_ffff, 0x40_0000]);
    let wide: Vec<u8> = fractions
        .flat_map(|fraction| (0..=0x1ffu32).map(move |upper| upper << 23 | fraction))
        .flat_map(u32::to_le_bytes)
        .collect();
    for dtype in HALVES {
        let (plain, all) = conversions(dtype);
        let expected = narrowed(plain, &wide);
        for (instance, conversion) in all {
            assert_eq!(narrowed(conversion, &wide), expected, "{dtype} {instance}");
        }
    }
}

#[test]
fn any_length_begins_anywhere() {
    let wide: Vec<u8> = (0..1200u32).flat_map(|i| (i as f32 / 7.0 - 60.0).to_le_bytes()).collect();
    for dtype in HALVES {
        let (plain, all) = conversions(dtype);
        for (instance, conversion) in all {
            for count in (0..70).chain([127, 128, 129, 255, 256, 257, 1000]) {
                for start in [0, 4, 8, 12, 36] {
                    let part = &wide[start..start + 4 * count];
                    let halves = narrowed(conversion, part);
                    assert_eq!(halves, narrowed(plain, part), "{dtype} {instance} {count}");
                    assert_eq!(widened(conversion, &halves), widened(plain, &halves), "{dtype} {instance}");
                }
            }
        }
    }
}
