"""How a rank leaves: in good order at the end of the program, and with its reason when an exception ends it."""

import atexit
import functools
import sys
import traceback
import weakref

from . import _phalanx
from .errors import Error

#: Groups of whole jobs that this process is in.
_jobs = weakref.WeakSet()


@functools.wraps(_phalanx.init)
def init():
    return joined(_phalanx.init())


@functools.wraps(_phalanx.join)
def join(variables, share=None, channel="a channel of the program's own"):
    return joined(_phalanx.join(variables, share, channel))


def joined(group):
    _listen()
    _jobs.add(group)
    return group


@functools.cache
def _listen():
    atexit.register(_leave)
    previous = sys.excepthook

    def ends(kind, error, trace):
        _abort(error, trace)
        previous(kind, error, trace)

    sys.excepthook = ends


def _abort(error, trace):
    """Tells the others why this process ends. What another rank is to blame for, they know."""
    if isinstance(error, Error) and not error.group_is_usable:
        return
    words = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(trace)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    for group in list(_jobs):
        try:
            group.abort(f"{words}{place}")
        except Exception:  # It was given up before.
            pass


def _leave():
    for group in list(_jobs):
        group.close()
    _phalanx._close()
