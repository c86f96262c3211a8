//! Kernels compute the same bits whatever state the thread's floats are in, and leave it as it was.

#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]

mod common;

use common::states::{DEFAULT, FAST_MATH, in_state, state, states};
use common::values::special;
use phalanx_core::{DType, ReduceOp};
use phalanx_kernels::{Instance, Kernel};
use phalanx_testkit::oracle::Random;

/// Special values, and some that are rounded.
fn values(dtype: DType) -> Vec<Vec<u8>> {
    let rough = match dtype {
        DType::F32 => bytemuck::cast_slice(&Random::new(1).rough::<f32>(24)).to_vec(),
        DType::F64 => bytemuck::cast_slice(&Random::new(1).rough::<f64>(24)).to_vec(),
        DType::F16 => bytemuck::cast_slice(&Random::new(1).rough::<half::f16>(24)).to_vec(),
        DType::BF16 => bytemuck::cast_slice(&Random::new(1).rough::<half::bf16>(24)).to_vec(),
        _ => Vec::new(),
    };
    let special = special(dtype).iter().map(|bits| bits.to_le_bytes()[..dtype.size()].to_vec());
    special.chain(rough.chunks(dtype.size()).map(<[u8]>::to_vec)).collect()
}

/// Every value with every other, combined and finished for three ranks.
fn reduced(kernel: Kernel, values: &[Vec<u8>]) -> Vec<u8> {
    let count = values.len();
    let mut into: Vec<u8> = values.iter().flat_map(|a| a.repeat(values.len())).collect();
    let from = values.concat().repeat(count);
    kernel.combine(&mut into, &from);
    kernel.finish(&mut into, 3);
    into
}

fn instances() -> impl Iterator<Item = Instance> {
    Instance::ALL.into_iter().filter(|i| i.is_available())
}

#[test]
fn every_state_gives_the_same_bits_and_is_left_as_it_was() {
    let mut wrong = Vec::new();
    for dtype in DType::ALL {
        let values = values(dtype);
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            let plain = Kernel::with(Instance::Plain, op, dtype).expect("supported");
            let expected = reduced(plain, &values);
            for instance in instances() {
                let kernel = Kernel::with(instance, op, dtype).expect("every instance has every kernel");
                for odd in states() {
                    let (found, left) = in_state(odd, || reduced(kernel, &values));
                    if found != expected {
                        wrong.push(format!("{instance} {op} of {dtype} in state {odd:#x}"));
                    }
                    assert_eq!(left, odd, "{instance} {op} of {dtype}: the thread's state has changed");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} have other bits:\n{}", wrong.len(), wrong.join("\n"));
}

/// Up to sixteen bytes go another way.
#[test]
fn few_elements_too() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        for value in values(dtype) {
            let value = [value];
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
                let kernel = Kernel::new(op, dtype).expect("supported");
                let expected = reduced(kernel, &value);
                for odd in states() {
                    let (found, left) = in_state(odd, || reduced(kernel, &value));
                    assert_eq!(found, expected, "{op} of {dtype} in state {odd:#x}");
                    assert_eq!(left, odd, "{op} of {dtype}: the thread's state has changed");
                }
            }
        }
    }
}

/// The other tests would prove nothing if the CPU ignored what they set.
#[test]
fn the_states_are_felt() {
    // Behind a call that the compiler can't see through, or it takes one addition for the other, before or after.
    fn twice(x: f32) -> u32 {
        (x + x).to_bits()
    }
    let twice: fn(f32) -> u32 = std::hint::black_box(twice);
    let smallest = f32::from_bits(1);
    let (sum, left) = in_state(FAST_MATH, || twice(smallest));
    assert_eq!((sum, left), (0, FAST_MATH));
    assert_eq!((twice(smallest), state()), (2, DEFAULT));
}
