"""Jobs of PyTorch's ranks for tests: a test's file is also the program of its ranks, in which a function `rank_NAME()` is what they do."""

import os
import socket
import subprocess
import sys
import sysconfig
from datetime import timedelta
from pathlib import Path

#: The command of this environment.
PHALANX = Path(sysconfig.get_path("scripts")) / "phalanx"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
#: Far more than any job here takes, in seconds.
LIMIT = 100
FOLDER = Path(__file__).resolve().parent


def under_phalanx(ranks):
    return [PHALANX, "run", "-n", str(ranks), "--grace", "2", sys.executable]


def under_torchrun(ranks):
    return [*TORCHRUN, str(ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]


def run(file, name, ranks, launcher=under_phalanx, **env):
    """The output of a job, and its exit code."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(FOLDER), **env}
    job = subprocess.Popen([*launcher(ranks), file, name], env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = job.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        job.kill()
        output, _ = job.communicate()
        raise AssertionError(f"rank_{name} of {file} hangs:\n{output}")
    return output, job.returncode


def passes(test, file, name, ranks, launcher=under_phalanx, **env):
    """Fails the test unless all ranks end well, without a word that no program said."""
    output, code = run(file, name, ranks, launcher, **env)
    test.assertEqual(code, 0, f"rank_{name} on {ranks} ranks {env}:\n{output}")
    return output


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def join(backend="phalanx", timeout=60, **options):
    """Joins the job that the launcher has started. Returns this rank and how many there are."""
    import torch
    import torch.distributed as dist

    import phalanx.torch  # noqa: F401 it registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **options)
    return dist.get_rank(), dist.get_world_size()


def main(functions):
    """What a test's file does as the program of a rank; otherwise its tests."""
    import unittest

    if len(sys.argv) > 1 and (function := functions.get(f"rank_{sys.argv[1]}")):
        function()
    else:
        unittest.main()
