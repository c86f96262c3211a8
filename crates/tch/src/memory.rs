//! A tensor's elements as bytes, where they are: all unsafe code of this crate.
#![allow(unsafe_code)]

use crate::error::told;
use crate::{Error, Result};
use phalanx::DType;
use phalanx::error::OpKind;
use tch::{Device, Kind, Tensor};

/// The element type as phalanx calls it, of those that both have.
pub(crate) fn shared(kind: Kind) -> Option<DType> {
    Some(match kind {
        Kind::Double => DType::F64,
        Kind::Float => DType::F32,
        Kind::Half => DType::F16,
        Kind::BFloat16 => DType::BF16,
        Kind::Int64 => DType::I64,
        Kind::Int => DType::I32,
        Kind::Int16 => DType::I16,
        Kind::Int8 => DType::I8,
        Kind::Uint8 => DType::U8,
        _ => return None,
    })
}

/// The element type as tch calls it, of those that both have.
pub(crate) fn kind(dtype: DType) -> Option<Kind> {
    use Kind::{BFloat16, Double, Float, Half, Int, Int8, Int16, Int64, Uint8};
    let kinds = [Double, Float, Half, BFloat16, Int64, Int, Int16, Int8, Uint8];
    kinds.into_iter().find(|kind| shared(*kind) == Some(dtype))
}

/// The type of a tensor's elements.
///
/// # Errors
/// Unsupported for a tensor that does not lie in the host's memory, element by element, or has elements that can't be sent.
pub(crate) fn dtype(op: OpKind, tensor: &Tensor) -> Result<DType> {
    let refused = |hint: String| Error::from(phalanx::Error::Unsupported { op, backend: "libtorch", hint });
    if !tensor.defined() {
        return Err(refused("the tensor is undefined".to_owned()));
    }
    if tensor.device() != Device::Cpu {
        let hint = format!("a tensor on {:?} cannot be sent; move it to the CPU", tensor.device());
        return Err(refused(hint));
    }
    if tensor.is_sparse() || tensor.is_mkldnn() {
        return Err(refused(
            "a tensor that is sparse or of oneDNN's own layout cannot be sent; make it dense".to_owned(),
        ));
    }
    let kind = tensor.f_kind().map_err(told)?;
    shared(kind).ok_or_else(|| {
        refused(format!("elements of type {kind:?} cannot be sent; convert them with `to_kind`"))
    })
}

/// Has `look` look at a tensor's elements, in row-major order. If they lie in another one, at a copy.
pub(crate) fn read<R>(op: OpKind, tensor: &Tensor, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let size = dtype(op, tensor)?.size();
    let in_order = tch::no_grad(|| tensor.f_contiguous()).map_err(told)?;
    let Some((start, len)) = place(op, &in_order, size)? else { return Ok(look(nothing())) };
    // SAFETY: `place` has found that the elements are `len` bytes of one allocation, from `start` on. `in_order` holds it until `look` returns. libtorch's
    // allocator is no part of the program, so the bytes count as written. Only code of this workspace runs in `look`, which changes no tensor; that no
    // other thread does through another handle is what tch asks of all who compute with a tensor.
    let bytes = unsafe { std::slice::from_raw_parts(start, len) };
    Ok(look(bytes))
}

/// Has `change` change a tensor's elements where they are. What shares their memory sees it.
pub(crate) fn write<R>(op: OpKind, tensor: &mut Tensor, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
    let size = dtype(op, tensor)?.size();
    if !tensor.is_contiguous() {
        let what = "the elements do not lie in row-major order; pass `tensor.contiguous()` and use that";
        return Err(phalanx::Error::misuse(op, what).into());
    }
    let Some((start, len)) = place(op, tensor, size)? else { return Ok(change(nothing())) };
    // SAFETY: as in `read`. Elements in row-major order do not overlap, and nobody looks at them meanwhile: callers pass `change` no other bytes of this
    // memory, for which they have `overlap`.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
    Ok(change(bytes))
}

/// Whether two tensors in row-major order have bytes in common.
pub(crate) fn overlap(one: &Tensor, other: &Tensor) -> bool {
    let range = |tensor: &Tensor| {
        let start = tensor.data_ptr().addr();
        start..start + tensor.numel() * tensor.kind().elt_size_in_bytes()
    };
    let (one, other) = (range(one), range(other));
    one.start < other.end && other.start < one.end
}

/// Where elements of `size` bytes each lie, if there are any.
fn place(op: OpKind, tensor: &Tensor, size: usize) -> Result<Option<(*mut u8, usize)>> {
    let (start, len) = (tensor.data_ptr().cast::<u8>(), tensor.numel() * size);
    if len == 0 || start.is_null() {
        return Ok(None);
    }
    if !start.addr().is_multiple_of(size) {
        let what = "the elements are not aligned as such elements are; pass a copy of the tensor";
        return Err(phalanx::Error::misuse(op, what).into());
    }
    Ok(Some((start, len)))
}

/// No bytes, aligned as any elements are.
fn nothing<'a>() -> &'a mut [u8] {
    bytemuck::cast_slice_mut::<u64, u8>(&mut [])
}
