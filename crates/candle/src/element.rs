//! From candle's run-time element types to Rust's types, and from tensors to slices.

use candle_core::{DType, Device, Storage, Tensor, WithDType};
use phalanx::{Element, Error, OpKind, ProcessGroup};

/// A type that both candle and phalanx carry.
pub(crate) trait Shared: Element + WithDType {}

impl<T: Element + WithDType> Shared for T {}

/// Evaluates `$body` with `$T` as the Rust type of `$dtype`, or `$otherwise` for a type that phalanx cannot carry.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, _ => $otherwise:expr $(,)?) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            candle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            candle_core::DType::U8 => {
                type $T = u8;
                $body
            }
            candle_core::DType::U32 => {
                type $T = u32;
                $body
            }
            candle_core::DType::I16 => {
                type $T = i16;
                $body
            }
            candle_core::DType::I32 => {
                type $T = i32;
                $body
            }
            candle_core::DType::I64 => {
                type $T = i64;
                $body
            }
            _ => $otherwise,
        }
    };
}
pub(crate) use with_element;

/// The error for a type that phalanx cannot carry.
pub(crate) fn unsupported_dtype(group: &ProcessGroup, op: OpKind, dtype: DType) -> Error {
    let hint = format!("elements of type {} cannot be sent; convert with `to_dtype`", dtype.as_str());
    Error::Unsupported { op, backend: group.backend_name(), hint }
}

/// Refuses tensors on another device than the CPU.
pub(crate) fn require_cpu(group: &ProcessGroup, op: OpKind, device: &Device) -> phalanx::Result<()> {
    if device.is_cpu() {
        return Ok(());
    }
    let hint = format!("the tensor is on {:?}; move it with `to_device(&Device::Cpu)`", device.location());
    Err(Error::Unsupported { op, backend: group.backend_name(), hint })
}

/// Passes the elements of `tensor` to `read`, in row-major order, copying only when they do not lie in that order.
pub(crate) fn read<T: Shared, R>(tensor: &Tensor, read: impl FnOnce(&[T]) -> R) -> candle_core::Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("expected a tensor on the CPU, found one on {:?}", tensor.device().location())
    };
    // The storage may be shared with other views; the layout says which part is this tensor's.
    let (start, end) = layout.contiguous_offsets().expect("`contiguous` returns a contiguous tensor");
    Ok(read(&T::cpu_storage_as_slice(storage)?[start..end]))
}
