"""What can be a buffer, and what is refused in words before anything is sent."""

import array
import sys
import unittest

import job
import numpy as np
import phalanx


class Lent:
    """A tensor of another library, which has DLPack and nothing else."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **_):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class OnDevice(Lent):
    def __dlpack_device__(self):
        return (2, 0)


def rank_kinds(group):
    size = group.world_size
    for buffer in (array.array("d", [1.0, 2.0]), memoryview(bytearray(8)).cast("f"), bytearray(b"\1\2")):
        group.all_reduce(buffer)
    numbers = array.array("i", [1, -2])
    group.all_reduce(numbers)
    assert list(numbers) == [size, -2 * size]
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    group.all_reduce(Lent(values))
    assert (values == size * np.arange(6).reshape(2, 3)).all()
    work = group.all_reduce(Lent(values), async_op=True)
    work.wait()
    memory = phalanx.Memory(values.ctypes.data, 6, "f32", values)
    group.all_reduce(memory)
    assert (values == size**3 * np.arange(6).reshape(2, 3)).all() and repr(memory).endswith('6, "f32")')
    assert phalanx.Memory(0, 0, "bytes", None)


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), f"{error} does not say {words!r}"
    else:
        raise AssertionError(f"nothing was said of {words!r}")


def rank_refusals(group):
    ones, size = np.ones(4, np.float32), group.world_size
    constant = np.ones(4, np.float32)
    constant.flags.writeable = False
    refused(TypeError, "a list is no buffer", lambda: group.all_reduce([1.0]))
    refused(TypeError, "a NoneType is no buffer", lambda: group.all_reduce(None))
    refused(ValueError, "not contiguous", lambda: group.all_reduce(np.ones((4, 4))[:, 0]))
    refused(ValueError, "the buffer is read-only", lambda: group.all_reduce(constant))
    refused(ValueError, "the output is read-only", lambda: group.all_gather(ones[:1], constant))
    refused(TypeError, "elements of format", lambda: group.all_reduce(np.ones(3, np.dtype(">f4"))))
    refused(TypeError, "elements of format", lambda: group.all_reduce(np.array(["a"])))
    refused(ValueError, "not in the host's memory", lambda: group.all_reduce(OnDevice(ones)))
    refused(ValueError, "not contiguous", lambda: group.all_reduce(Lent(np.ones((4, 4))[:, 0])))
    refused(ValueError, 'there is no operator "mean"', lambda: group.all_reduce(ones, "mean"))
    refused(TypeError, "a int is no operator", lambda: group.all_reduce(ones, 3))
    refused(ValueError, "bit_and is for integers, not for f32", lambda: group.all_reduce(ones, "bit_and"))
    refused(ValueError, "avg of truth values", lambda: group.all_reduce(np.ones(1, bool), "avg"))
    refused(ValueError, "max of complex numbers", lambda: group.all_reduce(np.ones(1, complex), "max"))
    refused(ValueError, "the input has elements of f32, the output of f64", lambda: group.all_gather(ones, np.ones(4 * size)))
    refused(ValueError, "input and output overlap", lambda: group.all_to_all(ones, ones))
    refused(ValueError, f"output has 3 elements, expected {4 * size}", lambda: group.all_gather(ones, np.ones(3, np.float32)))
    refused(ValueError, f"1 counts for {size} ranks", lambda: group.all_gather_v(ones, np.ones(4, np.float32), [4]))
    refused(ValueError, "does not fit", lambda: group.all_gather_v(ones, np.ones(4, np.float32), [2**63] * size))
    refused(ValueError, "no time in seconds", lambda: group.with_timeout(-1))
    refused(ValueError, "out of range", lambda: group.send(ones, 99))
    refused(ValueError, "this rank", lambda: group.send(ones, group.rank))
    refused(OverflowError, "", lambda: group.broadcast(ones, -1))
    refused(ValueError, "there is no element type", lambda: phalanx.Memory(ones.ctypes.data, 4, "f31", ones))
    refused(ValueError, "there can be no", lambda: phalanx.Memory(ones.ctypes.data, 2**62, "f32", ones))
    refused(ValueError, "no multiple of 4", lambda: group.all_reduce(phalanx.Memory(ones.ctypes.data + 1, 3, "f32", ones)))
    refused(ValueError, "moved only", lambda: group.all_reduce(phalanx.Memory(ones.ctypes.data, 16, "bytes", ones)))
    refused(TypeError, "rank 0", lambda: raised_by_pickle(group))
    # And the group goes on.
    group.all_reduce(ones)
    assert (ones == size).all()


def raised_by_pickle(group):
    try:
        group.broadcast_object(lambda: None, group.rank)
    except Exception as error:
        raise TypeError("rank 0 has no object that can be pickled") from error


class Buffers(unittest.TestCase):
    def test_whatever_has_a_buffer_or_dlpack_is_one(self):
        job.passes(self, __file__, "kinds", 2)

    def test_what_makes_no_sense_is_refused_and_the_group_goes_on(self):
        for ranks in (2, 3):
            job.passes(self, __file__, "refusals", ranks)


if __name__ == "__main__":
    job.main(globals()) if len(sys.argv) > 1 and f"rank_{sys.argv[1]}" in globals() else unittest.main()
