//! Element types and operators, as NCCL knows them.

use crate::load::Version;
use crate::sys::nccl;
use half::{bf16, f16};
use phalanx_core::{DType, Element, ReduceOp};

/// A type that NCCL reduces. The numbers are NCCL's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs, reason = "the variants are the names of the types")]
pub enum DataType {
    I8 = nccl::INT8,
    U8 = nccl::UINT8,
    I32 = nccl::INT32,
    U32 = nccl::UINT32,
    I64 = nccl::INT64,
    U64 = nccl::UINT64,
    F16 = nccl::FLOAT16,
    F32 = nccl::FLOAT32,
    F64 = nccl::FLOAT64,
    BF16 = nccl::BFLOAT16,
    F8E4M3 = nccl::FLOAT8_E4M3,
    F8E5M2 = nccl::FLOAT8_E5M2,
}

impl DataType {
    /// Every type, by number.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::BF16,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// Bytes one element takes.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_nccl::DataType::BF16.size(), 2);
    /// ```
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The first version of NCCL that has it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{DataType, Version};
    ///
    /// assert_eq!(DataType::F8E4M3.since(), Version { major: 2, minor: 24, patch: 0 });
    /// ```
    pub const fn since(self) -> Version {
        match self {
            Self::F8E4M3 | Self::F8E5M2 => Version { major: 2, minor: 24, patch: 0 },
            Self::BF16 => Version { major: 2, minor: 10, patch: 0 },
            _ => Version { major: 2, minor: 0, patch: 0 },
        }
    }

    /// NCCL's type for `dtype`. It has none for integers of 16 bits, which can be moved but not reduced.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::DType;
    /// use phalanx_nccl::DataType;
    ///
    /// assert_eq!(DataType::of(DType::BF16), Some(DataType::BF16));
    /// assert_eq!(DataType::of(DType::I16), None);
    /// ```
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            DType::I8 => Some(Self::I8),
            DType::I32 => Some(Self::I32),
            DType::I64 => Some(Self::I64),
            DType::U8 => Some(Self::U8),
            DType::U32 => Some(Self::U32),
            DType::U64 => Some(Self::U64),
            _ => None,
        }
    }
}

/// NCCL's number of an operator, of those that have one.
pub(crate) const fn number(op: ReduceOp) -> Option<i32> {
    match op {
        ReduceOp::Sum => Some(nccl::SUM),
        ReduceOp::Prod => Some(nccl::PROD),
        ReduceOp::Max => Some(nccl::MAX),
        ReduceOp::Min => Some(nccl::MIN),
        ReduceOp::Avg => Some(nccl::AVG),
        _ => None,
    }
}

/// A float of eight bits, four of them exponent, without infinities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// A float of eight bits, five of them exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

mod sealed {
    pub trait Sealed {}
}

/// An element of device memory: those of phalanx, and the floats of eight bits, which only devices have. NCCL moves these anywhere, and reduces them from 2.24 on,
/// where all devices have a compute capability of 9.0 or more; for a rank that is alone it neither averages nor multiplies them. Else that is
/// [`Unsupported`](phalanx_core::Error::Unsupported).
pub trait DeviceElement:
    sealed::Sealed + bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync + 'static
{
    /// NCCL's type for it, if it has one.
    const DATA_TYPE: Option<DataType>;
    /// Phalanx's type for it, if it has one.
    const DTYPE: Option<DType>;
    /// The type that carries it over the host: itself, or as many bytes.
    type OnHost: Element;
}

macro_rules! device_elements {
    ($($t:ty),*) => { $(
        impl sealed::Sealed for $t {}
        impl DeviceElement for $t {
            const DATA_TYPE: Option<DataType> = DataType::of(<$t as Element>::DTYPE);
            const DTYPE: Option<DType> = Some(<$t as Element>::DTYPE);
            type OnHost = $t;
        }
    )* };
}

device_elements!(f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64);

impl sealed::Sealed for F8E4M3 {}
impl DeviceElement for F8E4M3 {
    const DATA_TYPE: Option<DataType> = Some(DataType::F8E4M3);
    const DTYPE: Option<DType> = None;
    type OnHost = u8;
}

impl sealed::Sealed for F8E5M2 {}
impl DeviceElement for F8E5M2 {
    const DATA_TYPE: Option<DataType> = Some(DataType::F8E5M2);
    const DTYPE: Option<DType> = None;
    type OnHost = u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_known_by_its_name_not_by_its_size() {
        assert_eq!(
            (DataType::of(DType::I32), DataType::of(DType::F32)),
            (Some(DataType::I32), Some(DataType::F32))
        );
        for dtype in DType::ALL {
            if let Some(data_type) = DataType::of(dtype) {
                assert_eq!(
                    (data_type.size(), format!("{data_type:?}")),
                    (dtype.size(), format!("{dtype:?}"))
                );
            }
        }
        for (number, data_type) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(data_type as usize, number);
        }
    }
}
