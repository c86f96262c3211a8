"""Sums of sparse tensors (COO), of which each rank has entries of its own."""

import torch

from .tensors import check_host, combined, memory, row

#: Sums of short floats are rounded once.
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class SparseSum:
    """The entries of all ranks, gathered. Those at one place are added up in the order of the ranks, so all ranks have the same bits."""

    def __init__(self, tensor):
        check_host(tensor)
        # c10d hands over a view of complex numbers as pairs. A sparse view does not bring its tensor new entries.
        whole = tensor._base if tensor._is_view() else tensor
        if whole.is_complex() and tensor.shape == (*whole.shape, 2):
            tensor = whole
        own = tensor.detach().coalesce()
        self._tensor = tensor
        self._places, self._values = own.indices().t().contiguous(), own.values().contiguous()
        combined(self._values)  # which refuses elements that can't be added up

    def begin(self, group, is_async):
        """Waits, also where it is asynchronous, until it is known how many entries each rank has: what is gathered depends on it."""
        count, places, values = len(self._values), self._places, self._values
        own = torch.tensor([count, self._tensor.sparse_dim(), *self._tensor.shape])
        of_all = own.new_empty(group.world_size, len(own))
        group.all_gather(memory(own), memory(of_all))
        counts, kinds = of_all[:, 0].tolist(), of_all[:, 1:].tolist()
        for rank, (dims, *shape) in enumerate(kinds):
            if kinds[rank] != kinds[0]:
                raise ValueError(
                    f"rank {rank} has a sparse tensor of shape {shape} with {dims} sparse dimensions, and rank 0 one of shape {kinds[0][1:]} with {kinds[0][0]}"
                )
        self._all_places, self._all_values = places.new_empty(sum(counts), places.shape[1]), values.new_empty(sum(counts), *values.shape[1:])
        pairs = (places, self._all_places), (values, self._all_values)
        return [
            group.all_gather_v(memory(mine), memory(whole), [n * row(mine) for n in counts], async_op=is_async)
            for mine, whole in pairs
        ]

    def settle(self):
        values = self._all_values
        wide = values.to(_WIDE.get(values.dtype, values.dtype))
        shape = self._tensor.shape
        total = torch.sparse_coo_tensor(self._all_places.t(), wide, shape, check_invariants=False).coalesce()
        with torch.no_grad():
            self._tensor.copy_(total.to(values.dtype))
