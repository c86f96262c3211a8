"""The collectives of c10d, on lists of tensors as c10d hands them over."""

import torch

from .._phalanx import ReduceOp
from .operators import operator
from .profiles import profiles
from .sparse import SparseSum
from .tensors import apart, combined, copy_from_flat, dense, flat, flat_space, is_plain, memory, row, scale, space


class Collectives:
    """Each method takes what c10d's method of this name takes. Tensors that do not lie in one piece go through copies that do."""

    # Reductions.

    def allreduce(self, tensors, opts=None):
        tensor = _only(tensors)
        op = _op(opts)
        if opts is not None and not opts.asyncOp and is_plain(tensor) and not profiles():
            # What a training does most often goes straight through.
            return self._reduce_now(tensor, op, opts.timeout)
        if tensor.layout is torch.sparse_coo:
            return self._add_sparse(tensor, op, opts)
        whole = dense(tensor)
        then = None if whole is tensor else lambda: tensor.detach().copy_(whole)
        buffer = combined(whole)
        return self._perform("all_reduce", opts, lambda group, is_async: group.all_reduce(buffer, op, async_op=is_async), tensors, then)

    def allreduce_coalesced(self, tensors, opts=None):
        op = _op(opts)
        wholes = [dense(tensor) for tensor in tensors]
        buffers = [combined(whole) for whole in wholes]
        copies = [(tensor, whole) for tensor, whole in zip(tensors, wholes) if tensor is not whole]
        then = (lambda: [tensor.detach().copy_(whole) for tensor, whole in copies]) if copies else None
        begin = lambda group, is_async: group.all_reduce_coalesced(buffers, op, async_op=is_async)
        return self._perform("all_reduce", opts, begin, tensors, then)

    def _add_sparse(self, tensor, op, opts):
        if op not in (None, ReduceOp.SUM):
            raise ValueError("sparse tensors can be added up (SUM), and nothing else: call to_dense() first")
        entries = SparseSum(tensor)
        return self._perform("all_reduce", opts, entries.begin, [tensor], entries.settle)

    allreduce_sparse = allreduce

    def reduce(self, tensors, opts):
        tensor, root = _only(tensors), opts.rootRank
        is_root = self.rank() == root
        whole = dense(tensor)
        # The tensor of another rank is only read.
        whole = whole if is_root or whole is not tensor else tensor.detach().clone()
        then = (lambda: tensor.detach().copy_(whole)) if is_root and whole is not tensor else None
        buffer, op = combined(whole), _op(opts)
        return self._perform("reduce", opts, lambda group, is_async: group.reduce(buffer, root, op, async_op=is_async), tensors, then)

    def reduce_scatter_single(self, output, input, opts=None):
        return self._scattered_sums([output], [input], opts, "_reduce_scatter_base")

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        return self._scattered_sums(outputs, inputs, opts, "reduce_scatter_tensor_coalesced")

    def _scattered_sums(self, outputs, inputs, opts, name):
        op = _op(opts)
        spaces = [space(output) for output in outputs]
        pairs = [(combined(dense(input)), combined(whole)) for input, whole in zip(inputs, spaces)]
        begin = lambda group, is_async: [group.reduce_scatter(input, output, op, async_op=is_async) for input, output in pairs]
        return self._perform(name, opts, begin, outputs, _to(outputs, spaces))

    def reduce_scatter(self, outputs, inputs, opts=None):
        output, parts, op = _only(outputs), _only(inputs), _op(opts)
        _check_dtypes(output, parts)
        counts = [part.numel() for part in parts]
        input, whole = combined(flat(parts)), space(output)
        buffer = combined(whole)
        begin = lambda group, is_async: group.reduce_scatter_v(input, buffer, counts, op, async_op=is_async)
        return self._perform("reduce_scatter", opts, begin, outputs, _to([output], [whole]))

    # Copies.

    def broadcast(self, tensors, opts):
        tensor, root = _only(tensors), opts.rootRank
        whole = dense(tensor) if self.rank() == root else space(tensor)
        buffer = memory(whole)
        begin = lambda group, is_async: group.broadcast(buffer, root, async_op=is_async)
        return self._perform("broadcast", opts, begin, tensors, _to([tensor], [whole]) if self.rank() != root else None)

    def all_gather_single(self, output, input, opts=None):
        return self._gathered([output], [input], opts, "_all_gather_base")

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        return self._gathered(outputs, inputs, opts, "all_gather_into_tensor_coalesced")

    def _gathered(self, outputs, inputs, opts, name):
        spaces = [space(output) for output in outputs]
        for output, input in zip(outputs, inputs):
            _check_dtypes(output, [input])
        pairs = [(memory(dense(input)), memory(whole)) for input, whole in zip(inputs, spaces)]
        begin = lambda group, is_async: [group.all_gather(input, output, async_op=is_async) for input, output in pairs]
        return self._perform(name, opts, begin, outputs, _to(outputs, spaces))

    def allgather(self, outputs, inputs, opts=None):
        return self._gathered_lists([_only(outputs)], [_only(inputs)], opts, outputs)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """`outputs[r][i]` is for tensor i of rank r."""
        return self._gathered_lists([list(of_all) for of_all in zip(*outputs)], inputs, opts, outputs)

    def _gathered_lists(self, lists, inputs, opts, tensors):
        for parts, input in zip(lists, inputs):
            _check_dtypes(input, parts)
        spaces = [flat_space(parts) for parts in lists]
        calls = [
            (memory(dense(input)), memory(whole), [part.numel() * scale(part) for part in parts])
            for parts, input, whole in zip(lists, inputs, spaces)
        ]
        begin = lambda group, is_async: [group.all_gather_v(*call, async_op=is_async) for call in calls]
        return self._perform("all_gather", opts, begin, tensors, lambda: [copy_from_flat(*pair) for pair in zip(spaces, lists)])

    def gather(self, outputs, inputs, opts):
        input, root = dense(_only(inputs)), opts.rootRank
        if self.rank() != root:
            buffer = memory(input)
            return self._perform("gather", opts, lambda group, is_async: group.gather(buffer, None, root, async_op=is_async), outputs)
        parts = _only(outputs)
        _check_dtypes(input, parts)
        _check_sizes("gather", input, parts)
        whole = flat_space(parts)
        buffers = memory(apart(input, whole)), memory(whole)
        begin = lambda group, is_async: group.gather(*buffers, root, async_op=is_async)
        return self._perform("gather", opts, begin, outputs, lambda: copy_from_flat(whole, parts))

    def scatter(self, outputs, inputs, opts):
        output, root = _only(outputs), opts.rootRank
        whole, input = space(output), None
        if self.rank() == root:
            parts = _only(inputs)
            _check_dtypes(output, parts)
            _check_sizes("scatter", output, parts)
            input = memory(apart(flat(parts), whole))
        buffer = memory(whole)
        begin = lambda group, is_async: group.scatter(input, buffer, root, async_op=is_async)
        return self._perform("scatter", opts, begin, outputs, _to([output], [whole]))

    def all_to_all_single(self, output, input, output_split_sizes=(), input_split_sizes=(), opts=None):
        _check_dtypes(output, [input])
        whole = space(output)
        from_here = memory(apart(dense(input), whole))
        counts = [_counts(tensor, splits, self.size()) for tensor, splits in ((input, input_split_sizes), (output, output_split_sizes))]
        buffer = memory(whole)
        begin = lambda group, is_async: group.all_to_all_v(from_here, counts[0], buffer, counts[1], async_op=is_async)
        return self._perform("all_to_all", opts, begin, [output], _to([output], [whole]))

    def alltoall(self, outputs, inputs, opts=None):
        _check_dtypes(outputs[0], [*outputs, *inputs])
        whole = flat_space(outputs)
        buffers = memory(apart(flat(inputs), whole)), memory(whole)
        sent, received = ([part.numel() * scale(part) for part in parts] for parts in (inputs, outputs))
        begin = lambda group, is_async: group.all_to_all_v(buffers[0], sent, buffers[1], received, async_op=is_async)
        return self._perform("all_to_all", opts, begin, outputs, lambda: copy_from_flat(whole, outputs))

    # Names of PyTorch before 2.15.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _only(tensors):
    """c10d's lists have a place for each device of a process. A process of phalanx has one: the CPU."""
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors, or lists of them, where phalanx takes one")
    return tensors[0]


def _op(opts):
    return None if opts is None else operator(opts.reduceOp)


def _to(tensors, spaces):
    """What copies results to tensors for which there were spaces of their own."""
    pairs = [(tensor, whole) for tensor, whole in zip(tensors, spaces) if tensor is not whole]
    return (lambda: [tensor.detach().copy_(whole) for tensor, whole in pairs]) if pairs else None


def _counts(tensor, splits, ranks):
    """The elements of each rank's block, where the first dimension is split into these, or evenly."""
    if splits:
        if sum(splits) != tensor.shape[0]:
            raise ValueError(f"splits {list(splits)} of a tensor whose first dimension is {tensor.shape[0]}: they must add up to it")
        return [split * row(tensor) * scale(tensor) for split in splits]
    if tensor.dim() and tensor.shape[0] % ranks:
        raise ValueError(f"a tensor whose first dimension is {tensor.shape[0]} has no equal parts for {ranks} ranks: say how it is split")
    return [tensor.numel() // ranks * scale(tensor)] * ranks


def _check_dtypes(one, others):
    for other in others:
        if other.dtype != one.dtype:
            raise ValueError(f"tensors of {one.dtype} and {other.dtype} in one call: all must have one type")


def _check_sizes(op, one, others):
    for other in others:
        if other.numel() != one.numel():
            raise ValueError(f"{op} of {one.numel()} elements and {other.numel()}: each rank's tensor must have as many")
