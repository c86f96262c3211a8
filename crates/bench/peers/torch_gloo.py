"""PyTorch's collectives over Gloo on TCP loopback. Started once a rank:

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python torch_gloo.py <arguments: see method.h>

Cases, method and output are those of method.h, in Python.
"""

import socket
import sys
import time

import torch
import torch.distributed as dist

PROBES, SAMPLES_MIN, SAMPLES_MAX, LOOK_EVERY, PERIOD, ROOT = 4, 7, 4000, 16, 1021, 0
SETTLE_S = 0.01
DIVIDED = ["reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"]


class Case:
    """One operation at one size: its buffers, how to perform it, and what must come out."""

    def __init__(self, op, size):
        self.op, self.size, self.rank, self.world = op, size, dist.get_rank(), dist.get_world_size()
        self.in_place = op not in DIVIDED
        count = size // 4 if self.in_place else size // 4 // self.world
        whole = count * self.world
        at_root = whole if self.rank == ROOT else 0
        # In the buffer that it has sent, what comes back to a rank would be right from before.
        comes_back = op == "send_recv" and self.rank < self.rank ^ 1 < self.world
        lengths = {
            "reduce_scatter": (whole, count),
            "all_gather": (count, whole),
            "gather": (count, at_root),
            "scatter": (at_root, count),
            "all_to_all": (whole, whole),
            "send_recv": (count, count if comes_back else 0),
        }
        self.count = count
        self.input, self.output = (torch.zeros(n) for n in lengths.get(op, (count, 0)))
        self.result = self.input if self.in_place and not comes_back else self.output
        self.pattern = contribution(self.rank, torch.arange(len(self.input)))
        divided = self.output if op == "gather" else self.input
        self.blocks = list(divided.split(count)) if op in ("gather", "scatter") and at_root else None

    def touch(self):
        self.input.copy_(self.pattern)

    def perform(self):
        match self.op:
            case "all_reduce":
                dist.all_reduce(self.input)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(self.output, self.input)
            case "all_gather":
                dist.all_gather_into_tensor(self.output, self.input)
            case "broadcast":
                dist.broadcast(self.input, ROOT)
            case "reduce":
                dist.reduce(self.input, ROOT)
            case "gather":
                dist.gather(self.input, self.blocks, ROOT)
            case "scatter":
                dist.scatter(self.output, self.blocks, ROOT)
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
                dist.recv(self.result, peer)

    def wrong(self):
        """How many elements differ from what must come out."""
        result = self.result
        if self.op == "reduce" and self.rank != ROOT or self.op == "send_recv" and self.rank ^ 1 >= self.world:
            result = result[:0]
        i = torch.arange(len(result))
        block, within = (i // self.count, i % self.count) if self.count else (i, i)
        match self.op:
            case "all_reduce" | "reduce":
                expected = total(self.world, i)
            case "reduce_scatter":
                expected = total(self.world, self.rank * self.count + i)
            case "broadcast":
                expected = contribution(ROOT, i)
            case "all_gather" | "gather":
                expected = contribution(block, within)
            case "scatter":
                expected = contribution(ROOT, self.rank * self.count + i)
            case "all_to_all":
                expected = contribution(block, self.rank * self.count + within)
            case _:
                expected = contribution(self.rank & ~1, i)
        return (result != expected).sum().item()


def contribution(rank, i):
    return ((i % PERIOD * 7 + rank * 31) % 128).float()


def total(world, i):
    return sum(contribution(rank, i) for rank in range(world))


def measure(case, control, budget_s, samples, warmup, touch):
    """Wrong elements, time back to back, and samples in seconds."""

    def longest(values):
        values = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=control)
        return values

    def sample():
        if touch:
            case.touch()
        dist.barrier(group=control)
        begun = time.perf_counter()
        case.perform()
        return time.perf_counter() - begun

    def checked():
        case.output.fill_(-1)  # what an earlier one has written must not pass for its result
        case.touch()
        dist.barrier(group=control)
        case.perform()
        return longest([float(case.wrong())]).item()

    def affordable():
        quickest = longest([min(sample() for _ in range(PROBES))]).item()
        return max(SAMPLES_MIN, min(SAMPLES_MAX, int(budget_s / quickest)))

    wrong = checked()
    wanted = samples if samples > 0 else affordable()
    for _ in range(warmup if warmup >= 0 else wanted // 10 + 1):
        sample()
    times, begun = [], time.perf_counter()
    while len(times) < wanted:
        times.append(sample())
        if samples <= 0 and len(times) % LOOK_EVERY == 0:
            over = time.perf_counter() - begun - (4 * budget_s + 1)
            if longest([over]).item() > 0:
                break
    times = longest(times).tolist()
    dist.barrier(group=control)
    begun = time.perf_counter()
    for _ in times:
        case.perform()
    back_to_back = longest([(time.perf_counter() - begun) / len(times)]).item()
    return wrong + checked(), back_to_back, times


def report(case, control, settings):
    """Measures a case; rank 0 prints it."""
    if not case.count and case.op != "barrier":
        return
    wrong, back_to_back, times = measure(case, control, *settings)
    if dist.get_rank() == 0:
        ns = 5e8 if case.op == "send_recv" else 1e9
        place = "in" if case.in_place else "out"
        times = " ".join(f"{seconds * ns:.0f}" for seconds in times)
        print(f"case {case.size} {place} - {wrong:.0f} {back_to_back * ns:.1f} {times}", flush=True)


def main():
    op, budget_s, samples, warmup, touch, rounds, port, *sizes = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    control = dist.new_group(backend="gloo")
    settings = float(budget_s), int(samples), int(warmup), int(touch)
    turns = socket.create_connection(("127.0.0.1", int(port)))
    for size in map(int, sizes):
        for _ in range(int(rounds)):
            if not turns.recv(1):
                sys.exit("there are no more turns")
            begun = time.perf_counter()
            while time.perf_counter() - begun < SETTLE_S:
                pass
            report(Case(op, size), control, settings)
            turns.sendall(b"\0")
    dist.barrier(group=control)
    dist.destroy_process_group()


main()
