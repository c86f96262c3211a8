"""Operations in flight, as works of c10d."""

import threading

import torch
import torch.distributed as dist

from .. import errors
from .errors import WorkTimeout, of_c10d


class Work(dist.Work):
    """An operation of phalanx in flight. Where results do not lie in the caller's tensors yet, `then` copies them there when it is over."""

    def __init__(self, works, tensors, then=None):
        super().__init__()
        self._works = works
        self._tensors = tensors
        self._then = then
        self._lock = threading.Lock()
        self._future = None
        if then is not None:
            self._call_when_over(lambda: None)

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout else None
        try:
            for work in self._works:
                work.wait(seconds)
        except errors.Error as error:
            raise of_c10d(error) from None
        except TimeoutError as error:
            raise WorkTimeout(str(error)) from None
        self._settle()
        return True

    def get_future(self):
        """A future whose value are the tensors, or whose error is a RuntimeError with the words of phalanx's."""
        if getattr(_asks, "asks", False):
            _asks.asked = self
            return _NO_FUTURE
        with self._lock:
            if self._future is not None:
                return self._future
            is_over = torch.futures.Future()
            # Only a function that raises makes a future of C++ one with an error.
            self._future = is_over.then(self._outcome)
        self._call_when_over(lambda: is_over.set_result(None))
        return self._future

    def is_completed(self):
        return all(work.is_done() for work in self._works)

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        """The error of an operation that is over, if it has one."""
        if self.is_completed():
            failed = (work.exception() for work in self._works)
            return next((of_c10d(error) for error in failed if error is not None), None)

    def result(self):
        self.wait()
        return self._tensors

    def source_rank(self):
        """The rank that sent what `recv` from any rank has received."""
        self.wait()
        return self._works[0].wait()

    def _outcome(self, _):
        self.wait()
        return self._tensors

    def _settle(self):
        with self._lock:
            then, self._then = self._then, None
            if then is not None:
                then()

    def _call_when_over(self, function):
        """Calls it once all works are over and results are in their places, on a thread of phalanx's or on this one."""
        left = len(self._works)
        count = threading.Lock()

        def one_is_over(_):
            nonlocal left
            with count:
                left -= 1
                if left > 0:
                    return
            if self.exception() is None:
                self._settle()
            function()

        for work in self._works:
            work.add_done_callback(one_is_over)


class Done(dist.Work):
    """A receive that is over. `source`: the rank whose message came, where any might."""

    def __init__(self, tensors, source=None):
        super().__init__()
        self._tensors = tensors
        self._source = source

    def wait(self, timeout=None):
        return True

    def get_future(self):
        if getattr(_asks, "asks", False):
            _asks.asked = self
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def is_completed(self):
        return True

    is_success = is_completed

    def exception(self):
        return None

    def result(self):
        return self._tensors

    def source_rank(self):
        return self._source


#: What torch is given of a work that it is asked for only to find the work.
_NO_FUTURE = torch.futures.Future()
_asks = threading.local()
_UNKNOWN = dist.Work()._get_op_type() if hasattr(dist.Work, "_get_op_type") else None


def _work_of(handle):
    """The work of ours that a handle of PyTorch's holds."""
    if isinstance(handle, (Work, Done)):
        return handle
    if handle._get_op_type() != _UNKNOWN:
        return None
    _asks.asks, _asks.asked = True, None
    try:
        handle.get_future()
        return _asks.asked
    except RuntimeError:
        return None
    finally:
        # A thread that ends must not be the last to have a future: PyTorch would crash.
        _asks.asks, _asks.asked = False, None


def _forward(name, to):
    """Lets a method of handles ask the work of ours that it holds: PyTorch 2.15 hands on `wait` and `get_future` only, so `is_completed` was never true."""
    original = getattr(dist.Work, name)

    def method(self):
        ours = _work_of(self)
        return original(self) if ours is None else getattr(ours, to)()

    method.__name__, method.__doc__ = name, original.__doc__
    setattr(dist.Work, name, method)


for _name in ("is_completed", "is_success", "exception", "source_rank", "_source_rank", "result"):
    _forward(_name, _name.removeprefix("_"))
