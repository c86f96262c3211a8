//! Sums of half types that are kept as `f32`: the bits of one pass over all contributions.

use phalanx_core::{DType, ReduceOp};
use phalanx_kernels::{HalfSum, Instance, Kernel};

const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod];

/// Any bits, many of them near 1.
fn contribution(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u16
    };
    let value = |bits: u16| if bits & 3 == 0 { bits } else { 0x3c00 | bits & 0x87ff };
    (0..len).flat_map(|_| value(next()).to_le_bytes()).collect()
}

#[test]
fn every_instance_adds_as_one_pass_does() {
    for (dtype, op) in [DType::F16, DType::BF16].into_iter().flat_map(|d| OPS.map(|op| (d, op))) {
        let whole = Kernel::with(Instance::Plain, op, dtype).unwrap();
        for instance in Instance::ALL {
            let Some(sum) = HalfSum::with(instance, op, dtype) else { continue };
            let shapes = [(0, 0), (1, 1), (63, 0), (128, 0), (129, 3), (1000, 1)];
            for ((len, shift), divide_by) in shapes.into_iter().flat_map(|s| [1, 5, 8].map(|by| (s, by))) {
                let inputs: Vec<Vec<u8>> = (0..5).map(|seed| contribution(seed, len)).collect();
                let mut expected = vec![0; 2 * len];
                let sources: Vec<*const u8> = inputs.iter().map(Vec::as_ptr).collect();
                // SAFETY: each source and the destination are good for two bytes an element.
                unsafe { whole.reduce(&[expected.as_mut_ptr()], &sources, 2 * len, divide_by) };

                let mut partial = vec![0xa5; shift + 4 * len];
                sum.begin(&inputs[0], &inputs[1], &mut partial[shift..]);
                sum.add(&mut partial[shift..], &inputs[2]);
                sum.add(&mut partial[shift..], &inputs[3]);
                let mut result = vec![0xa5; shift + 2 * len];
                sum.end(&partial[shift..], &inputs[4], &mut result[shift..], divide_by);
                assert_eq!(result[shift..], expected, "{op} of {len} {dtype} by {divide_by}, {instance}");
            }
        }
    }
}

#[test]
fn other_operators_and_types_have_none() {
    assert!(HalfSum::new(ReduceOp::Max, DType::F16).is_none());
    assert!(HalfSum::new(ReduceOp::Sum, DType::F32).is_none());
}
