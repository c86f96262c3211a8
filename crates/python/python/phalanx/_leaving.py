"""How a rank leaves: in good order at the end of the program, and with its reason when an exception ends it."""

import atexit
import functools
import sys
import sysconfig
import traceback
import weakref

from . import _phalanx
from .errors import Error, MisuseError

#: Where no file is the program's own.
_LIBRARIES = tuple({"<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))})

#: Groups of whole jobs that this process is in.
_jobs = weakref.WeakSet()
#: That of the job that the environment describes, and where it was joined.
_of_environment = (lambda: None), ""


@functools.wraps(_phalanx.init)
def init():
    return _joined(_phalanx.init)


@functools.wraps(_phalanx.join)
def join(variables, share=None, channel="a channel of the program's own"):
    if share is None:
        return _joined(lambda: _phalanx.join(variables))
    return _kept(_phalanx.join(variables, share, channel))


def is_in_job_of_environment():
    """Whether this process has a group of the job that the environment describes. It can have one at a time."""
    group = _of_environment[0]()
    return group is not None and group._is_usable() and group.world_size > 1


def _joined(enter):
    global _of_environment
    here = _phalanx._caller()
    if is_in_job_of_environment():
        # Without this the other ranks would take the second for a rank that was started twice, if they are not in the same place.
        raise MisuseError(f"init, at {here}: this process has joined the job already, at {_of_environment[1]}: use that group, or `finalize` it on all ranks before")
    group = _kept(enter())
    _of_environment = weakref.ref(group), here
    return group


def _kept(group):
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
    words = f"{type(error).__name__}: {error}".strip().splitlines()[0].removesuffix(":")
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    for group in list(_jobs):
        try:
            group.abort(f"{words}{place}")
        except Exception:  # It was given up before.
            pass


def _leave():
    for group in list(_jobs):
        group.close()
    _phalanx._close()
