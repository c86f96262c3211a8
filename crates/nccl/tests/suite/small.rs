//! Numbers of every type.

use half::{bf16, f16};
use phalanx_nccl::{DeviceElement, F8E4M3, F8E5M2};

/// Elements that are small whole numbers in every type.
pub(crate) trait Small: DeviceElement {
    fn of(n: u8) -> Self;

    /// Whether it is `n`, or what comes near it of an average of so many ranks, which multiplies each number with a rounded one.
    fn is_about(self, n: u8, _ranks: usize) -> bool {
        self == Self::of(n)
    }
}

macro_rules! small {
    ($($t:ty: |$n:ident| $of:expr $(, rounded to $epsilon:expr)?;)*) => { $(impl Small for $t {
        fn of($n: u8) -> Self { $of }
        $(fn is_about(self, n: u8, ranks: usize) -> bool {
            // Numbers are up to 8.
            let error = f64::from(self) - f64::from(n);
            error.abs() <= 8.0 * ranks as f64 * f64::from($epsilon)
        })?
    })* };
}

small! {
    f32: |n| n.into(), rounded to f32::EPSILON;
    f64: |n| n.into(), rounded to f64::EPSILON;
    f16: |n| f16::from_f32(n.into()), rounded to f16::EPSILON;
    bf16: |n| bf16::from_f32(n.into()), rounded to bf16::EPSILON;
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
