//! The element types of candle's kernels. All are computed with in f64, and rounded once.

use half::{bf16, f16};

pub(crate) trait Number: Copy + Send + 'static {
    fn wide(self) -> f64;
    fn narrow(x: f64) -> Self;
}

macro_rules! numbers {
    ($($t:ty),*) => { $(
        impl Number for $t {
            fn wide(self) -> f64 {
                self as f64
            }
            fn narrow(x: f64) -> Self {
                x as $t
            }
        }
    )* };
}

numbers!(u8, u32, i16, i32, i64, f32, f64);

impl Number for f16 {
    fn wide(self) -> f64 {
        self.to_f64()
    }
    fn narrow(x: f64) -> Self {
        Self::from_f64(x)
    }
}

impl Number for bf16 {
    fn wide(self) -> f64 {
        self.to_f64()
    }
    fn narrow(x: f64) -> Self {
        Self::from_f64(x)
    }
}
