"""Operations in flight, and messages."""

import asyncio
import gc
import sys
import threading
import unittest

import job
import numpy as np
import phalanx


def rank_in_flight(group):
    rank, size = group.rank, group.world_size
    arrays = [np.full(1000, rank + n, np.float64) for n in range(20)]
    works = [group.all_reduce(array, async_op=True) for array in arrays]
    for n, (work, array) in reversed(list(enumerate(zip(works, arrays)))):
        assert work.wait() is None and work.is_done() and work.exception() is None
        assert (array == sum(r + n for r in range(size))).all()
    assert repr(works[0]) == "<Work: done>"

    # A Work that nobody keeps is performed all the same, and its memory stays until then.
    for _ in range(100):
        group.all_reduce(np.ones(10_000), async_op=True)
    gc.collect()
    group.barrier()

    outputs = [np.empty((size, 3)) for _ in range(2)]
    works = [group.all_gather(np.full(3, float(rank + n)), output, async_op=True) for n, output in enumerate(outputs)]
    [work.wait(60) for work in works]
    assert all((output[r] == r + n).all() for n, output in enumerate(outputs) for r in range(size))
    group.barrier(async_op=True).wait()


def rank_awaited(group):
    async def one(n):
        array = np.array([float(n)])
        await group.all_reduce(array, async_op=True)
        return array[0]

    async def main():
        # Begun in one order on all ranks, whatever the loop does with them afterwards.
        return await asyncio.gather(*[one(n) for n in range(10)])

    assert asyncio.run(main()) == [n * group.world_size for n in range(10)]


def rank_told(group):
    told, all_told = [], threading.Event()

    def tell(work):
        told.append(work.exception())
        if len(told) == 3:
            all_told.set()

    for _ in range(2):
        group.all_reduce(np.ones(100), async_op=True).add_done_callback(tell)
    done = group.barrier(async_op=True)
    done.wait()
    done.add_done_callback(tell)
    assert all_told.wait(60) and told == [None] * 3

    # A callback that raises harms nobody.
    group.barrier(async_op=True).add_done_callback(lambda work: 1 / 0)
    group.barrier()


def rank_messages(group):
    rank, size = group.rank, group.world_size
    left, right = (rank - 1) % size, (rank + 1) % size
    incoming = np.empty(70_000)
    works = [group.send(np.full(70_000, float(rank)), right, async_op=True), group.recv(incoming, left, async_op=True)]
    [work.wait() for work in works]
    assert (incoming == left).all()
    if rank == 0:
        seen = np.empty(1, np.int64)
        assert sorted(group.recv_any(seen, 5) for _ in range(size - 1)) == list(range(1, size))
        assert {group.recv_any(seen, 6, async_op=True).wait() for _ in range(size - 1)} == set(range(1, size))
    else:
        group.send(np.array([rank]), 0, 5)
        group.send(np.array([rank]), 0, 6)
    try:
        group.recv(incoming, left, 77, timeout=0.01)
        raise AssertionError("there is no such message")
    except phalanx.NoMessageError as error:
        assert error.peers == [left] and error.group_is_usable
    if rank == 0:
        group.send_object({"a": [1, 2]}, 1)
    elif rank == 1:
        assert group.recv_object(0) == {"a": [1, 2]}
    group.barrier()


def rank_slow(group):
    if group.rank == 0:
        work = group.barrier(async_op=True)
        assert not work.is_done() and repr(work) == "<Work: in flight>"
        try:
            work.wait(0.05)
            raise AssertionError("the other rank has not come")
        except TimeoutError as error:
            assert not isinstance(error, phalanx.Error)
        group.send(np.zeros(1), 1)
        work.wait()
    else:
        group.recv(np.zeros(1), 0)
        group.barrier()


class Works(unittest.TestCase):
    def test_many_are_in_flight_and_waited_for_in_any_order(self):
        for env in ({}, {"PHALANX_BACKEND": "tcp"}):
            job.passes(self, __file__, "in_flight", 3, **env)

    def test_they_are_awaited(self):
        job.passes(self, __file__, "awaited", 2)

    def test_callbacks_are_called_once_each_is_over(self):
        job.passes(self, __file__, "told", 2)

    def test_messages_go_to_one_rank_and_come_from_any(self):
        for ranks in (2, 3):
            job.passes(self, __file__, "messages", ranks)

    def test_a_wait_with_a_limit_leaves_the_operation_running(self):
        job.passes(self, __file__, "slow", 2)


if __name__ == "__main__":
    job.main(globals()) if len(sys.argv) > 1 and f"rank_{sys.argv[1]}" in globals() else unittest.main()
