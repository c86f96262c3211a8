"""What ranks hear when one of them fails, and that nobody hangs."""

import os
import pickle
import signal
import sys
import threading
import time
import unittest

import job
import numpy as np
import phalanx


def say(group, *words):
    print("SAID", group.rank, *words, flush=True)


def fails(group, kind, call):
    """The error of this kind that a call raises."""
    try:
        call()
    except kind as error:
        say(group, type(error).__name__, error)
        return error
    raise AssertionError(f"rank {group.rank}: no {kind.__name__}")


# A rank that ends after a collective also ends it on those that are still in it. So on the others this collective fails, or the next.


def rank_killed(group):
    x = np.ones(1000)
    if group.rank == 1:
        group.all_reduce(x)
        os.kill(os.getpid(), signal.SIGKILL)
    error = fails(group, phalanx.PeerLostError, lambda: [group.all_reduce(x) for _ in range(1000)])
    assert error.peer == 1 and error.rank == group.rank and error.op == "all_reduce" and "SIGKILL" in error.how, vars(error)
    assert error.site.startswith(__file__) and not error.group_is_usable
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.peer == 1 and type(again) is phalanx.PeerLostError
    assert fails(group, phalanx.PoisonedError, group.barrier).peer == 1
    work = error and fails(group, phalanx.Error, lambda: group.barrier(async_op=True).wait())
    assert work.peer == 1


def rank_mismatched(group):
    lengths = np.ones(2 + group.rank)
    error = fails(group, phalanx.MismatchError, lambda: group.all_reduce(lengths))
    assert sorted(error.peers) == [0, 1] and all(site.startswith(__file__) for site in error.sites)


def rank_raising(group):
    if group.rank == 1:
        group.barrier()
        time.sleep(0.2)
        raise KeyError("no such batch")
    error = fails(group, phalanx.AbortedError, lambda: [group.barrier() for _ in range(2)])
    assert error.peer == 1 and error.reason.startswith("KeyError: 'no such batch'") and "test_failures.py:" in error.reason, error


def rank_raising_in_library(group):
    if group.rank == 1:
        np.linalg.inv(np.zeros((2, 2)))
    error = fails(group, phalanx.AbortedError, group.barrier)
    assert error.reason.startswith("LinAlgError: Singular matrix (") and "test_failures.py:" in error.reason, error


def rank_init_twice(group):
    time.sleep(0.3 * group.rank)
    error = fails(group, phalanx.MisuseError, phalanx.init)
    assert "test_failures.py:" in str(error) and "job.py:" in str(error), error
    group.finalize()
    again = phalanx.init()
    again.barrier()


def rank_interrupted_in_new_group(group):
    if group.rank == 0:
        interrupt_soon(group)
        fails(group, KeyboardInterrupt, lambda: group.new_group([0, 1]))
        print("INTERRUPTED", flush=True)
    else:
        # Rank 0 waits for this one, which does not come.
        time.sleep(20)


def rank_misplaced_new_group(group):
    error = fails(group, phalanx.MisuseError, lambda: group.new_group([0, 7]))
    assert "test_failures.py:" in str(error), error


def rank_hanging(group):
    if group.rank == 1:
        time.sleep(10)
    error = fails(group, phalanx.TimeoutError, group.with_timeout(1).barrier)
    assert error.missing == [1] and isinstance(error, TimeoutError)


def rank_left(group):
    if group.rank == 1:
        group.barrier()
        return
    # Rank 1 has left in order when its program ended, without a word of it.
    error = fails(group, phalanx.PeerLostError, lambda: [group.barrier() for _ in range(2)])
    assert error.peer == 1 and "left" in error.how, error.how


def interrupt_soon(group):
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def rank_interrupted(group):
    if group.rank == 0:
        interrupt_soon(group)
        fails(group, KeyboardInterrupt, lambda: group.all_reduce(np.ones(3)))
    else:
        time.sleep(1)
        error = fails(group, phalanx.AbortedError, lambda: group.barrier())
        assert error.peer == 0 and error.reason == "KeyboardInterrupt", error


def rank_interrupted_in_wait(group):
    if group.rank == 0:
        interrupt_soon(group)
        work = group.all_reduce(np.ones(3), async_op=True)
        fails(group, KeyboardInterrupt, work.wait)
        # It goes on, and the program may wait again.
        work.wait()
    else:
        time.sleep(1)
        group.all_reduce(np.ones(3))


def rank_own_handler(group):
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    if group.rank == 0:
        interrupt_soon(group)
        group.barrier()
        assert heard == [1]
    else:
        time.sleep(1)
        group.barrier()


def rank_threads(group):
    """Two groups are used by two threads at once."""
    groups = [group.split(0), group.split(0)]

    def work(group, sums):
        for _ in range(200):
            x = np.ones(10)
            group.all_reduce(x)
            sums.append(x[0])

    sums = [[], []]
    threads = [threading.Thread(target=work, args=pair) for pair in zip(groups, sums)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sums == [[group.world_size] * 200] * 2


def rank_forked(group):
    group.barrier(async_op=True).wait()
    child = os.fork()
    if child == 0:
        try:
            group.barrier()
            os._exit(1)
        except phalanx.MisuseError as error:
            os._exit(0 if "forked" in str(error) else 2)
    assert os.waitpid(child, 0)[1] == 0
    group.barrier()


class Failures(unittest.TestCase):
    def of(self, name, ranks, code, said, flags=(), **env):
        """The job ends with this code, and so many ranks have said what went wrong."""
        output, ended = job.run(__file__, name, ranks, flags, **env)
        self.assertEqual(ended, code, output)
        lines = [line.split("SAID ", 1)[1] for line in output.splitlines() if "SAID " in line]
        self.assertEqual(len(lines), said, output)
        return lines, output

    def test_a_rank_that_is_killed_is_named_by_all_others(self):
        for env in ({}, {"PHALANX_BACKEND": "tcp"}):
            lines, output = self.of("killed", 3, 137, 2 * 3, **env)
            self.assertTrue(all("rank 1 (" in line for line in lines), output)

    def test_ranks_that_disagree_hear_both_lines(self):
        self.of("mismatched", 2, 0, 2)

    def test_a_rank_that_ends_by_an_exception_tells_the_others_which(self):
        lines, output = self.of("raising", 3, 1, 2)
        self.assertTrue(all("KeyError: 'no such batch'" in line for line in lines), output)
        self.assertIn("first cause: rank 1", output)

    def test_the_place_of_an_exception_is_a_line_of_the_program(self):
        self.of("raising_in_library", 2, 1, 1)

    def test_a_second_init_is_refused_on_all_ranks(self):
        self.of("init_twice", 2, 0, 2)

    def test_a_refused_new_group_names_the_programs_line(self):
        self.of("misplaced_new_group", 2, 0, 2)

    def test_ctrl_c_ends_new_group(self):
        started = job.start(__file__, "interrupted_in_new_group", 2)
        try:
            seen = next(line for line in started.stdout if "INTERRUPTED" in line or "Error" in line)
            self.assertIn("INTERRUPTED", seen)
            # The other rank still sleeps.
            self.assertIsNone(started.poll())
        finally:
            started.terminate()
            started.communicate(timeout=60)

    def test_a_rank_that_does_not_come_is_named(self):
        self.of("hanging", 2, 0, 2)

    def test_a_program_that_ends_has_left_in_order(self):
        self.of("left", 2, 0, 1)

    def test_ctrl_c_ends_a_call_that_waits(self):
        lines, output = self.of("interrupted", 2, 0, 2)
        self.assertTrue(any("KeyboardInterrupt" in line for line in lines), output)

    def test_ctrl_c_ends_a_wait_and_not_the_operation(self):
        self.of("interrupted_in_wait", 2, 0, 1)

    def test_a_handler_of_the_programs_own_decides_for_itself(self):
        self.of("own_handler", 2, 0, 0)

    def test_threads_use_groups_of_their_own_at_once(self):
        job.passes(self, __file__, "threads", 2)

    def test_a_forked_process_is_told_that_the_group_is_not_its(self):
        job.passes(self, __file__, "forked", 2)


if __name__ == "__main__":
    job.main(globals()) if len(sys.argv) > 1 and f"rank_{sys.argv[1]}" in globals() else unittest.main()
