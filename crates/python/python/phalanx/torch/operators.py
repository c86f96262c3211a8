"""Operators of c10d as those of phalanx."""

import torch.distributed as dist

from .._phalanx import ReduceOp

_KINDS = dist.ReduceOp.RedOpType
_KNOWN = {
    _KINDS.SUM: ReduceOp.SUM,
    _KINDS.AVG: ReduceOp.AVG,
    _KINDS.PRODUCT: ReduceOp.PROD,
    _KINDS.MIN: ReduceOp.MIN,
    _KINDS.MAX: ReduceOp.MAX,
    _KINDS.BAND: ReduceOp.BIT_AND,
    _KINDS.BOR: ReduceOp.BIT_OR,
    _KINDS.BXOR: ReduceOp.BIT_XOR,
}


#: The same by the hashes of c10d's operators, which are those of their kinds, and quick to have.
_BY_HASH = {hash(dist.ReduceOp(kind)): op for kind, op in _KNOWN.items()}


def operator(op):
    """phalanx's operator of a `ReduceOp` of c10d."""
    known = _BY_HASH.get(hash(op))
    if known is not None:
        return known
    if op.op == _KINDS.PREMUL_SUM:
        return ReduceOp.pre_mul_sum(float(op.factor))
    raise ValueError(f"phalanx has no operator {op}: it has SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR and PREMUL_SUM")
