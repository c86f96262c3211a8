"""The messages of c10d between two ranks."""

import sys

import torch.distributed as dist

from .errors import as_c10d
from .profiles import event
from .tensors import dense, memory, space
from .works import Done, Work


def _code(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function.__code__


_WAITS = {_code(dist.send), _code(dist.recv)}
#: What stands between them and the backend.
_BETWEEN = {_code(dist.isend), _code(dist.irecv), dist.isend.__code__}


def _caller_waits():
    """Whether `dist.send` or `dist.recv` calls, which wait at once. c10d calls a backend alike for them and for `isend` and `irecv`."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code in _WAITS


class Messages:
    """A message whose caller waits is sent and received on the caller's thread, which is quicker."""

    def send(self, tensors, dst, tag=0):
        buffer, waits = memory(dense(tensors[0])), _caller_waits()
        with as_c10d, event("send"):
            work = self._group.send(buffer, dst, tag, async_op=not waits)
        return None if waits else Work([work], tensors)

    def recv(self, tensors, src, tag=0):
        return self._received(tensors, _caller_waits(), lambda buffer, is_async: self._group.recv(buffer, src, tag, async_op=is_async))

    def recv_anysource(self, tensors, tag=0):
        return self._received(tensors, _caller_waits(), lambda buffer, is_async: self._group.recv_any(buffer, tag, async_op=is_async))

    recvAnysource = recv_anysource

    def _received(self, tensors, waits, begin):
        tensor, whole = tensors[0], space(tensors[0])
        with as_c10d, event("recv"):
            begun = begin(memory(whole), not waits)
        then = None if whole is tensor else lambda: tensor.detach().copy_(whole)
        if not waits:
            return Work([begun], tensors, then)
        if then is not None:
            then()
        return Done(tensors, begun)
