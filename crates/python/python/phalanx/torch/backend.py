"""The backend `phalanx` of `torch.distributed`: its life, barriers, and how its operations are performed."""

import atexit
import contextlib
import functools
import weakref
from datetime import timedelta

import torch.distributed as dist

from .. import errors
from .collectives import Collectives
from .errors import as_c10d, of_c10d
from .messages import Messages
from .profiles import event
from .rendezvous import meet
from .tensors import combined
from .works import Work

NAME = "phalanx"

#: The timeout of calls that have none of their own.
_UNSET = timedelta(milliseconds=-1)

#: The backends of this process.
_backends = weakref.WeakSet()

#: The backend of the group of all ranks, from which those of smaller groups are made.
_of_world = None


class Backend(Collectives, Messages, dist.distributed_c10d.C10DBackend):
    """What c10d calls for tensors on the CPU."""

    supports_splitting = True
    supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = supports_time_estimate = supports_abort_hooks = False

    def __init__(self, group, timeout):
        super().__init__(group.rank, group.world_size)
        self._groups = {None: group}
        self._group = group
        self._calls = 0
        _backends.add(self)
        self._set_default_timeout(timeout)

    # Names and properties.

    def getBackendName(self):
        return NAME

    def name(self):
        return NAME

    def supports_tensor_alloc(self, device):
        return False

    @property
    def options(self):
        return type(self).Options(NAME, self._timeout)

    getBackendOptions = options

    def _set_sequence_number_for_group(self):
        """Ranks of phalanx number the calls of a group themselves."""

    def _get_sequence_number_for_group(self):
        """How many collectives the program has called, as tools of c10d ask for to find a rank that is behind."""
        return self._calls

    # Life.

    def _set_default_timeout(self, timeout):
        self._timeout = timeout
        self._group = self._limited(timeout)

    set_timeout = _set_default_timeout

    def split(self, store, ranks, opts):
        """The backend of a group of these ranks of this one; they alone make it."""
        if self.rank() not in ranks:
            return None
        return self._of(ranks, opts._timeout)

    def eager_connect_single_device(self, device):
        """Groups of phalanx are connected when they are made."""

    def perform_nocolor_split(self, device):
        """Groups of phalanx are made by their members alone."""

    def shutdown(self):
        global _of_world
        if _of_world is self:
            _of_world = None
        for group in self._groups.values():
            group.close()

    def abort(self):
        with contextlib.suppress(errors.Error, ValueError):
            self._group.abort("the program aborted its process group")
        self.shutdown()

    def _of(self, ranks, timeout):
        ranks = list(ranks)
        with as_c10d:
            group = self._group.new_group(ranks)
            if ranks != sorted(ranks):
                # It has them in their order here.
                sorted_group, group = group, group.split(0, ranks.index(self.rank()))
                sorted_group.close()
        return Backend(group, timeout)

    def _limited(self, timeout):
        """The group with this limit for its operations, a timedelta; its own limit, if that is negative."""
        if timeout == _UNSET:
            return self._group
        seconds = timeout.total_seconds()
        group = self._groups.get(seconds)
        if group is None:
            group = self._groups[seconds] = self._groups[None].with_timeout(seconds)
        return group

    # Operations.

    def _perform(self, name, opts, begin, tensors, then=None):
        """Performs an operation of c10d or begins it, as its options say. `begin(group, is_async)` does it; `then` brings results to the tensors."""
        is_async = opts is None or opts.asyncOp
        self._calls += 1
        group = self._group if opts is None else self._limited(opts.timeout)
        with as_c10d, event(name):
            works = begin(group, is_async)
        if is_async:
            return Work(works if isinstance(works, list) else [works], tensors, then)
        if then is not None:
            then()
        return None

    def _reduce_now(self, tensor, op, timeout):
        """The same for an all_reduce that waits, of a tensor that is plain."""
        self._calls += 1
        group = self._group if timeout == _UNSET else self._limited(timeout)
        try:
            group.all_reduce(combined(tensor), op)
        except errors.Error as error:
            raise of_c10d(error) from None

    def barrier(self, opts=None):
        return self._perform("barrier", opts, lambda group, is_async: group.barrier(async_op=is_async), [])

    def monitored_barrier(self, opts=None, wait_all_ranks=False):
        """Errors name all ranks that have not come, whether or not that is asked for."""
        timeout = self._timeout if opts is None or opts.timeout == _UNSET else opts.timeout
        with as_c10d, event("monitored_barrier"):
            self._group.monitored_barrier(timeout.total_seconds())

    monitoredBarrier = monitored_barrier


def create(options, _):
    """What c10d calls for each new group."""
    global _of_world
    ranks, timeout = options.global_ranks_in_group, options.timeout
    if ranks and _of_world is not None:
        return _of_world._of(ranks, timeout)
    with as_c10d:
        made = Backend(meet(options.store, options.group_rank, options.group_size, timeout.total_seconds()), timeout)
    _shut_down_at_exit()
    if not ranks:
        _of_world = made
    return made


@functools.cache
def _shut_down_at_exit():
    """A program may end without `destroy_process_group`: what it has sent arrives, and the others hear that it has left, not that it died."""
    # After the first rank has joined, so that it comes before what joining does at the end.
    atexit.register(lambda: [backend.shutdown() for backend in list(_backends)])
