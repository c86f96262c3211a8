//! Values at which arithmetic is special.

use phalanx_core::DType;

/// As bytes of `dtype`: zeros, infinities, NaN of several kinds, subnormals, the
/// extremes of integers.
pub fn special(dtype: DType) -> &'static [u64] {
    match dtype {
        DType::F32 => &[
            0,
            0x8000_0000,
            0x3f80_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc0_1234,
            0x7f80_0001,
            1,
            0x8000_0001,
            0x007f_ffff,
            0x0080_0000,
            0x7f7f_ffff,
            0xff7f_ffff,
        ],
        DType::F64 => &[
            0,
            1 << 63,
            0x3ff0 << 48,
            0x7ff0 << 48,
            0xfff0 << 48,
            0x7ff8 << 48,
            (0xfff8 << 48) + 7,
            (0x7ff0 << 48) + 1,
            1,
            (1 << 63) + 1,
            (0x7ff0 << 48) - 1,
        ],
        DType::F16 => &[
            0, 0x8000, 0x3c00, 0x3c01, 0x7c00, 0xfc00, 0x7e00, 0xfe12, 0x7c01, 0xfc01, 1, 0x8001, 0x03ff,
            0x0400, 0x7bff, 0xfbff,
        ],
        DType::BF16 => &[
            0, 0x8000, 0x3f80, 0x3f81, 0x3b80, 0x7f80, 0xff80, 0x7fc0, 0xffd2, 0x7f81, 0xff81, 1, 0x8001,
            0x007f, 0x0080, 0x7f7f, 0xff7f,
        ],
        _ => &[0, 1, u64::MAX, u64::MAX / 2, 1 << 63, 0x8080_8080_8080_8080, 0x7f7f_7f7f_7f7f_7f7f],
    }
}
