"""Ways in which PyTorch's programs come together over the backend `phalanx`."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta

import launch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FROM_HERE = {"backend": "phalanx", "timeout": timedelta(seconds=60)}


def sums():
    """All ranks of the job can work together."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    assert x.item() == size * (size + 1) / 2, x


def rank_plain():
    """The program of a user who knows nothing of phalanx but its name, and imports nothing. It goes away without `destroy_process_group`."""
    dist.init_process_group("phalanx")
    sums()


def rank_ends_early():
    """One rank does its part and its program ends, before the other begins with its own."""
    launch.join()
    rank = dist.get_rank()
    # Groups that are alive at the end must not keep it from leaving in order.
    both = dist.new_group([0, 1])
    if rank == 1:
        time.sleep(1)
    x, y = torch.full((100,), 7.0 * (1 - rank)), torch.full((3,), 5.0 * (1 - rank))
    dist.broadcast(x, 0, group=both)
    dist.isend(y, 1) if rank == 0 else dist.recv(y, 0)
    assert x[99] == 7 and y[2] == 5


def rank_imports_it():
    import phalanx.torch

    phalanx.torch.register()
    dist.init_process_group("cpu:phalanx")
    sums()


def join_at(port, backend="phalanx"):
    """Joins at a port of its own where rank 0's process keeps the store: another rank may come to the store of an earlier time before that closes."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return launch.join(backend)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return launch.join(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)


def rank_again():
    for port in os.environ["PORTS"].split():
        join_at(port)
        sums()
        dist.destroy_process_group()


def rank_beside_another():
    launch.join("cpu:phalanx,cuda:gloo")
    sums()
    assert "phalanx" in dist.get_backend() or dist.get_backend() == "undefined", dist.get_backend()
    pair = dist.new_group([0, 1])
    x = torch.ones(3)
    dist.all_reduce(x, group=pair)
    assert x[0] == 2
    dist.destroy_process_group()


def rank_groups():
    rank, size = launch.join()
    of_gloo = dist.new_group(backend="gloo")
    backwards = dist.new_group(list(range(size))[::-1], timeout=timedelta(seconds=30))
    x = torch.tensor([rank])
    dist.broadcast(x, src=size - 1, group=backwards)
    assert x.item() == size - 1
    dist.new_subgroups(1)
    alone = dist.new_group([1], use_local_synchronization=True)
    if rank == 1:
        dist.all_reduce(x, group=alone)
    mine = dist.split_group(split_ranks=[[0], list(range(1, size))[::-1]])
    y = torch.tensor([rank])
    dist.broadcast(y, group_src=0, group=mine)
    assert y.item() == (0 if rank == 0 else size - 1) and dist.get_world_size(mine) == max(1, (size - 1) * (rank > 0)), y
    dist.all_reduce(y, group=of_gloo)
    dist.destroy_process_group(backwards)
    sums()
    dist.destroy_process_group()


def rank_gloo_world():
    """A group over phalanx in a job of Gloo."""
    rank, size = launch.join("gloo")
    group = dist.new_group(list(range(size))[::-1], backend="phalanx")
    x = torch.tensor([rank])
    dist.broadcast(x, src=size - 1, group=group)
    assert x.item() == size - 1
    dist.destroy_process_group()


def rank_gloo_world_later():
    """The same after a world of phalanx that is gone."""
    first, second = os.environ["PORTS"].split()
    join_at(first)
    sums()
    dist.destroy_process_group()
    rank, size = join_at(second, "gloo")
    group = dist.new_group(backend="phalanx")
    x = torch.tensor([rank])
    dist.all_reduce(x, group=group)
    assert x.item() == size * (size - 1) // 2
    dist.destroy_process_group()


def spawned(rank, size, url):
    import phalanx.torch  # noqa: F401

    dist.init_process_group(init_method=url, rank=rank, world_size=size, **FROM_HERE)
    sums()
    dist.destroy_process_group()


def ports(count):
    return " ".join(str(launch.free_port()) for _ in range(count))


class Joining(unittest.TestCase):
    def test_a_plain_program_under_each_launcher(self):
        for launcher in (launch.under_phalanx, launch.under_torchrun):
            output = launch.passes(self, __file__, "plain", 2, launcher)
            self.assertNotIn("Warning", output)
            self.assertNotIn("rror", output)

    def test_what_a_program_that_ended_has_sent_arrives(self):
        for launcher in (launch.under_phalanx, launch.under_torchrun):
            launch.passes(self, __file__, "ends_early", 2, launcher)

    def test_a_program_may_import_it_first(self):
        launch.passes(self, __file__, "imports_it", 2)

    def test_a_program_may_initialise_again(self):
        for launcher in (launch.under_phalanx, launch.under_torchrun):
            launch.passes(self, __file__, "again", 2, launcher, PORTS=ports(3))

    def test_tensors_on_gpus_may_go_over_another_backend(self):
        launch.passes(self, __file__, "beside_another", 2)

    def test_groups_of_some_ranks(self):
        launch.passes(self, __file__, "groups", 3)
        launch.passes(self, __file__, "gloo_world", 2)
        launch.passes(self, __file__, "gloo_world_later", 2, PORTS=ports(2))

    def test_stores_of_files_and_addresses(self):
        with tempfile.TemporaryDirectory() as folder:
            for url in (f"file://{folder}/store", f"tcp://127.0.0.1:{launch.free_port()}"):
                mp.spawn(spawned, (2, url), 2)

    def test_a_process_alone(self):
        words = (
            "import phalanx.torch, importlib, torch.distributed as dist; importlib.reload(phalanx.torch)\n"
            "dist.init_process_group('phalanx', store=dist.HashStore(), rank=0, world_size=1); dist.barrier(); print(dist.get_backend())"
        )
        done = subprocess.run([sys.executable, "-c", words], text=True, capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": ""})
        self.assertEqual(done.stdout.strip(), "phalanx", done)


if __name__ == "__main__":
    launch.main(globals())
