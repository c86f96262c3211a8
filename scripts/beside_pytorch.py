"""PyTorch's half of `scripts/beside-pytorch`. Each rank is a process of one thread; rank 0 prints."""

import os
import statistics
import sys
import time

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 50, 64


def small(model):
    """The models of crates/candle/examples/losses.rs."""
    if model == "mlp":
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4 * 4, 10))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (f(x).view(batch, tokens, 4, width // 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(2, 3) * 0.125, 3) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(nn.functional.gelu(self.wide(x), approximate="tanh"))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def large(model):
    """The models of crates/candle/benches/step.rs, the shape of what a rank gets, and steps in a turn."""
    if model == "mlp":
        sizes = [784, 1536, 1536, 1024]
        layers = [layer for pair in zip(sizes, sizes[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(1024, 10)), (64, 784), 5
    if model == "cnn":
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(8 * 8 * 128, 128), nn.ReLU(), nn.Linear(128, 10)), (32, 3, 32, 32), 2
    return nn.Sequential(*(Block(256) for _ in range(4)), Mean(), nn.Linear(256, 10)), (8, 64, 256), 3


def make(file):
    """Writes weights, data and batches."""
    from safetensors.torch import save_file
    torch.manual_seed(1)
    tensors = {f"{name}.{key}": value for name in ("mlp", "cnn") for key, value in small(name).state_dict().items()}
    tensors["x"] = torch.randn(STEPS, BATCH, 64)
    # Ten places in the data are the classes: there is something to learn.
    tensors["y"] = tensors["x"][:, :, :10].argmax(2)
    save_file(tensors, file)


def losses(rank, ranks, file, model):
    from safetensors.torch import load_file
    tensors = load_file(file)
    net = small(model)
    net.load_state_dict({key: tensors[f"{model}.{key}"] for key in net.state_dict()})
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    mine = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    for x, y in zip(tensors["x"], tensors["y"]):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        of_all = loss.detach().double()
        distributed.all_reduce(of_all)
        if rank == 0:
            print(of_all.item() / ranks)


def times(rank, ranks, model):
    """As the benchmark does: a few steps of each kind in turns, and the slower rank's time counts."""
    net, shape, steps = large(model)
    alone = net, DistributedDataParallel(large(model)[0])
    trainers = [(net, torch.optim.SGD(net.parameters(), lr=0.001), []) for net in alone]
    x, y = torch.randn(shape), torch.arange(shape[0]) % 10
    for turn in range(13):
        for net, optimizer, times in trainers:
            distributed.barrier()
            for step in range(steps + 1):
                start = time.perf_counter()
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
                if turn > 0 and step > 0:
                    times.append((time.perf_counter() - start) * 1e3)
    medians = []
    for _, _, times in trainers:
        times = torch.tensor(times, dtype=torch.float64)
        distributed.all_reduce(times, op=distributed.ReduceOp.MAX)
        medians.append(statistics.median(times.tolist()))
    if rank == 0:
        print(f"PyTorch {torch.__version__} {model}: alone {medians[0]:.2f} ms, DDP {medians[1]:.2f} ms, "
              f"overhead {(medians[1] / medians[0] - 1) * 100:.1f} %")


def run(rank, ranks, work, *args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    work(rank, ranks, *args)
    # Or gloo may abort a process that has not finished when another goes.
    distributed.barrier()
    distributed.destroy_process_group()


def spawn(ranks, work, *args):
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    multiprocessing.spawn(run, (ranks, work, *args), nprocs=ranks)


def compare(torchs, ours):
    read = [[float(line.split()[-1]) for line in open(file)] for file in (torchs, ours)]
    if [len(losses) for losses in read] != [STEPS, STEPS]:
        sys.exit(f"{len(read[0])} and {len(read[1])} losses, not {STEPS}")
    off = max(abs(a - b) / abs(a) for a, b in zip(*read))
    print(f"losses from {read[0][0]:.4f} to {read[0][-1]:.4f}, off by {off:.1e} at most")
    if off > 1e-4:
        sys.exit("that is more than 1e-4")


if __name__ == "__main__":
    command, args = sys.argv[1], sys.argv[2:]
    if command == "make":
        make(*args)
    elif command == "losses":
        spawn(int(args[2]), losses, args[0], args[1])
    elif command == "times":
        spawn(2, times, *args)
    else:
        compare(*args)
