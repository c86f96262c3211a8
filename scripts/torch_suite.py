"""PyTorch's own tests of its backends, over phalanx and over Gloo. `scripts/torch-suite` says how to run it."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

KNOWN = Path(__file__).with_name("torch_suite_known.txt")


def run(backend, path, names):
    """Runs the tests over one backend in this process and its children, and writes to `path` what became of each."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed

    import phalanx.torch

    if backend == "phalanx":
        for feature in ("ddp", "subgroup"):
            common_distributed.DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed import distributed_test

    calls = Path(os.environ["TEMP_DIR"]) / "calls"

    def counted(kind, name):
        original = getattr(kind, name)

        def method(self, *arguments, **named):
            with open(calls, "a") as file:
                file.write("x")
            return original(self, *arguments, **named)

        setattr(kind, name, method)

    # Each call of a backend in Python; of Gloo, those that Python makes.
    kind = phalanx.torch.Backend if backend == "phalanx" else dist.ProcessGroup
    for name in ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "all_gather_single", "allgather_coalesced", "gather", "scatter"):
        counted(kind, name)
    for name in ("reduce_scatter", "reduce_scatter_single", "alltoall", "all_to_all_single", "send", "recv", "recv_anysource", "barrier", "monitored_barrier"):
        counted(kind, name)

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Without this, the body of each test passes in the parent, and nothing was run.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def run_test(self, name, pipe):
            # Rank 0 empties the file when all ranks are there: the barriers around a test are none of its calls.
            if self.rank == 0:
                calls.write_text("")
            super().run_test(name, pipe)

    class Result(unittest.TestResult):
        ends = {}

        def note(self, test, end, words=""):
            self.ends[test.id().rsplit(".", 1)[-1]] = [end, words, calls.stat().st_size if calls.exists() else 0]
            Path(path).write_text(json.dumps(self.ends))

        def startTest(self, test):
            super().startTest(test)
            calls.unlink(missing_ok=True)

        def addSuccess(self, test):
            self.note(test, "passed")

        def addSkip(self, test, reason):
            self.note(test, "skipped", reason)

        def addFailure(self, test, error):
            self.note(test, "failed", str(error[1]))

        addError = addFailure

    loader = unittest.TestLoader()
    names = names or loader.getTestCaseNames(Suite)
    unittest.TestSuite(Suite(name) for name in names).run(Result())


def ends(backend, ranks, names):
    """What became of each test over a backend: `[end, words, calls]` by its name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ends.json"
        settings = {"BACKEND": backend, "WORLD_SIZE": str(ranks), "TEMP_DIR": folder, "INIT_METHOD": "env://", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "run", backend, str(path), *names]
        with open(Path(folder) / "output", "w") as output:
            env = {**os.environ, "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60", **settings}
            subprocess.run(command, env=env, stdout=output, stderr=subprocess.STDOUT, cwd=folder, check=False)
        return json.loads(path.read_text())


def known():
    """The tests that Gloo passes and phalanx does not, and why."""
    lines = [line.split(":", 1) for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, reason in lines}


def main(names):
    """Prints a table, and returns whether phalanx fails something that Gloo passes and that is not known."""
    reasons, unknown, missed = known(), {}, set()
    print("| | passed | passed without a call | failed | skipped |\n|---|---|---|---|---|")
    for ranks in (2, 3):
        of = {backend: ends(backend, ranks, names) for backend in ("gloo", "phalanx")}
        for backend, tests in of.items():
            counts = {kind: 0 for kind in ("passed", "idle", "failed", "skipped")}
            for end, _, calls in tests.values():
                counts["idle" if end == "passed" and not calls and backend == "phalanx" else end] += 1
            print(f"| {backend}, {ranks} ranks | " + " | ".join(map(str, counts.values())) + " |", flush=True)
        for name, (end, words, calls) in of["phalanx"].items():
            if of["gloo"].get(name, [""])[0] == "passed" and (end != "passed" or not calls):
                missed.add(name)
                if name not in reasons:
                    unknown[f"{name} on {ranks} ranks"] = f"{end}, {calls} calls: {words.strip().splitlines()[-1] if words.strip() else ''}"
    for name, words in unknown.items():
        print(f"Gloo passes {name}; phalanx: {words}")
    for name in () if names else sorted(set(reasons) - missed):
        print(f"phalanx passes {name} now: take it off {KNOWN.name}")
    return bool(unknown)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        sys.exit(main(sys.argv[1:]))
