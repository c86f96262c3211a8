//! Every instance this machine can run equals the plain one, bit for bit.

mod common;

use common::values::special;
use phalanx_core::{DType, ReduceOp};
use phalanx_kernels::{Instance, Kernel};
use proptest::prelude::*;

/// `count` elements: some any bits, some moderate (so that results round instead of overflowing), some special.
fn elements(dtype: DType, count: usize) -> impl Strategy<Value = Vec<u8>> {
    let special = special(dtype);
    let one = match dtype {
        DType::F32 => 0x3f80_0000u64,
        DType::F64 => 0x3ff0 << 48,
        DType::F16 => 0x3c00,
        DType::BF16 => 0x3f80,
        _ => 0,
    };
    let spread = if dtype.is_float() { one / 8 } else { 100 };
    let value = prop_oneof![
        3 => any::<u64>(),
        4 => (0..spread.max(1)).prop_map(move |near| one - spread / 2 * u64::from(one > 0) + near),
        2 => (0..special.len()).prop_map(move |i| special[i]),
    ];
    prop::collection::vec(value, count).prop_map(move |values| {
        values.iter().flat_map(|v| v.to_le_bytes()[..dtype.size()].to_vec()).collect()
    })
}

/// How one reduction is called.
#[derive(Debug, Clone)]
struct Case {
    sources: Vec<Vec<u8>>,
    /// Bytes by which each buffer's start is out of line.
    shift: usize,
    /// Destinations that are sources, then destinations of their own.
    in_place: usize,
    apart: usize,
    divide_by: usize,
}

fn case(dtype: DType) -> impl Strategy<Value = Case> {
    let count = prop_oneof![8 => 0usize..300, 1 => 300usize..2100];
    let divide_by = prop_oneof![1usize..9, Just(128), Just(1000), Just(usize::MAX), Just(1 << 63)];
    (count, 1usize..=9, 0usize..64, 0usize..3, 0usize..3, divide_by).prop_flat_map(
        move |(count, sources, shift, in_place, apart, divide_by)| {
            prop::collection::vec(elements(dtype, count), sources).prop_map(move |sources| Case {
                in_place: in_place.min(sources.len()),
                sources,
                shift,
                apart,
                divide_by,
            })
        },
    )
}

/// All buffers after the reduction, with what surrounds them.
fn reduced(kernel: Kernel, case: &Case) -> Vec<Vec<u8>> {
    const EDGE: u8 = 0xa5;
    let len = case.sources[0].len();
    let at = |i: usize| (case.shift * (i + 1)) % 64;
    let mut buffers: Vec<Vec<u8>> =
        (0..case.sources.len() + case.apart).map(|i| vec![EDGE; at(i) + len + 64]).collect();
    for (i, source) in case.sources.iter().enumerate() {
        buffers[i][at(i)..at(i) + len].copy_from_slice(source);
    }
    let starts: Vec<*mut u8> =
        buffers.iter_mut().enumerate().map(|(i, buffer)| buffer[at(i)..].as_mut_ptr()).collect();
    let sources: Vec<*const u8> =
        starts[..case.sources.len()].iter().map(|&start| start.cast_const()).collect();
    let mut into = starts[..case.in_place].to_vec();
    into.extend(&starts[case.sources.len()..]);
    // SAFETY: each start is good for `len` bytes of its own buffer; a destination is a source or overlaps nothing.
    unsafe { kernel.reduce(&into, &sources, len, case.divide_by) };
    buffers
}

fn instances() -> impl Iterator<Item = Instance> {
    Instance::ALL.into_iter().filter(|&i| i != Instance::Plain && i.is_available())
}

/// One property for each element type, so that a failure names it and they run side by side.
macro_rules! equal_the_plain_one {
    ($($name:ident: $dtype:ident;)*) => { $(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]
            #[test]
            fn $name(case in case(DType::$dtype)) {
                for op in ReduceOp::ALL {
                    let Some(plain) = Kernel::with(Instance::Plain, op, DType::$dtype) else { continue };
                    let expected = reduced(plain, &case);
                    for instance in instances() {
                        let kernel = Kernel::with(instance, op, DType::$dtype).expect("every instance has every kernel");
                        prop_assert_eq!(&reduced(kernel, &case), &expected, "{} {}", instance, op);
                    }
                }
            }
        }
    )* };
}

equal_the_plain_one! {
    f32: F32;
    f64: F64;
    f16: F16;
    bf16: BF16;
    i8: I8;
    i16: I16;
    i32: I32;
    i64: I64;
    u8: U8;
    u16: U16;
    u32: U32;
    u64: U64;
}

/// Every value of a half type against every special one, and against its neighbours, where rounding is decided.
#[test]
#[cfg_attr(miri, ignore = "too many")]
fn every_half_value() {
    for dtype in [DType::F16, DType::BF16] {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for &partner in special(dtype) {
            let partners: Vec<u8> = (0..=u16::MAX).flat_map(|_| (partner as u16).to_le_bytes()).collect();
            let case =
                Case { sources: vec![all.clone(), partners], shift: 1, in_place: 0, apart: 1, divide_by: 3 };
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
                let plain = Kernel::with(Instance::Plain, op, dtype).expect("supported");
                let expected = reduced(plain, &case);
                for instance in instances() {
                    let kernel = Kernel::with(instance, op, dtype).expect("every instance has every kernel");
                    assert!(
                        reduced(kernel, &case) == expected,
                        "{instance} {op} of {dtype} with {partner:#x}"
                    );
                }
            }
        }
    }
}

/// The shape that is called most often has loops of its own, one for each way to end: whole blocks and what is left of one, in place and not.
#[test]
fn two_sources_into_one_destination() {
    for dtype in DType::ALL {
        let (special, size) = (special(dtype), dtype.size());
        let values = |seed: u64, count: usize| -> Vec<u8> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 24
            };
            let value = |bits: u64| {
                if bits & 3 == 0 { special[(bits >> 2) as usize % special.len()] } else { bits << 24 ^ bits }
            };
            (0..count).flat_map(|_| value(next()).to_le_bytes()[..size].to_vec()).collect()
        };
        let counts =
            if cfg!(miri) { vec![70] } else { vec![0, 1, 17, 1024 / size, 1024 / size + 1, 3000 / size] };
        for (count, divide_by, in_place) in counts
            .into_iter()
            .flat_map(|count| [1, 2, 3, 200].map(|by| (count, by)))
            .flat_map(|(count, by)| [0, 1].map(|in_place| (count, by, in_place)))
        {
            let sources = vec![values(1, count), values(2, count)];
            let case = Case { sources, shift: 1, in_place, apart: 1 - in_place, divide_by };
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
                let plain = Kernel::with(Instance::Plain, op, dtype).expect("supported");
                let expected = reduced(plain, &case);
                for instance in instances() {
                    let kernel = Kernel::with(instance, op, dtype).expect("every instance has every kernel");
                    assert!(
                        reduced(kernel, &case) == expected,
                        "{instance} {op} of {count} {dtype}, by {divide_by}, in place {in_place}"
                    );
                }
            }
        }
    }
}
