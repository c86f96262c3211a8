"""PyTorch's collectives over Gloo on TCP loopback. Started once a rank:

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python torch_gloo.py <flags: see method.h>

Cases and method are those of method.h, in Python.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

SIZES = [4, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
OPS = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "barrier"]
PROBES, SAMPLES_MIN, SAMPLES_MAX, LOOK_EVERY = 4, 7, 4000, 16


class Case:
    """One operation at one size: its buffers, how to perform it, and what must come out."""

    def __init__(self, op, size):
        self.op, self.rank, self.world = op, dist.get_rank(), dist.get_world_size()
        length = size // 4
        block = length // self.world
        lengths = {
            "all_gather": (block, block * self.world),
            "reduce_scatter": (block * self.world, block),
            "all_to_all": (block * self.world, block * self.world),
        }
        self.block = block
        self.size = 0 if op == "barrier" else size
        self.input, self.output = (torch.zeros(n) for n in lengths.get(op, (length, 0)))
        self.pattern = contribution(self.rank, torch.arange(len(self.input)))
        self.makes_sense = len(self.input) > 0 or op == "barrier"

    def touch(self):
        self.input.copy_(self.pattern)

    def perform(self):
        match self.op:
            case "all_reduce":
                dist.all_reduce(self.input)
            case "broadcast":
                dist.broadcast(self.input, 0)
            case "all_gather":
                dist.all_gather_into_tensor(self.output, self.input)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(self.output, self.input)
            case "all_to_all":
                dist.all_to_all_single(self.output, self.input)
            case "send_recv":
                self.ping_pong()
            case "barrier":
                dist.barrier()

    def ping_pong(self):
        peer = self.rank ^ 1
        if peer >= self.world:
            return
        for turn in range(2):
            if self.rank & 1 == turn:
                dist.send(self.input, peer)
            else:
                dist.recv(self.input, peer)

    def check(self):
        result = self.output if len(self.output) else self.input
        i = torch.arange(len(result))
        match self.op:
            case "all_reduce":
                expected = total(self.world, i)
            case "broadcast":
                expected = contribution(0, i)
            case "all_gather":
                expected = contribution(i // self.block, i % self.block)
            case "reduce_scatter":
                expected = total(self.world, self.rank * self.block + i)
            case "all_to_all":
                expected = contribution(i // self.block, self.rank * self.block + i % self.block)
            case _:
                expected = contribution(self.rank & ~1, i)
        assert torch.equal(result, expected), f"rank {self.rank}, {self.op} of {self.size} bytes: wrong"


def contribution(rank, i):
    return (i % 128 + rank).float()


def total(world, i):
    return sum(contribution(rank, i) for rank in range(world))


def measure(case, control, budget_s):
    """Median, mean, back to back and least time in seconds, and how many samples there were."""

    def longest(values):
        values = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=control)
        return values

    def sample():
        case.touch()
        dist.barrier(group=control)
        begun = time.perf_counter()
        case.perform()
        return time.perf_counter() - begun

    case.touch()
    case.perform()
    case.check()
    quickest = longest([min(sample() for _ in range(PROBES))]).item()
    wanted = max(SAMPLES_MIN, min(SAMPLES_MAX, int(budget_s / quickest)))
    for _ in range(wanted // 10 + 1):
        sample()
    samples, begun = [], time.perf_counter()
    while len(samples) < wanted:
        samples.append(sample())
        over = time.perf_counter() - begun - (4 * budget_s + 1)
        if len(samples) % LOOK_EVERY == 0 and longest([over]).item() > 0:
            break
    slowest = longest(samples).sort().values
    dist.barrier(group=control)
    begun = time.perf_counter()
    for _ in samples:
        case.perform()
    back_to_back = longest([(time.perf_counter() - begun) / len(samples)]).item()
    median, mean, least = slowest[len(samples) // 2].item(), slowest.mean().item(), slowest[0].item()
    return median, mean, back_to_back, least, len(samples)


def main():
    budget_ms, ops, min_bytes, max_bytes, peer, transport = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    control = dist.new_group(backend="gloo")
    for op in filter(ops.split(",").__contains__, OPS):
        for size in [0] if op == "barrier" else SIZES:
            if op != "barrier" and not int(min_bytes) <= size <= int(max_bytes):
                continue
            case = Case(op, size)
            if not case.makes_sense:
                continue
            median, mean, back_to_back, least, count = measure(case, control, float(budget_ms) * 1e-3)
            us = 1e6 / (2 if op == "send_recv" else 1)
            if dist.get_rank() == 0:
                print(
                    f"{peer},{transport},{op},{dist.get_world_size()},{case.size},{median * us:.3f},"
                    f"{case.size / (median * us) * 1e-3:.4f},{mean * us:.3f},{back_to_back * us:.3f},"
                    f"{least * us:.3f},{count}",
                    flush=True,
                )
    dist.barrier(group=control)
    dist.destroy_process_group()


main()
