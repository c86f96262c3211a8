//! Conversions from candle's run-time element types to Rust's types, and from tensors to slices.

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Storage, Tensor, WithDType};
use phalanx::error::OpKind;
use phalanx::{Element, Error, ProcessGroup};
use std::cell::RefCell;

/// A type that both candle and phalanx carry.
pub(crate) trait Shared: Element + WithDType {}

impl<T: Element + WithDType> Shared for T {}

/// Evaluates `$body` with `$T` as the Rust type of `$dtype`, or `$otherwise` for a type that phalanx cannot carry.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, $other:pat => $otherwise:expr $(,)?) => {
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
            $other => $otherwise,
        }
    };
}
pub(crate) use with_element;

/// The error for a type that phalanx cannot carry.
pub(crate) fn unsupported_dtype(group: &ProcessGroup, op: OpKind, dtype: DType) -> Error {
    let hint = format!("elements of type {} cannot be sent; convert with `to_dtype`", dtype.as_str());
    Error::Unsupported { op, backend: group.backend_name(), hint }
}

/// Refuses tensors on another device than the CPU, for what is done there alone.
pub(crate) fn require_cpu(group: &ProcessGroup, op: OpKind, device: &Device) -> phalanx::Result<()> {
    if device.is_cpu() {
        return Ok(());
    }
    let hint = format!("the tensor is on {:?}; move it with `to_device(&Device::Cpu)`", device.location());
    Err(Error::Unsupported { op, backend: group.backend_name(), hint })
}

/// The elements in memory of the host, in row-major order: the tensor itself, or a copy of what is on a device, for which this thread waits.
pub(crate) fn on_host(tensor: &Tensor) -> candle_core::Result<Tensor> {
    // In order first: what is copied is all of the tensor's memory.
    tensor.contiguous()?.to_device(&Device::Cpu)
}

/// Gives a tensor the elements of another, of that type and number, in its own memory, wherever that is.
pub(crate) fn assign(tensor: &Tensor, elements: &Tensor) -> candle_core::Result<()> {
    if !tensor.is_contiguous() {
        // Flattened it would be a copy, and what is written there would be lost.
        candle_core::bail!("the elements do not lie in row-major order");
    }
    let elements = elements.to_device(tensor.device())?.flatten_all()?.contiguous()?;
    tensor.flatten_all()?.slice_set(&elements, 0, 0)
}

/// As [`bytes_mut`], on a copy if the tensor is on a device.
pub(crate) fn bytes_mut_anywhere<R>(
    tensor: &Tensor,
    use_it: impl FnOnce(&mut [u8]) -> R,
) -> candle_core::Result<R> {
    if tensor.device().is_cpu() {
        return bytes_mut(tensor, use_it);
    }
    let copy = on_host(tensor)?;
    let outcome = bytes_mut(&copy, use_it)?;
    assign(tensor, &copy)?;
    Ok(outcome)
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

/// Passes the memory of a contiguous `tensor`, as bytes, to `use_it`, which may change it.
pub(crate) fn bytes_mut<R>(tensor: &Tensor, use_it: impl FnOnce(&mut [u8]) -> R) -> candle_core::Result<R> {
    let task = Task { use_it: RefCell::new(Some(use_it)), outcome: RefCell::new(None) };
    tensor.inplace_op1(&task)?;
    Ok(task.outcome.into_inner().expect("candle performs an operation on the CPU or returns an error"))
}

/// Gives `tensor`, and all that share its memory, other memory, and returns what it had.
pub(crate) fn replace(tensor: &Tensor, storage: CpuStorage) -> candle_core::Result<CpuStorage> {
    let swap = Swap(RefCell::new(storage));
    tensor.inplace_op1(&swap)?;
    Ok(swap.0.into_inner())
}

/// An exchange of a tensor's memory dressed as a candle operation.
struct Swap(RefCell<CpuStorage>);

impl InplaceOp1 for Swap {
    fn name(&self) -> &'static str {
        "phalanx"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        std::mem::swap(storage, &mut self.0.borrow_mut());
        Ok(())
    }
}

/// Work on a tensor's memory dressed as a candle operation: only these are given it to write to.
struct Task<F, R> {
    use_it: RefCell<Option<F>>,
    outcome: RefCell<Option<R>>,
}

impl<F: FnOnce(&mut [u8]) -> R, R> InplaceOp1 for Task<F, R> {
    fn name(&self) -> &'static str {
        "phalanx"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let bytes = part_mut(storage, layout)?;
        let use_it = self.use_it.take().expect("candle performs an operation once");
        *self.outcome.borrow_mut() = Some(use_it(bytes));
        Ok(())
    }
}

/// The bytes of a tensor in memory that it may share with other views: the layout says which part is its own.
fn part_mut<'s>(storage: &'s mut CpuStorage, layout: &Layout) -> candle_core::Result<&'s mut [u8]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("the elements do not lie in row-major order");
    };
    fn cut<T: Shared>(all: &mut [T], start: usize, end: usize) -> candle_core::Result<&mut [u8]> {
        match all.get_mut(start..end) {
            Some(part) => Ok(bytemuck::cast_slice_mut(part)),
            None => {
                candle_core::bail!(
                    "the tensor's memory is with another operation, or belongs to another tensor here"
                )
            }
        }
    }
    match storage {
        CpuStorage::F32(all) => cut(all, start, end),
        CpuStorage::F64(all) => cut(all, start, end),
        CpuStorage::F16(all) => cut(all, start, end),
        CpuStorage::BF16(all) => cut(all, start, end),
        CpuStorage::U8(all) => cut(all, start, end),
        CpuStorage::U32(all) => cut(all, start, end),
        CpuStorage::I16(all) => cut(all, start, end),
        CpuStorage::I32(all) => cut(all, start, end),
        CpuStorage::I64(all) => cut(all, start, end),
        other => {
            let dtype = candle_core::backend::BackendStorage::dtype(other);
            candle_core::bail!("elements of type {} cannot be sent", dtype.as_str())
        }
    }
}

/// The memory of a tensor on the host, away from the tensor, and from all that share it: for operations on several tensors at once. Dropped, it is there again.
pub(crate) struct Taken {
    tensor: Tensor,
    storage: CpuStorage,
}

impl Taken {
    /// # Errors
    /// The memory is away already: another tensor that shares it was here before, or another thread has it.
    pub(crate) fn of(tensor: &Tensor) -> candle_core::Result<Self> {
        let mut storage = replace(tensor, CpuStorage::U8(Vec::new()))?;
        if let Err(error) = part_mut(&mut storage, tensor.layout()) {
            replace(tensor, storage)?;
            return Err(error);
        }
        Ok(Self { tensor: tensor.clone(), storage })
    }

    /// The tensor's own elements.
    pub(crate) fn elements<T: Shared>(&mut self) -> candle_core::Result<&mut [T]> {
        let bytes = part_mut(&mut self.storage, self.tensor.layout())?;
        Ok(bytemuck::cast_slice_mut(bytes))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let storage = std::mem::replace(&mut self.storage, CpuStorage::U8(Vec::new()));
        if let Err(error) = replace(&self.tensor, storage) {
            tracing::error!(%error, "a tensor has lost its memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_to_a_tensors_own_memory_or_not_at_all() {
        let whole = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        let row = Tensor::new(&[1f32, 2.0, 3.0], &Device::Cpu).unwrap();
        assign(&whole.narrow(0, 1, 1).unwrap(), &row).unwrap();
        assert_eq!(whole.to_vec2::<f32>().unwrap(), [[0.0; 3], [1.0, 2.0, 3.0]]);
        let refused = assign(&whole.t().unwrap(), &whole).unwrap_err().to_string();
        assert!(refused.contains("do not lie in row-major order"), "{refused}");
    }
}
