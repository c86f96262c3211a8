"""A rank in Python, with PyTorch, of a job whose other ranks are those of `src/main.rs`, with candle. All train one model on handwritten digits, each on its part of
every batch, and end with the same weights to the last bit."""

import gzip
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
import phalanx
import phalanx.torch
import torch
from safetensors.torch import load_file, save_file

# What both programs must know alike.
EPOCHS = 20
BATCH = 64
LEARNING_RATE = 0.1
PIXELS, HIDDEN, DIGITS = 64, 32, 10


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(PIXELS, HIDDEN)
        self.fc2 = torch.nn.Linear(HIDDEN, DIGITS)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def digits():
    """All images, one behind the other, and what they show."""
    with gzip.open(Path(__file__).parent.parent / "digits" / "data" / "digits.csv.gz", "rt") as file:
        values = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))
    return values[:, :-1].float() / 16, values[:, -1]


def checksum(weights):
    """A number that tells different weights apart: of their bytes, in the order of their names."""
    crc = 0
    for _, weight in sorted(weights.items()):
        crc = zlib.crc32(weight.numpy().tobytes(), crc)
    return crc


torch.set_num_threads(1)
group = phalanx.init()
rank, ranks = group.rank, group.world_size
images, labels = digits()
model = Mlp()
ddp = phalanx.torch.DistributedDataParallel(model, group)

mine = BATCH // ranks
for _ in range(EPOCHS):
    for batch in range(len(images) // BATCH):
        at = batch * BATCH + rank * mine
        loss = torch.nn.functional.cross_entropy(ddp(images[at : at + mine]), labels[at : at + mine])
        ddp.backward(loss)
        with torch.no_grad():
            for weight in model.parameters():
                # A product and a difference, each rounded: so does candle's optimizer, and PyTorch's may round once.
                weight -= weight.grad * LEARNING_RATE
                weight.grad = None

with torch.no_grad():
    accuracy = 100 * (model(images).argmax(1) == labels).float().mean()
    own = checksum(model.state_dict())
    checksums = np.zeros(ranks, np.uint64)
    group.all_gather(np.array([own], np.uint64), checksums)
print(f"rank {rank} of {ranks}, Python and PyTorch: accuracy {accuracy:.2f} %, weights [{', '.join(f'{sum:08x}' for sum in checksums)}]", flush=True)
assert (checksums == checksums[0]).all(), "the ranks have different weights"

# One rank writes the weights, and every rank, in either language, loads them.
path = Path(tempfile.gettempdir()) / f"mixed-{os.environ['PHALANX_JOB_ID']}.safetensors"
if rank == 0:
    save_file(model.state_dict(), path)
group.barrier()
assert checksum(load_file(path)) == own, "the file holds other weights"
group.barrier()
if rank == 0:
    path.unlink()
group.finalize()
