"""phalanx for programs of PyTorch: the backend `phalanx` of `torch.distributed`, for tensors on the CPU.

    import torch.distributed as dist

    dist.init_process_group("phalanx")                  # or "cpu:phalanx,cuda:nccl"

PyTorch imports this module where a program names the backend. Whoever imports it first has registered the backend, too.
"""

from os.path import dirname as _dirname
from os.path import join as _join

import torch
import torch.distributed as _dist

from .._phalanx import _library_is_in
from .backend import NAME as _NAME
from .backend import Backend, create as _create
from .data_parallel import DistributedDataParallel

__all__ = ["Backend", "DistributedDataParallel", "register"]

# Errors name the lines of programs.
_library_is_in(_join(_dirname(torch.__file__), ""))

_dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])


def register():
    """What PyTorch calls once it has imported this module for a program that names the backend. The import has done it."""
