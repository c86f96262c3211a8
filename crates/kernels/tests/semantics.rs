//! What the operators mean, by example, on the instance this machine chooses and on the plain one.

use half::{bf16, f16};
use phalanx_core::{DType, Element, ReduceOp};
use phalanx_kernels::{Instance, Kernel};

fn combined<T: Element>(op: ReduceOp, a: &[T], b: &[T]) -> Vec<T> {
    let [best, plain] = [Instance::best(), Instance::Plain].map(|instance| {
        let mut into = a.to_vec();
        Kernel::with(instance, op, T::DTYPE)
            .unwrap()
            .combine(bytemuck::cast_slice_mut(&mut into), bytemuck::cast_slice(b));
        into
    });
    assert_eq!(bytemuck::cast_slice::<T, u8>(&best), bytemuck::cast_slice::<T, u8>(&plain));
    best
}

#[test]
fn defined_exactly_where_the_vocabulary_says() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            for instance in Instance::ALL {
                let expected = op.supports(dtype) && instance.is_available();
                assert_eq!(
                    Kernel::with(instance, op, dtype).is_some(),
                    expected,
                    "{instance} {op} of {dtype}"
                );
            }
            assert_eq!(Kernel::new(op, dtype).is_some(), op.supports(dtype), "{op} of {dtype}");
        }
    }
}

#[test]
fn the_best_instance_is_chosen() {
    let chosen = Kernel::new(ReduceOp::Sum, DType::F32).unwrap().instance();
    assert_eq!(chosen, Instance::best());
    assert!(chosen.is_available());
    assert_ne!(chosen, Instance::Plain, "the plain loops are for tests");
}

#[test]
fn operators() {
    assert_eq!(combined(ReduceOp::Sum, &[1.5f32, -2.0], &[0.25, 7.0]), [1.75, 5.0]);
    assert_eq!(combined(ReduceOp::Prod, &[3i16, -4], &[5, 6]), [15, -24]);
    assert_eq!(combined(ReduceOp::Min, &[3u8, 9], &[5, 6]), [3, 6]);
    assert_eq!(combined(ReduceOp::Max, &[3u64, 9], &[5, 6]), [5, 9]);
    assert_eq!(combined(ReduceOp::BitAnd, &[0b1100u32], &[0b1010]), [0b1000]);
    assert_eq!(combined(ReduceOp::BitOr, &[0b1100i64], &[0b1010]), [0b1110]);
    assert_eq!(combined(ReduceOp::BitXor, &[0b1100i8], &[0b1010]), [0b0110]);
    assert_eq!(combined(ReduceOp::Sum, &[250u8], &[10]), [4], "integers wrap");
}

#[test]
fn averages_divide_once_at_the_end() {
    let mut sum = combined(ReduceOp::Avg, &[7i8, -7], &[0, 0]);
    let kernel = Kernel::new(ReduceOp::Avg, DType::I8).unwrap();
    kernel.finish(bytemuck::cast_slice_mut(&mut sum), 2);
    assert_eq!(sum, [3, -3], "toward zero");
    kernel.finish(bytemuck::cast_slice_mut(&mut sum), 1000);
    assert_eq!(sum, [0, 0], "a world larger than the type");
    let mut same = [7.0f32];
    Kernel::new(ReduceOp::Sum, DType::F32).unwrap().finish(bytemuck::cast_slice_mut(&mut same), 2);
    assert_eq!(same, [7.0]);
}

#[test]
fn extremes_do_not_depend_on_the_order() {
    for values in [[0.0f32, -0.0], [f32::NAN, 1.0], [f32::INFINITY, f32::NAN], [f32::NEG_INFINITY, 3.0]] {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let bits = |a: f32, b: f32| combined(op, &[a], &[b])[0].to_bits();
            assert_eq!(bits(values[0], values[1]), bits(values[1], values[0]), "{op} of {values:?}");
            let half = |a: f32, b: f32| combined(op, &[bf16::from_f32(a)], &[bf16::from_f32(b)])[0].to_bits();
            assert_eq!(half(values[0], values[1]), half(values[1], values[0]), "{op} of {values:?} in bf16");
        }
    }
    assert!(combined(ReduceOp::Min, &[0.0f32], &[-0.0])[0].is_sign_negative());
    assert!(combined(ReduceOp::Max, &[-0.0f64], &[0.0])[0].is_sign_positive());
    assert!(combined(ReduceOp::Min, &[f16::from_f32(0.0)], &[f16::from_f32(-0.0)])[0].is_sign_negative());
}

#[test]
fn a_nan_is_the_nan() {
    let odd = f32::from_bits(0xffc0_1234);
    assert_eq!(combined(ReduceOp::Sum, &[odd], &[1.0])[0].to_bits(), f32::NAN.to_bits());
    assert_eq!(
        combined(ReduceOp::Sum, &[f32::INFINITY], &[f32::NEG_INFINITY])[0].to_bits(),
        f32::NAN.to_bits()
    );
    assert_eq!(
        combined(ReduceOp::Prod, &[f16::from_bits(0xfd00)], &[f16::ONE])[0].to_bits(),
        f16::NAN.to_bits()
    );
}

#[test]
fn halves_round_once_from_f32() {
    let (a, b) = (bf16::from_f32(1.0), bf16::from_f32(1.0 / 256.0));
    assert_eq!(combined(ReduceOp::Sum, &[a], &[b])[0], bf16::from_f32(1.0 + 1.0 / 256.0));
    let most = f16::from_f32(65504.0);
    assert_eq!(combined(ReduceOp::Sum, &[most], &[most])[0], f16::INFINITY);

    // 1 + 2⁻⁹ + 2⁻⁹: each alone rounds away, both together are a half that... rounds away too; three of them don't.
    let sum = Kernel::new(ReduceOp::Sum, DType::BF16).unwrap();
    let contributions = [1.0, 1.0 / 512.0, 1.0 / 512.0, 1.0 / 512.0].map(bf16::from_f32);
    let sources = contributions.each_ref().map(|x| (&raw const *x).cast());
    let mut result = bf16::ZERO;
    // SAFETY: all point to one bf16, and the result overlaps no source.
    unsafe { sum.reduce(&[(&raw mut result).cast()], &sources, 2, 1) };
    assert_eq!(result, bf16::from_f32(1.0 + 3.0 / 512.0));
    assert!(result > bf16::ONE);
}

#[test]
fn unaligned_buffers_are_combined() {
    let (mut into, from) = ([0u8; 13], [1u8; 13]);
    let sum = Kernel::new(ReduceOp::Sum, DType::U32).unwrap();
    sum.combine(&mut into[1..], &from[1..]);
    assert_eq!(into, [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
#[should_panic(expected = "6 bytes are not a whole number of f32")]
fn half_an_element_is_refused() {
    Kernel::new(ReduceOp::Sum, DType::F32).unwrap().combine(&mut [0; 6], &[0; 6]);
}

#[test]
#[should_panic(expected = "divided by 0")]
fn a_world_of_nobody_is_refused() {
    Kernel::new(ReduceOp::Avg, DType::I32).unwrap().finish(&mut [0; 8], 0);
}
