"""A rank of `scripts/beside-gloo`: times operations and training steps over phalanx and over Gloo, in one job, in turns."""

import csv
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import phalanx.torch  # noqa: F401 it registers the backend

BACKENDS = ("phalanx", "gloo")
SIZES = [4, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20]
#: So long a round of one backend lasts, in seconds, and so many there are.
ROUND, ROUNDS = 0.15, 5
#: Rounds in which at most so many operations are timed.
REPEATS = 200


def operations(size, group):
    """Each operation on `size` bytes of this rank, as a function that performs it once and waits."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    n = size // 4
    part = max(n // ranks, 1)
    x, whole, mine = torch.ones(n), torch.ones(part * ranks), torch.ones(part)
    other = torch.empty_like(whole)

    def message():
        if rank < 2:
            dist.send(x, 1 - rank, group=group) if rank == 0 else dist.recv(x, 0, group=group)
            dist.recv(x, 1, group=group) if rank == 0 else dist.send(x, 0, group=group)

    def exchange():
        works = [dist.isend(x, 1 - rank, group=group), dist.irecv(other[:n], 1 - rank, group=group)]
        for work in works:
            work.wait()

    yield "all_reduce", lambda: dist.all_reduce(x, group=group)
    yield "all_gather", lambda: dist.all_gather_into_tensor(whole, mine, group=group)
    yield "reduce_scatter", lambda: dist.reduce_scatter_tensor(mine, whole, group=group)
    yield "broadcast", lambda: dist.broadcast(x, 0, group=group)
    yield "all_to_all", lambda: dist.all_to_all_single(other, whole, group=group)
    if ranks == 2:
        yield "send and back", message
        yield "isend and irecv", exchange


def models():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    cnn = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(1600, 256), nn.ReLU(), nn.Linear(256, 10)),
    )
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    transformer = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Flatten(), nn.Linear(128 * 32, 10))
    yield "MLP", mlp, torch.randn(32, 784)
    yield "CNN", cnn, torch.randn(16, 1, 28, 28)
    yield "transformer", transformer, torch.randn(4, 32, 128)


def steps(group):
    for name, model, x in models():
        ddp = nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.001)

        def step(ddp=ddp, optimizer=optimizer, x=x):
            optimizer.zero_grad()
            ddp(x).square().mean().backward()
            optimizer.step()

        yield f"DDP step of a {name} of {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M", step


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def once(function):
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def compare(functions):
    """The median time of each backend's function, in seconds, over rounds in turns. All ranks do as many."""
    counts = {}
    for name, function in functions.items():
        function()
        longest = torch.tensor([min(once(function) for _ in range(3))])
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        counts[name] = max(2, min(REPEATS, int(ROUND / longest.item())))
    times = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            dist.barrier()
            times[name] += [once(function) for _ in range(counts[name])]
    # The slowest rank's, as all wait for it.
    medians = torch.tensor([median(times[name]) for name in functions])
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    return dict(zip(functions, medians.tolist()))


def words(seconds):
    micros = seconds * 1e6
    return f"{micros:.1f} µs" if micros < 100 else f"{micros:,.0f} µs" if micros < 1e5 else f"{micros / 1000:,.0f} ms"


def main(path):
    dist.init_process_group("phalanx")
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    rows = []

    def row(name, size, functions):
        times = compare(functions)
        rows.append([name, size, ranks, *(f"{times[backend] * 1e6:.2f}" for backend in BACKENDS)])
        if rank == 0:
            at = f"{size:,} B" if size else ""
            print(f"| {name} | {at} | {words(times['phalanx'])} | {words(times['gloo'])} | {times['gloo'] / times['phalanx']:.1f} |", flush=True)

    if rank == 0:
        print(f"| {ranks} ranks | bytes | phalanx | Gloo | Gloo / phalanx |\n|---|---|---|---|---|", flush=True)
    for size in SIZES:
        kinds = {name: dict(operations(size, group)) for name, group in groups.items()}
        for operation in kinds["phalanx"]:
            row(operation, size, {backend: kinds[backend][operation] for backend in BACKENDS})
    for pairs in zip(*(steps(groups[name]) for name in BACKENDS)):
        row(pairs[0][0], 0, dict(zip(BACKENDS, (step for _, step in pairs))))
    if rank == 0:
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([["operation", "bytes", "ranks", "phalanx_us", "gloo_us"], *rows])
    dist.barrier()
    dist.destroy_process_group()


main(sys.argv[1])
