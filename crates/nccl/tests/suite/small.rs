//! Numbers of every type.

use half::{bf16, f16};
use phalanx_nccl::{DeviceElement, F8E4M3, F8E5M2};

/// Elements that are small whole numbers in every type.
pub(crate) trait Small: DeviceElement {
    fn of(n: u8) -> Self;
}

macro_rules! small {
    ($($t:ty: |$n:ident| $of:expr;)*) => { $(impl Small for $t { fn of($n: u8) -> Self { $of } })* };
}

small! {
    f32: |n| n.into();
    f64: |n| n.into();
    f16: |n| f16::from_f32(n.into());
    bf16: |n| bf16::from_f32(n.into());
    i8: |n| n as i8;
    u8: |n| n;
    i16: |n| n.into();
    u16: |n| n.into();
    i32: |n| n.into();
    u32: |n| n.into();
    i64: |n| n.into();
    u64: |n| n.into();
    F8E4M3: |n| Self([0x00, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50][usize::from(n)]);
    F8E5M2: |n| Self([0x00, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47, 0x48][usize::from(n)]);
}
