"""Tensors as memory of operations: what phalanx calls their elements, and how a tensor that does not lie in one piece is laid into one."""

import math

import torch

from .._phalanx import Memory

_DENSE = torch.strided
#: phalanx's names of the elements that it can combine.
NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}


def memory(tensor):
    """The memory of a tensor that lies in one piece. Elements that phalanx can't combine, such as those of 8 bits, are bytes."""
    name = NAMES.get(tensor.dtype)
    if name is not None:
        return Memory(tensor.data_ptr(), tensor.numel(), name, tensor)
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), "bytes", tensor)


def combined(tensor):
    """The memory of a tensor whose elements are combined."""
    name = NAMES.get(tensor.dtype)
    if name is None:
        names = ", ".join(str(name).removeprefix("torch.") for name in NAMES)
        raise ValueError(f"tensors of {tensor.dtype} can be moved, and not reduced: convert them to one of {names}")
    return Memory(tensor.data_ptr(), tensor.numel(), name, tensor)


def scale(tensor):
    """How many elements of `memory(tensor)` one of the tensor is."""
    return 1 if tensor.dtype in NAMES else tensor.element_size()


def check(tensor):
    """Refuses a tensor whose elements are not in memory that the host sees."""
    if tensor.layout is not _DENSE:
        raise ValueError(f"a tensor of layout {tensor.layout}: of those that are not dense phalanx has all_reduce of sparse_coo only; call to_dense() first")
    check_host(tensor)


def check_host(tensor):
    """Refuses a tensor on another device than the CPU."""
    if not tensor.is_cpu:
        raise ValueError(
            f"a tensor on {tensor.device}: phalanx works on tensors of the CPU; make the group with init_process_group(\"cpu:phalanx,cuda:nccl\"), or pass tensor.cpu()"
        )


def is_plain(tensor):
    """Whether the tensor's elements lie in the host's memory as they are, one after the other."""
    return tensor.is_cpu and tensor.layout is _DENSE and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def dense(tensor):
    """The tensor if it is plain, else a copy that is."""
    if is_plain(tensor):
        return tensor
    check(tensor)
    return tensor.detach().new_empty(tensor.shape).copy_(tensor.detach())


def space(tensor):
    """The tensor if it is plain, else memory of its size, to be copied to it later."""
    if is_plain(tensor):
        return tensor
    check(tensor)
    return tensor.new_empty(tensor.shape)


def flat(tensors):
    """All tensors one after the other: as they lie, if they do so already, else a copy."""
    for tensor in tensors:
        check(tensor)
    whole = _as_one(tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if whole is None else whole


def flat_space(tensors):
    """Memory for all tensors one after the other: their own, if they lie so, else new memory."""
    for tensor in tensors:
        check(tensor)
    whole = _as_one(tensors)
    return tensors[0].new_empty(sum(tensor.numel() for tensor in tensors)) if whole is None else whole


def apart(input, output):
    """The input, or a copy of it where the output may lie in its memory."""
    return input.detach().clone() if input.untyped_storage().data_ptr() == output.untyped_storage().data_ptr() else input


def copy_from_flat(whole, tensors):
    """Copies the pieces of `whole` to the tensors, unless they are its memory."""
    start = 0
    for tensor in tensors:
        end = start + tensor.numel()
        if end > start and tensor.data_ptr() != whole[start:].data_ptr():
            tensor.detach().copy_(whole[start:end].view(tensor.shape))
        start = end


def _as_one(tensors):
    """One tensor over the memory of all of them, where that is in one piece and in their order."""
    first = tensors[0]
    end = first.data_ptr()
    for tensor in tensors:
        if tensor.dtype != first.dtype or not is_plain(tensor) or tensor.data_ptr() != end:
            return None
        end += tensor.numel() * tensor.element_size()
    storage = first.untyped_storage()
    if any(tensor.untyped_storage().data_ptr() != storage.data_ptr() for tensor in tensors):
        return None
    return first.detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


def row(tensor):
    """How many elements one step along the tensor's first dimension is."""
    return math.prod(tensor.shape[1:])
