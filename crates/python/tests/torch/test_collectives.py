"""Every collective of c10d, on every type that has it, at two and three ranks: results are compared with what one process computes."""

import functools
import unittest
from datetime import timedelta

import launch
import torch
import torch.distributed as dist

R = dist.ReduceOp
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
EIGHTS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
MOVED = [*FLOATS, *INTS, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128, *EIGHTS]


def values(rank, dtype, shape=(2, 3), salt=0):
    """What this rank contributes: small whole numbers, which every type has."""
    n = torch.Size(shape).numel()
    numbers = (torch.arange(n) * 3 + rank * 5 + salt) % 7
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double() - rank).to(dtype).view(shape)
    return (numbers % 2 if dtype == torch.bool else numbers).to(dtype).view(shape)


def folded(op, of_all):
    """What a reduction comes to."""
    if of_all[0].is_complex():
        return torch.view_as_complex(folded(op, [torch.view_as_real(x) for x in of_all]))
    wide = [x.to(torch.float64) if x.is_floating_point() else x for x in of_all]
    both = {
        R.SUM: torch.add,
        R.AVG: torch.add,
        R.PRODUCT: torch.mul,
        R.MIN: torch.minimum,
        R.MAX: torch.maximum,
        R.BAND: torch.bitwise_and,
        R.BOR: torch.bitwise_or,
        R.BXOR: torch.bitwise_xor,
    }[op]
    if wide[0].dtype == torch.bool and op in (R.SUM, R.PRODUCT):
        both = {R.SUM: torch.logical_or, R.PRODUCT: torch.logical_and}[op]
    result = functools.reduce(both, wide)
    if op == R.AVG:
        result = result / len(of_all) if result.is_floating_point() else result.div(len(of_all), rounding_mode="trunc")
    return result.to(of_all[0].dtype)


def same(got, wanted, *what):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (got, wanted, what)
    as_bytes = got.dtype in EIGHTS
    alike = torch.equal(got.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)) if as_bytes else torch.equal(got, wanted)
    assert alike, (got, wanted, what)


def layouts(x):
    """The same values as they may lie in memory."""
    yield x.clone()
    yield x.t().contiguous().t()
    yield torch.stack([x, x], -1)[..., 0]


def refused(kind, words, function, *args, **named):
    try:
        function(*args, **named)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words}: nothing was refused")


def reductions(rank, size):
    every = [R.SUM, R.AVG, R.PRODUCT, R.MIN, R.MAX]
    bits = [R.BAND, R.BOR, R.BXOR]
    ops = {
        **dict.fromkeys(FLOATS, every),
        **dict.fromkeys(INTS, [*every, *bits]),
        torch.bool: [R.SUM, R.PRODUCT, R.MIN, R.MAX, *bits],
        torch.complex64: [R.SUM, R.AVG],
        torch.complex128: [R.SUM, R.AVG],
    }
    for dtype, known in ops.items():
        of_all = [values(r, dtype) for r in range(size)]
        for op in known:
            wanted = folded(op, of_all)
            for x in layouts(of_all[rank]):
                dist.all_reduce(x, op)
                same(x, wanted, "all_reduce", op, dtype)
            x = of_all[rank].clone()
            work = dist.all_reduce(x, op, async_op=True)
            same(work.get_future().wait()[0], wanted if not dtype.is_complex else torch.view_as_real(wanted), "asynchronous", op, dtype)
            assert work.is_completed() and work.is_success() and work.exception() is None
            for root in range(size):
                x = of_all[rank].clone()
                dist.reduce(x, root, op)
                same(x, wanted if rank == root else of_all[rank], "reduce", op, dtype)
            if dtype.is_complex:
                continue  # c10d itself lacks lists of them
            blocks = [[values(r, dtype, salt=to) for to in range(size)] for r in range(size)]
            wanted = folded(op, [blocks[r][rank] for r in range(size)])
            for y in layouts(torch.zeros(2, 3, dtype=dtype)):
                dist.reduce_scatter(y, blocks[rank], op)
                same(y, wanted, "reduce_scatter", op, dtype)
                y.zero_()
                dist.reduce_scatter_tensor(y, torch.stack(blocks[rank]), op)
                same(y, wanted, "reduce_scatter_tensor", op, dtype)
    x = torch.full((3,), 2.0)
    dist.all_reduce(x, dist._make_nccl_premul_sum(float(rank + 1)) if hasattr(dist, "_make_nccl_premul_sum") else R.PREMUL_SUM(float(rank + 1)))
    same(x, torch.full((3,), 2.0 * sum(range(1, size + 1))), "premul_sum")
    uneven = [torch.full((r + 1, 2), float(rank + r)) for r in range(size)]
    y = torch.empty(rank + 1, 2)
    dist.reduce_scatter(y, uneven)
    same(y, torch.full((rank + 1, 2), float(sum(r + rank for r in range(size)))), "uneven reduce_scatter")


def copies(rank, size):
    for dtype in MOVED:
        of_all = [values(r, dtype) for r in range(size)]
        for root in range(size):
            for x in layouts(of_all[rank]):
                dist.broadcast(x, root)
                same(x, of_all[root], "broadcast", dtype)
        mine = of_all[rank]
        zero = torch.zeros(2, 3, dtype=torch.uint8).to(dtype)
        for x in layouts(mine):
            got = [next(layouts(zero)) for _ in range(size)]
            dist.all_gather(got, x)
            [same(a, b, "all_gather", dtype) for a, b in zip(got, of_all)]
            whole = torch.stack([zero] * size)
            dist.all_gather_into_tensor(whole, x)
            same(whole, torch.stack(of_all), "all_gather_into_tensor", dtype)
            got = [zero.clone() for _ in range(size)] if rank == 0 else None
            dist.gather(x, got)
            [same(a, b, "gather", dtype) for a, b in zip(got or [], of_all)]
            dist.scatter(y := zero.clone(), of_all if rank == size - 1 else None, size - 1)
            same(y, of_all[rank], "scatter", dtype)
        parts = [values(rank, dtype, (rank + to, 2)) for to in range(size)]
        got = [torch.zeros(r + rank, 2, dtype=torch.uint8).to(dtype) for r in range(size)]
        dist.all_to_all(got, parts)
        [same(a, values(r, dtype, (r + rank, 2)), "all_to_all", dtype) for r, a in enumerate(got)]
        counts = [rank + to for to in range(size)]
        flat = torch.cat([part.view(torch.uint8) if dtype in EIGHTS else part for part in parts]).view(dtype)
        y = torch.zeros(sum(counts), 2, dtype=torch.uint8).to(dtype)
        dist.all_to_all_single(y, flat, counts, counts)
        same(y, torch.cat([g.view(torch.uint8) if dtype in EIGHTS else g for g in got]).view(dtype), "all_to_all_single", dtype)
        even = torch.stack([mine] * size)
        dist.all_to_all_single(y := torch.empty_like(even), even)
        same(y, torch.stack(of_all), "all_to_all_single evenly", dtype)
        for x in layouts(mine):
            if rank == 0:
                dist.recv(y := zero.clone(), 1)
                same(y, of_all[1], "recv", dtype)
            elif rank == 1:
                dist.send(x, 0)


def sparse(rank, size):
    """Rank r has entries at r and r + 1 along each sparse dimension, and one of them twice."""

    def entries(r, dims, dense, dtype, shape):
        places = torch.tensor([[r, r + 1, r]] * dims)
        return torch.sparse_coo_tensor(places, values(r, dtype, (3, *dense)), shape)

    for dtype in (*FLOATS, *INTS, torch.complex64):
        for dims, dense in ((1, ()), (2, ()), (1, (2, 3))):
            shape = (size + 1,) * dims + dense
            of_all = [entries(r, dims, dense, dtype, shape) for r in range(size)]
            # Dense sums of whole numbers, which do not round.
            wanted = sum(x.to_dense() for x in of_all)
            x = entries(rank, dims, dense, dtype, shape)
            dist.all_reduce(x)
            same(x.to_dense(), wanted, "sparse", dims, dense)
            assert x.is_coalesced() and x._nnz() == size + 1
            x = entries(rank, dims, dense, dtype, shape)
            work = dist.all_reduce(x, async_op=True)
            after = dist.all_reduce(y := torch.ones(2), async_op=True)
            work.get_future().wait() if dtype == torch.float32 else work.wait()
            same(x.to_dense(), wanted, "sparse, asynchronous", dims, dense)
            after.wait()
            same(y, torch.full((2,), float(size)), "after it")
    # Sums of short floats are rounded once: step by step, each 1 would be lost.
    x = torch.sparse_coo_tensor([[0]], [256.0 if rank == 0 else 1.0 / (size - 1) * 2], (1,), dtype=torch.bfloat16)
    dist.all_reduce(x)
    same(x.to_dense(), torch.tensor([258.0], dtype=torch.bfloat16), "rounded once")
    # Some ranks, or all, may have nothing.
    for filled in (1, 0):
        x = torch.sparse_coo_tensor(torch.zeros(1, filled if rank == 0 else 0).long(), torch.ones(filled if rank == 0 else 0), (4,))
        dist.all_reduce(x)
        same(x.to_dense(), torch.tensor([float(filled), 0, 0, 0]), "empty")
    # Ranks that disagree hear of it, all of them, and go on.
    refused(ValueError, "rank 1 has a sparse tensor of shape [4] with 1", dist.all_reduce, torch.zeros(3 + min(rank, 1)).to_sparse())
    refused(ValueError, "added up (SUM)", dist.all_reduce, torch.eye(3).to_sparse(), R.MAX)


def coalesced(rank, size):
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 0, 5, 70000)]
    sums = [torch.full_like(x, float(sum(r + x.numel() for r in range(size)))) for x in tensors]
    with dist._coalescing_manager(async_ops=True) as manager:
        [dist.all_reduce(x) for x in tensors]
    manager.wait()
    [same(*pair) for pair in zip(tensors, sums)]
    again = [torch.full((n,), float(rank)) for n in (3, 4)]
    dist.all_reduce_coalesced(again, R.MAX)
    [same(x, torch.full_like(x, float(size - 1))) for x in again]
    outputs = [torch.empty(size * n) for n in (2, 3)]
    inputs = [torch.full((n,), float(rank)) for n in (2, 3)]
    with dist._coalescing_manager():
        [dist.all_gather_into_tensor(*pair) for pair in zip(outputs, inputs)]
    [same(y, torch.arange(size).float().repeat_interleave(y.numel() // size)) for y in outputs]
    with dist._coalescing_manager():
        [dist.reduce_scatter_tensor(x, y) for x, y in zip(inputs, outputs)]
    [same(x, torch.full_like(x, float(rank * size))) for x in inputs]
    lists = [[torch.empty(1), torch.empty(2, 2)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((1,), float(rank)), torch.full((2, 2), rank + 0.5)])
    assert [parts[1][0, 0].item() for parts in lists] == [r + 0.5 for r in range(size)]


def messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for n in (0, 1, 1_000_000):
        x, y = torch.full((n,), float(rank)), torch.empty(n)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]):
            work.wait()
        same(y, torch.full((n,), float(left)))
    work = dist.irecv(y := torch.zeros(3, 2).t(), left)
    assert not work.is_completed() or rank != 0
    dist.barrier() if rank == 0 else None
    dist.barrier() if rank != 0 else None
    sent = dist.isend(torch.full((2, 3), float(rank)), right)
    work.wait(), sent.wait()
    assert work.is_completed() and sent.is_completed() and y[1, 2] == left
    if rank == 0:
        senders = {dist.recv(x := torch.zeros(1), tag=5): x.item() for _ in range(size - 1)}
        assert senders == {r: r * 10.0 for r in range(1, size)}, senders
        work = dist.irecv(x, tag=6)
        work.wait()
        assert work.source_rank() == 1 == work._source_rank()
    else:
        dist.send(torch.tensor([rank * 10.0]), 0, tag=5)
        if rank == 1:
            dist.send(torch.zeros(1), 0, tag=6)


def objects(rank, size):
    dist.all_gather_object(got := [None] * size, {"rank": rank, "much": "x" * rank * 1000})
    assert [len(o["much"]) for o in got] == [r * 1000 for r in range(size)]
    dist.broadcast_object_list(got := [rank, "a"] if rank == 0 else [None, None], 0)
    assert got == [0, "a"]
    dist.gather_object(rank, got := [None] * size if rank == 1 else None, 1)
    assert got in (None, list(range(size)))
    dist.scatter_object_list(got := [None], [r * 2 for r in range(size)] if rank == 0 else None, 0)
    assert got == [rank * 2]
    if rank < 2:
        got = [rank, {"r": rank}]
        dist.send_object_list(got, 1) if rank == 0 else dist.recv_object_list(got, 0)
        assert got == [0, {"r": 0}]


def barriers(rank, size):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)


def empty(rank, size):
    dist.all_reduce(x := torch.empty(0, 4))
    assert x.shape == (0, 4)
    dist.all_gather([torch.empty(0) for _ in range(size)], torch.empty(0))
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    dist.broadcast(torch.empty(0), 0)


def one_memory(rank, size):
    """Tensors that are parts of one, which needs no copy, and inputs that are parts of outputs."""
    whole = torch.zeros(size * 4)
    parts = list(whole.chunk(size))
    parts[rank].fill_(rank + 1)
    dist.all_gather(parts, parts[rank])
    same(whole, torch.arange(1, size + 1).float().repeat_interleave(4))
    whole.zero_()
    dist.gather(parts[0].fill_(rank + 1.0), parts if rank == 0 else None)
    if rank == 0:
        same(whole, torch.arange(1, size + 1).float().repeat_interleave(4))
    dist.scatter(parts[0], [torch.full((4,), float(r)) for r in range(size)] if rank == 0 else None)
    same(parts[0], torch.full((4,), float(rank)))
    weight = torch.nn.Parameter(torch.full((3, 2), float(rank)).t())
    dist.broadcast(weight, size - 1)
    same(weight.detach(), torch.full((2, 3), float(size - 1)))


def mistakes(rank, size):
    """Nothing is sent, and the group goes on."""
    x = torch.ones(3)
    refused(ValueError, "can be moved, and not reduced", dist.all_reduce, x.to(torch.float8_e5m2))
    refused(ValueError, "no meaning", dist.all_reduce, x.bool(), R.AVG)
    refused(ValueError, "no equal parts", dist.all_to_all_single, torch.empty(size + 1), torch.empty(size + 1))
    refused(ValueError, "must add up", dist.all_to_all_single, torch.empty(size), torch.empty(size), [5] * size, [1] * size)
    refused((ValueError, RuntimeError), "", dist.all_gather_into_tensor, torch.empty(size * 3 + 1), x)
    refused((ValueError, RuntimeError), "", dist.all_reduce, x, R.BAND)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    refused(ValueError, "on meta", backend.allreduce, [torch.ones(3, device="meta")], dist.AllreduceOptions())
    dist.all_reduce(x)
    assert x[0] == size


def callbacks(rank, size):
    """A callback may wait for an operation, as PowerSGD's do."""

    def then(future):
        dist.all_reduce(y := future.value()[0].clone(), async_op=True).get_future().wait()
        return y

    for _ in range(20):
        future = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(then).then(lambda future: then(dist_future([future.value()])))
        assert future.wait()[0].item() == size**3


def dist_future(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future


def profile(rank, size):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(1))
        dist.all_gather_into_tensor(torch.ones(size), torch.ones(1))
    names = {event.name for event in profiler.events()}
    assert {"phalanx:all_reduce", "phalanx:_all_gather_base"} <= names, names


def rank_all():
    rank, size = launch.join()
    for case in (reductions, copies, sparse, coalesced, messages, objects, barriers, empty, one_memory, mistakes, callbacks, profile):
        case(rank, size)
        dist.barrier()
        if rank == 0:
            print("DONE", case.__name__, flush=True)
    dist.destroy_process_group()


class Collectives(unittest.TestCase):
    def passes(self, ranks, **env):
        output = launch.passes(self, __file__, "all", ranks, **env)
        self.assertEqual(output.count("DONE"), 12, output)

    def test_two_ranks(self):
        self.passes(2)

    def test_three_ranks(self):
        self.passes(3)

    def test_over_tcp(self):
        self.passes(3, PHALANX_BACKEND="tcp")


if __name__ == "__main__":
    launch.main(globals())
