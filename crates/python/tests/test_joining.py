"""Ways to come together: a store that the program has, the launcher's variables, and none."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import job
import numpy as np
import phalanx


def through(folder, rank, size, broken=False):
    """A rank whose words go through a file."""

    def share(words):
        path = Path(folder) / "words"
        if broken:
            raise OSError("the store is closed")
        if words is not None:
            (Path(folder) / "new").write_text(words)
            os.rename(Path(folder) / "new", path)
            return words
        while not path.exists():
            time.sleep(0.01)
        return path.read_text()

    variables = {"PHALANX_RANK": rank, "PHALANX_WORLD_SIZE": size, "PHALANX_LOCAL_RANK": rank, "PHALANX_LOCAL_WORLD_SIZE": size, "PHALANX_INIT_TIMEOUT_S": 30}
    return phalanx.join({name: str(value) for name, value in variables.items()}, share, "the test's folder")


def joined(folder, rank, size):
    group = through(folder, rank, size)
    x = np.array([float(rank)])
    group.all_reduce(x)
    assert x[0] == sum(range(size)) and "secret" not in repr(group)


def refused(folder, rank, size):
    try:
        through(folder, rank, size, broken=True)
    except phalanx.ConfigError as error:
        assert "the store is closed" in str(error) and "the test's folder" in str(error), error
    else:
        raise AssertionError("nothing was said")


def processes(target, size):
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=target, args=(folder, rank, size)) for rank in range(size)]
        [rank.start() for rank in ranks]
        [rank.join(60) for rank in ranks]
        return [rank.exitcode for rank in ranks]


class Joining(unittest.TestCase):
    def test_ranks_meet_through_a_channel_of_the_programs_own(self):
        self.assertEqual(processes(joined, 3), [0, 0, 0])

    def test_an_exception_of_that_channel_is_the_error(self):
        self.assertEqual(processes(refused, 1), [0])

    def test_a_process_without_a_launcher_is_a_group_of_one(self):
        words = "import phalanx; g = phalanx.init(); g.barrier(); print(g.world_size, repr(g), phalanx.__version__)"
        done = subprocess.run([sys.executable, "-c", words], text=True, capture_output=True, timeout=60)
        self.assertEqual(done.stdout.split()[0], "1", done)

    def test_variables_that_make_no_sense_are_named(self):
        with self.assertRaisesRegex(phalanx.ConfigError, "RANK is set, but WORLD_SIZE is not"):
            phalanx.join({"RANK": "3"})

    def test_the_module_is_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "train.py"
            program.write_text("import phalanx; g = phalanx.init(); print('rank', g.rank, 'of', g.world_size)")
            command = [sys.executable, "-m", "phalanx", "run", "-n", "2", str(program)]
            done = subprocess.run(command, text=True, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("rank 1 of 2", done.stdout)
            version = subprocess.run([job.PHALANX, "--version"], text=True, capture_output=True, timeout=60)
            self.assertEqual(version.stdout.split()[-1], phalanx.__version__)


if __name__ == "__main__":
    unittest.main()
