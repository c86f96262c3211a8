"""Trainings of PyTorch over phalanx: the same losses as over Gloo, step by step."""

import json
import os
import tempfile
import unittest

import launch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CPU = torch.device("cpu")
RANKS = int(os.environ.get("PHALANX_TRAIN_RANKS", "2"))
STEPS = 4


def net(width=32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def batches(step):
    """This rank's part of a batch."""
    numbers = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, 16, generator=numbers), torch.randn(8, 4, generator=numbers)


def trained(model, optimizer=None):
    """The mean loss over all ranks at each step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(STEPS):
        x, y = batches(step)
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(mean(loss))
    return losses


def mean(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def mesh():
    return dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))


def of_ddp():
    return trained(DDP(net(), bucket_cap_mb=0.001))


def of_ddp_unused():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = net(), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    return trained(DDP(Unused(), find_unused_parameters=True))


def of_sparse_gradients():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.words, self.rest = nn.Embedding(50, 16, sparse=True), net()

        def forward(self, x):
            return self.rest(self.words((x[:, :3] * 10).long().remainder(50)).sum(1))

    return trained(DDP(Words()))


def of_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DDP(net())
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    return trained(model)


def of_bf16_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DDP(net())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return trained(model)


def of_fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    return trained(FullyShardedDataParallel(net(), device_id=CPU))


def of_fsdp2():
    from torch.distributed.fsdp import fully_shard

    model = net()
    [fully_shard(layer, mesh=mesh()) for layer in model if isinstance(layer, nn.Linear)]
    return trained(fully_shard(model, mesh=mesh()))


def of_zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    return trained(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))


def of_dtensor():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    n = 4 * dist.get_world_size()
    a, b = torch.arange(float(n * n)).view(n, n), torch.eye(n) * 2
    product = distribute_tensor(a, mesh(), [Shard(1)]) @ distribute_tensor(b, mesh(), [Shard(0)])
    moved = distribute_tensor(a, mesh(), [Shard(0)]).redistribute(mesh(), [Shard(1)]).redistribute(mesh(), [Replicate()])
    assert torch.equal(product.full_tensor(), a @ b) and torch.equal(moved.to_local(), a)
    return [product.sum().full_tensor().item()]


def of_tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plain, model = net(), parallelize_module(net(), mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)
    loss = (model(x) ** 2).mean()
    loss.backward()
    return [loss.item(), model[0].weight.grad.full_tensor().norm().item()]


def pipelined(schedule):
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    layers = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(size)]
    torch.manual_seed(0)
    [layer[0].reset_parameters() for layer in layers]
    stage = pipelining.PipelineStage(layers[rank], rank, size, CPU)
    schedule = getattr(pipelining, schedule)(stage, 4, loss_fn=nn.MSELoss())
    optimizer, losses = torch.optim.SGD(layers[rank].parameters(), 0.1), []
    for step in range(STEPS):
        numbers = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 16, generator=numbers), torch.randn(16, 16, generator=numbers)
        optimizer.zero_grad()
        parts = []
        arguments = [x] if rank == 0 else []
        schedule.step(*arguments, target=y, losses=parts) if rank == size - 1 else schedule.step(*arguments)
        optimizer.step()
        loss = torch.stack(parts).mean().detach() if parts else torch.zeros(())
        dist.broadcast(loss, size - 1)
        losses.append(loss.item())
    return losses


def of_gpipe():
    return pipelined("ScheduleGPipe")


def of_1f1b():
    return pipelined("Schedule1F1B")


def of_checkpoint():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = fully_shard(net(), mesh=mesh())
    before = trained(model)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    again = fully_shard(net(), mesh=mesh())
    state = {"model": again.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    again.load_state_dict(state["model"])
    after = trained(again)
    assert after == trained(model)
    return before + after


def of_join():
    """Ranks have unlike many batches."""
    from torch.distributed.algorithms.join import Join

    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for step in range(2 + dist.get_rank()):
            x, y = batches(step)
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
    return [model.module[0].weight.norm().item()]


def of_functions():
    import torch.distributed._functional_collectives as functional

    x = torch.full((4,), dist.get_rank() + 1.0)
    everything = functional.all_gather_single(functional.all_reduce(x, "sum", dist.group.WORLD), 0, dist.group.WORLD)
    parts = functional.reduce_scatter_single(everything, "avg", 0, dist.group.WORLD)
    return [everything.sum().item(), parts.sum().item()]


def rank_trains():
    """Prints the losses of every kind of training, over Gloo and over phalanx."""
    launch.join(os.environ["BACKEND"])
    kinds = {name.removeprefix("of_"): function for name, function in globals().items() if name.startswith("of_")}
    for name, function in kinds.items():
        losses = function()
        if dist.get_rank() == 0:
            print("LOSSES", json.dumps([name, losses]), flush=True)
    dist.destroy_process_group()


def losses(test, backend):
    output = launch.passes(test, __file__, "trains", RANKS, BACKEND=backend)
    lines = [line.split("LOSSES ", 1)[1] for line in output.splitlines() if "LOSSES " in line]
    return dict(json.loads(line) for line in lines)


class Training(unittest.TestCase):
    def test_losses_are_those_over_gloo(self):
        ours, gloos = losses(self, "phalanx"), losses(self, "gloo")
        self.assertEqual(len(ours), 15)
        for name, of_gloo in gloos.items():
            self.assertGreater(len(of_gloo), 0)
            # Gloo rounds a sum of bfloat16 after each rank, phalanx once.
            within = 1e-3 if name == "bf16_hook" else 1e-6
            for one, other in zip(ours[name], of_gloo, strict=True):
                self.assertAlmostEqual(one, other, delta=within * max(1.0, abs(other)), msg=f"{name}: {ours[name]} {of_gloo}")


if __name__ == "__main__":
    launch.main(globals())
