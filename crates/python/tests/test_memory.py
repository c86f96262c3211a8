"""Nothing is copied, and nothing is left behind."""

import gc
import resource
import sys
import unittest

import job
import numpy as np

GIB = 1 << 30


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def rank_large(group):
    before = peak()
    values = np.ones(GIB // 4, np.float32)
    group.all_reduce(values)
    assert (values[:: 1 << 20] == group.world_size).all()
    grown = peak() - before
    assert 0.9 * GIB <= grown <= 1.05 * GIB, f"{grown / GIB:.3f} GiB for an array of one"


def rank_many(group):
    values = np.ones(10_000)

    def rounds(n):
        for _ in range(n):
            group.all_reduce(values, "max")
            group.all_reduce(values, "max", async_op=True)
            group.barrier(async_op=True).add_done_callback(lambda _: None)
            group.all_gather_object(1)
        group.barrier()
        gc.collect()

    rounds(2000)
    references, before = sys.getrefcount(values), resident()
    rounds(10_000)
    grown = resident() - before
    assert grown < 8 << 20, f"{grown} bytes more after 40,000 operations"
    assert sys.getrefcount(values) <= references + 1


class Memory(unittest.TestCase):
    def test_an_array_of_a_gibibyte_is_reduced_where_it_lies(self):
        job.passes(self, __file__, "large", 2)

    def test_operations_leave_nothing_behind(self):
        job.passes(self, __file__, "many", 2)


if __name__ == "__main__":
    job.main(globals()) if len(sys.argv) > 1 and f"rank_{sys.argv[1]}" in globals() else unittest.main()
