"""Data-parallel training by phalanx's own steps, together with ranks that are written in Rust."""

import torch

from .._phalanx import Memory, Reducer, sync_model

#: phalanx's names of the types that weights can have.
_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


def _memory(tensor):
    return Memory(tensor.data_ptr(), tensor.numel(), _NAMES[tensor.dtype], tensor)


class DistributedDataParallel(torch.nn.Module):
    """A model of which every rank has a copy, and works on a part of each batch.

    Ranks may be Python programs with PyTorch and Rust programs with ``phalanx_candle::DistributedDataParallel``, in one job: their models have parameters of
    the same names, types and shapes, and every step averages the gradients over all ranks. Where all ranks are Python programs, use PyTorch's own
    ``DistributedDataParallel`` over the backend ``phalanx``, which overlaps the sums with the backward pass.

        group = phalanx.init()
        ddp = phalanx.torch.DistributedDataParallel(model, group)   # every rank has rank 0's weights now
        loss = loss_function(ddp(x), y)
        ddp.backward(loss)                                          # every rank has the same gradients now
        optimizer.step()

    Weights must be contiguous, on the CPU, of float32, float64, float16 or bfloat16, and must all want gradients. Buffers of the module are left alone.
    """

    def __init__(self, module, group, bucket_cap_bytes=4 << 20):
        super().__init__()
        self.module = module
        self.group = group
        self._named = sorted(module.named_parameters())
        for name, weight in self._named:
            if weight.device.type != "cpu" or weight.dtype not in _NAMES or not weight.is_contiguous() or not weight.requires_grad:
                raise ValueError(
                    f"{name} is a {weight.dtype} on {weight.device}, {'' if weight.is_contiguous() else 'not '}contiguous, that wants "
                    f"{'a' if weight.requires_grad else 'no'} gradient: only contiguous floats on the CPU that want one can be trained together"
                )
        with torch.no_grad():
            sync_model(group, [(name, _memory(weight), list(weight.shape)) for name, weight in self._named])
        self._reducer = Reducer(group, [(name, _NAMES[weight.dtype], list(weight.shape)) for name, weight in self._named], bucket_cap_bytes)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def backward(self, loss, share=None):
        """The backward pass, after which ``grad`` of each parameter is the average over all ranks.

        ``share``: how many samples this rank has of the global batch, and how many that has; ``None``: as many as every other rank. Collective: each rank makes as many
        steps. If the backward pass fails here, the others hear of it.
        """
        try:
            loss.backward()
        except BaseException as error:
            self._reducer.give_up(f"its backward pass failed: {error}")
            raise
        self.sync_gradients(share)

    def sync_gradients(self, share=None):
        """The same for gradients that are there already, as after several backward passes."""
        gradients = []
        for _, weight in self._named:
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad.contiguous()
            gradients.append((gradient, weight.grad is not None))
        reduced = self._reducer.reduce([(_memory(gradient), is_there) for gradient, is_there in gradients], share)
        for (_, weight), (gradient, _), is_anywhere in zip(self._named, gradients, reduced):
            weight.grad = gradient if is_anywhere else None
