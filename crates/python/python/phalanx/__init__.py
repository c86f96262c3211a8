"""Distributed training: many processes work together, each of them a *rank*.

    import numpy as np
    import phalanx

    group = phalanx.init()                       # who this process is, and who the others are
    gradients = np.full(1000, group.rank, np.float32)
    group.all_reduce(gradients, "avg")           # in place, the same bits on every rank

Started on four ranks: ``phalanx run -n 4 python train.py``. ``import phalanx.torch`` is the backend of ``torch.distributed``.
"""

from os.path import dirname as _dirname
from os.path import join as _join

from . import _phalanx
from ._phalanx import CallSite, Group, Memory, ReduceOp, Work, __version__
from .errors import (
    AbortedError,
    ConfigError,
    DeadlockError,
    Error,
    InternalError,
    IoError,
    LibraryError,
    MismatchError,
    MisuseError,
    NoMessageError,
    ObjectError,
    PeerLostError,
    PoisonedError,
    ProtocolError,
    RendezvousError,
    TimeoutError,
    TrainingError,
    UnavailableError,
    UnsupportedError,
    WrongSumError,
)
from ._leaving import init, join

_phalanx._library_is_in(_join(_dirname(__file__), ""))

__all__ = [
    "AbortedError",
    "CallSite",
    "ConfigError",
    "DeadlockError",
    "Error",
    "Group",
    "InternalError",
    "IoError",
    "LibraryError",
    "Memory",
    "MismatchError",
    "MisuseError",
    "NoMessageError",
    "ObjectError",
    "PeerLostError",
    "PoisonedError",
    "ProtocolError",
    "ReduceOp",
    "RendezvousError",
    "TimeoutError",
    "TrainingError",
    "UnavailableError",
    "UnsupportedError",
    "Work",
    "WrongSumError",
    "init",
    "join",
]
