"""Jobs of ranks for tests: a test's file is also the program of its ranks, in which a function `rank_NAME(group)` is what they do."""

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import phalanx

#: The command of this environment.
PHALANX = Path(sysconfig.get_path("scripts")) / "phalanx"
#: Far more than any job here takes, in seconds.
LIMIT = 120


def start(file, name, ranks, flags=(), **env):
    """Starts `rank_NAME` of a test's file on so many ranks."""
    command = [PHALANX, "run", "-n", str(ranks), "--grace", "2", *flags, sys.executable, file, name]
    env = {**os.environ, "PHALANX_TIMEOUT_S": "60", "PYTHONUNBUFFERED": "1", **env}
    return subprocess.Popen(command, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(file, name, ranks, flags=(), **env):
    """The output of the job, and its exit code."""
    job = start(file, name, ranks, flags, **env)
    try:
        output, _ = job.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        job.kill()
        output, _ = job.communicate()
        raise AssertionError(f"rank_{name} of {file} hangs:\n{output}")
    return output, job.returncode


def passes(test, file, name, ranks, flags=(), **env):
    """Fails the test unless all ranks end well."""
    output, code = run(file, name, ranks, flags, **env)
    test.assertEqual(code, 0, f"rank_{name} on {ranks} ranks {env}:\n{output}")
    return output


def main(functions):
    """What a test's file does as the program of a rank."""
    # A shell that runs the tests in the background has them ignore Ctrl-C, which ranks would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    function = functions[f"rank_{sys.argv[1]}"]
    function(phalanx.init())
