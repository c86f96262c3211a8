"""Errors of phalanx that are errors of c10d too, so that `except` clauses of both kinds catch them."""

import functools

import torch.distributed as dist

from .. import errors

#: What programs of PyTorch have in the place of what other programs have.
_WORDS = {
    "(PHALANX_TIMEOUT_S, or with_timeout, sets another limit)": "(timeout= of init_process_group, new_group or the call sets another limit)",
    "(finalize or drop)": "(destroy_process_group, or its program ended)",
}

def of_c10d(error):
    """The same error as a `torch.distributed.DistBackendError` besides."""
    if isinstance(error, dist.DistBackendError):
        return error
    again = _class(type(error))(*map(_translated, error.args), **error.__dict__)
    return again.with_traceback(error.__traceback__)


def _translated(text):
    for ours, theirs in _WORDS.items():
        text = text.replace(ours, theirs)
    return text


class WorkTimeout(TimeoutError, dist.DistBackendError):
    """An operation is not over after the time for which `Work.wait` was to wait. It goes on."""


class AsC10d:
    """Where errors of phalanx become those of c10d too."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and issubclass(kind, errors.Error):
            raise of_c10d(error) from None


#: The one there need be.
as_c10d = AsC10d()


@functools.cache
def _class(kind):
    made = type(kind.__name__, (kind, dist.DistBackendError), {"__doc__": kind.__doc__, "__reduce__": _reduce})
    made.__module__ = errors.__name__
    return made


def _reduce(self):
    return _again, (type(self).__mro__[1], self.args, self.__dict__)


def _again(kind, args, fields):
    """An error that was pickled, as by a pool of processes."""
    return _class(kind)(*args, **fields)
