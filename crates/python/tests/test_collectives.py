"""Every collective, on every element type and operator, against sums done by hand; on every backend that one host has."""

import sys
import unittest

import job
import numpy as np

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
LENGTHS = [0, 1, 3, 257, 5000]
COMBINE = {
    "sum": lambda all: all.sum(0, all.dtype),
    "prod": lambda all: all.prod(0, all.dtype),
    "min": lambda all: all.min(0),
    "max": lambda all: all.max(0),
    "bit_and": np.bitwise_and.reduce,
    "bit_or": np.bitwise_or.reduce,
    "bit_xor": np.bitwise_xor.reduce,
}


def contribution(rank, length, kind):
    """What this rank gives: small numbers, so that sums and products are exact."""
    values = (np.arange(length) * 7 + rank * 3) % 4 + 1
    if np.issubdtype(kind, np.complexfloating):
        return (values + 2j * rank).astype(kind)
    return (values % 2 == 0) if kind is np.bool_ else values.astype(kind)


def contributions(group, length, kind):
    return np.stack([contribution(rank, length, kind) for rank in range(group.world_size)])


def equal(got, expected, what):
    assert got.dtype == expected.dtype and np.array_equal(got, expected), f"{what}: {got} is not {expected}"


def rank_reductions(group):
    rank, size = group.rank, group.world_size
    for kind in INTEGERS + FLOATS:
        operators = [op for op in COMBINE if kind in INTEGERS or not op.startswith("bit")]
        for op in operators:
            for length in LENGTHS:
                what = (kind, op, length)
                all = contributions(group, length, kind)
                expected = COMBINE[op](all)
                mine = all[rank].copy()
                group.all_reduce(mine, op)
                equal(mine, expected, ("all_reduce", *what))
                for root in {0, size - 1}:
                    mine = all[rank].copy()
                    group.reduce(mine, root, op)
                    rank != root or equal(mine, expected, ("reduce", *what))
                mine = all[rank].copy()
                group.scan(mine, op)
                equal(mine, COMBINE[op](all[: rank + 1]), ("scan", *what))
                whole, part = np.tile(all[rank], size), np.empty(length, kind)
                group.reduce_scatter(whole, part, op)
                equal(part, expected, ("reduce_scatter", *what))
                counts = [r + length % 3 for r in range(size)]
                blocks, part = contributions(group, sum(counts), kind), np.empty(counts[rank], kind)
                group.reduce_scatter_v(blocks[rank], part, counts, op)
                at = sum(counts[:rank])
                equal(part, COMBINE[op](blocks)[at : at + counts[rank]], ("reduce_scatter_v", *what))
    for kind in FLOATS + COMPLEX:
        mine, all = contribution(rank, 100, kind), contributions(group, 100, kind)
        group.all_reduce(mine, "avg")
        assert np.allclose(mine, all.mean(0), rtol=1e-3), (kind, mine, all.mean(0))
        mine = contribution(rank, 100, kind)
        group.all_reduce(mine)
        equal(mine, all.sum(0), ("all_reduce", kind))
    for op, combine in {"sum": np.any, "max": np.any, "prod": np.all, "min": np.all}.items():
        mine, all = contribution(rank, 100, np.bool_), contributions(group, 100, np.bool_)
        group.all_reduce(mine, op)
        equal(mine, combine(all, 0), ("all_reduce of truth values", op))
    mine = np.ones(5, np.float64)
    group.all_reduce(mine, job.phalanx.ReduceOp.pre_mul_sum(rank + 0.5))
    equal(mine, np.full(5, sum(r + 0.5 for r in range(size))), "pre_mul_sum")


def rank_movements(group):
    rank, size = group.rank, group.world_size
    for kind in INTEGERS + FLOATS + COMPLEX + [np.bool_]:
        for length in LENGTHS:
            what, all = (kind, length), contributions(group, length, kind)
            for root in {0, size - 1}:
                mine = all[rank].copy()
                group.broadcast(mine, root)
                equal(mine, all[root], ("broadcast", *what))
                gathered = np.empty((size, length), kind) if rank == root else None
                group.gather(all[rank], gathered, root)
                rank != root or equal(gathered, all, ("gather", *what))
                part = np.empty(length, kind)
                group.scatter(all if rank == root else None, part, root)
                equal(part, all[rank], ("scatter", *what))
            gathered = np.empty((size, length), kind)
            group.all_gather(all[rank], gathered)
            equal(gathered, all, ("all_gather", *what))
            if length:
                whole = np.zeros((size, length), kind)
                whole[rank] = all[rank]
                group.all_gather(whole[rank], whole)
                equal(whole, all, ("all_gather in place", *what))
            exchanged = np.empty((size, length), kind)
            group.all_to_all(np.stack([all[rank]] * size), exchanged)
            equal(exchanged, all, ("all_to_all", *what))

            counts = [(r + length) % 5 for r in range(size)]
            parts = [contribution(r, n, kind) for r, n in enumerate(counts)]
            joined = np.empty(sum(counts), kind)
            group.all_gather_v(parts[rank], joined, counts)
            equal(joined, np.concatenate(parts), ("all_gather_v", *what))
            joined = np.empty(sum(counts), kind) if rank == 0 else None
            group.gather_v(parts[rank], joined, counts, 0)
            rank != 0 or equal(joined, np.concatenate(parts), ("gather_v", *what))
            part = np.empty(counts[rank], kind)
            group.scatter_v(np.concatenate(parts) if rank == 0 else None, part, counts, 0)
            equal(part, parts[rank], ("scatter_v", *what))
            send, recv = [(rank + 2 * r) % 4 for r in range(size)], [(r + 2 * rank) % 4 for r in range(size)]
            outgoing, incoming = contribution(rank, sum(send), kind), np.empty(sum(recv), kind)
            group.all_to_all_v(outgoing, send, incoming, recv)
            pieces = []
            for r in range(size):
                theirs = [(r + 2 * other) % 4 for other in range(size)]
                at = sum(theirs[:rank])
                pieces.append(contribution(r, sum(theirs), kind)[at : at + theirs[rank]])
            equal(incoming, np.concatenate(pieces), ("all_to_all_v", *what))


def rank_in_place(group):
    rank, size = group.rank, group.world_size
    whole = contribution(rank, 4 * size, np.float32)
    own = whole[4 * rank : 4 * rank + 4]
    group.reduce_scatter(whole, own)
    equal(own, contributions(group, 4 * size, np.float32).sum(0)[4 * rank : 4 * rank + 4], "reduce_scatter in place")
    counts = [r + 1 for r in range(size)]
    for root in {0, size - 1}:
        whole = contribution(rank, 4 * size, np.float32)
        before, own = whole.copy(), whole[4 * rank : 4 * rank + 4]
        group.gather(own, whole if rank == root else None, root)
        gathered = [contribution(r, 4 * size, np.float32)[4 * r : 4 * r + 4] for r in range(size)]
        equal(whole, np.concatenate(gathered) if rank == root else before, "gather in place")
        group.scatter(whole if rank == root else None, own, root)
        equal(own, gathered[rank], "scatter in place")
        at, joined = sum(counts[:rank]), np.zeros(sum(counts), np.int64)
        own = joined[at : at + counts[rank]]
        own[:] = rank + 1
        group.gather_v(own, joined if rank == root else None, counts, root)
        expected = np.repeat(np.arange(size) + 1, counts)
        rank != root or equal(joined, expected, "gather_v in place")
        group.scatter_v(joined if rank == root else None, own, counts, root)
        assert (own == rank + 1).all(), "scatter_v in place"
    buffers = [np.full(n, rank, np.float64) for n in (1, 0, 7)]
    group.all_reduce_coalesced(buffers, "max")
    assert all((buffer == size - 1).all() for buffer in buffers)


def rank_groups(group):
    rank, size = group.rank, group.world_size
    assert group.members == list(range(size)) and group.local_world_size == size and group.local_rank == rank
    half = group.split(rank % 2, key=-rank)
    assert half.members == [r for r in reversed(range(size)) if r % 2 == rank % 2], half.members
    mine = np.array([rank])
    half.all_reduce(mine)
    assert mine[0] == sum(half.members)
    assert group.split(None if rank == 0 else 0) is None or rank > 0
    first = group.new_group([0]) if rank == 0 else None
    assert first is None or first.world_size == 1
    slow = group.with_timeout(1234)
    assert slow.timeout == 1234 and group.timeout == 60
    group.monitored_barrier(30)
    group.reproducible().all_reduce(mine)
    for root in range(size):
        assert group.broadcast_object({"from": rank}, root) == {"from": root}
    assert group.all_gather_object(rank) == list(range(size))
    assert group.gather_object(rank, 0) == (list(range(size)) if rank == 0 else None)
    assert group.scatter_object([f"for {r}" for r in range(size)] if rank == 0 else None, 0) == f"for {rank}"
    group.finalize()
    try:
        group.barrier()
        raise AssertionError("it was finalized")
    except ValueError as error:
        assert "finalized" in str(error)


class Collectives(unittest.TestCase):
    def test_reductions_are_those_done_by_hand(self):
        for ranks in (1, 2, 3, 4):
            job.passes(self, __file__, "reductions", ranks)

    def test_every_rank_gets_what_was_meant_for_it(self):
        for ranks in (1, 2, 3, 4):
            job.passes(self, __file__, "movements", ranks)

    def test_the_same_goes_over_tcp(self):
        for name in ("reductions", "movements"):
            job.passes(self, __file__, name, 3, PHALANX_BACKEND="tcp")

    def test_an_input_may_be_part_of_the_output_where_that_has_a_meaning(self):
        for ranks in (1, 2, 3):
            job.passes(self, __file__, "in_place", ranks)

    def test_groups_are_split_and_objects_travel(self):
        for ranks in (1, 2, 4):
            job.passes(self, __file__, "groups", ranks)


if __name__ == "__main__":
    job.main(globals()) if len(sys.argv) > 1 and f"rank_{sys.argv[1]}" in globals() else unittest.main()
