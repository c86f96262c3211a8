"""phalanx for programs of PyTorch. Importing it registers the backend `phalanx` of `torch.distributed`, for tensors on the CPU.

    import phalanx.torch
    import torch.distributed as dist

    dist.init_process_group("phalanx")                  # or "cpu:phalanx,cuda:nccl"
"""

from os.path import dirname as _dirname
from os.path import join as _join

import torch
import torch.distributed as _dist

from .._phalanx import _library_is_in
from .backend import NAME as _NAME
from .backend import Backend, create as _create
from .data_parallel import DistributedDataParallel

__all__ = ["Backend", "DistributedDataParallel"]

# Errors name the lines of programs.
_library_is_in(_join(_dirname(torch.__file__), ""))

_dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])
