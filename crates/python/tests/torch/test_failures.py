"""What PyTorch's ranks hear when one of them fails, under each launcher, and that nobody hangs or is aborted."""

import os
import pickle
import signal
import time
import unittest

import launch
import phalanx
import torch
import torch.distributed as dist
from torch import nn

HERE = os.path.basename(__file__)


def say(*words):
    # In one piece, as under torchrun all ranks write to one pipe.
    os.write(1, f"SAID {dist.get_rank()} {' '.join(map(str, words))}\n".encode())


def fails(kind, call):
    """The error of this kind that a call raises, which is one of c10d's and of phalanx's."""
    try:
        call()
    except kind as error:
        assert isinstance(error, dist.DistBackendError) and isinstance(error, phalanx.Error), type(error).__mro__
        say(type(error).__name__, str(error).replace("\n", " "))
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        return error
    raise AssertionError(f"rank {dist.get_rank()}: no {kind.__name__}")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def rank_killed():
    """In the middle of a training, one rank is gone."""
    rank, _ = launch.join()
    ddp = nn.parallel.DistributedDataParallel(model())
    for step in range(1000):
        if rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            ddp(torch.randn(4, 64)).sum().backward()
        except RuntimeError as error:
            # It comes through PyTorch's C++, which keeps the words.
            assert "rank 1 (" in str(error) and HERE in str(error), error
            break
    error = fails(phalanx.PoisonedError, dist.barrier)
    assert error.peer == 1


def rank_killed_in_call():
    rank, size = launch.join()
    # torchrun ends the others soon after, perhaps before they can say what they have heard.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pair = dist.new_group([0, size - 1])
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for call in (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(3), async_op=True).wait()):
        error = fails(phalanx.Error, call)
        assert error.peer == 1, vars(error)
    if pair is not dist.GroupMember.NON_GROUP_MEMBER:
        # A group without the dead rank goes on.
        dist.all_reduce(x := torch.ones(2), group=pair)
        assert x[0] == 2


def rank_mismatched():
    rank, _ = launch.join()
    error = fails(phalanx.MismatchError, lambda: dist.all_reduce(torch.ones(2)) if rank == 0 else dist.broadcast(torch.ones(2), 0))
    assert all(HERE in site for site in error.sites), error.sites


def rank_mismatched_sizes():
    rank, _ = launch.join()
    work = dist.all_gather_into_tensor(torch.zeros(2 * (rank + 1)), torch.zeros(rank + 1), async_op=True)
    error = fails(phalanx.MismatchError, work.wait)
    assert sorted(error.peers) == [0, 1] and not work.is_success() and isinstance(work.exception(), phalanx.MismatchError)
    try:
        work.get_future().wait()
    except RuntimeError as other:
        assert "MismatchError" in str(other), other
    else:
        raise AssertionError("the future has no error")


def rank_hanging():
    """Rank 1 does not come."""
    rank, _ = launch.join(timeout=2)
    if rank == 1:
        time.sleep(6)
        return
    error = fails(phalanx.TimeoutError, lambda: dist.all_reduce(torch.ones(1)))
    assert error.missing == [1] and isinstance(error, TimeoutError), vars(error)
    assert "timeout= of init_process_group" in str(error) and "PHALANX" not in str(error), error


def rank_patient():
    """Rank 0 waits for a time that is not enough, and waits again."""
    rank, _ = launch.join()
    if rank == 1:
        time.sleep(1)
        dist.barrier()
        return
    work = dist.barrier(async_op=True)
    try:
        work.wait(dist.distributed_c10d.timedelta(milliseconds=10))
    except dist.DistBackendError as error:
        assert isinstance(error, TimeoutError), error
    else:
        raise AssertionError("it did not wait")
    work.wait()


def rank_late():
    rank, _ = launch.join()
    if rank == 1:
        time.sleep(4)
        return
    error = fails(phalanx.TimeoutError, lambda: dist.monitored_barrier(timeout=dist.distributed_c10d.timedelta(seconds=1)))
    assert error.missing == [1], vars(error)


def rank_raising():
    rank, _ = launch.join()
    dist.barrier()
    if rank == 1:
        raise KeyError("no such batch")
    error = fails(phalanx.AbortedError, dist.barrier)
    assert error.peer == 1 and "no such batch" in error.reason and HERE in error.reason, error


def rank_leaving():
    """Rank 0, which started the job, is done long before the others, which go on."""
    rank, size = launch.join()
    others = dist.new_group(list(range(1, size)))
    if rank == 0:
        dist.destroy_process_group()
        return
    for _ in range(20):
        dist.all_reduce(torch.ones(1), group=others)
        time.sleep(0.05)
    dist.destroy_process_group()


class Failures(unittest.TestCase):
    def of(self, name, ranks, said, words="rank 1 (", launcher=launch.under_phalanx, ends_well=False, **env):
        """So many ranks have said what went wrong, with these words and a line of this program."""
        begun = time.monotonic()
        output, ended = launch.run(__file__, name, ranks, launcher, **env)
        self.assertLess(time.monotonic() - begun, 40, output)
        lines = [line.split("SAID ", 1)[1] for line in output.splitlines() if "SAID " in line]
        self.assertEqual(len(lines), said, output)
        self.assertTrue(all(words in line and HERE + ":" in line for line in lines if "Poisoned" not in line), output)
        self.assertNotIn("terminate called", output)
        self.assertNotIn("AssertionError", output)
        self.assertEqual(ended == 0, ends_well, output)
        return output

    def test_a_rank_that_is_killed_is_named_by_all_others(self):
        self.of("killed", 3, 2)
        for launcher in (launch.under_phalanx, launch.under_torchrun):
            self.of("killed_in_call", 3, 4, launcher=launcher)

    def test_ranks_that_disagree_hear_both_lines(self):
        for launcher in (launch.under_phalanx, launch.under_torchrun):
            self.of("mismatched", 2, 2, "broadcast", launcher, ends_well=True)
        self.of("mismatched_sizes", 2, 2, "all_gather", ends_well=True)

    def test_a_rank_that_does_not_come_is_named(self):
        for launcher in (launch.under_phalanx, launch.under_torchrun):
            self.of("hanging", 2, 1, launcher=launcher, ends_well=True)
        self.of("late", 2, 1, ends_well=True)
        self.of("patient", 2, 0, ends_well=True)

    def test_a_rank_that_ends_by_an_exception_tells_the_others_which(self):
        for launcher in (launch.under_phalanx, launch.under_torchrun):
            self.of("raising", 2, 1, "no such batch", launcher)

    def test_the_first_rank_may_leave_early(self):
        self.of("leaving", 3, 0, ends_well=True)


if __name__ == "__main__":
    launch.main(globals())
