#!/usr/bin/env python3
"""Lays phalanx beside its peers: TCP on loopback, all in one run, in turn.

    crates/bench/compare.py                                  # whoever is installed, 2 and 4 ranks, 4 B to 64 MiB
    crates/bench/compare.py --ops all_reduce --rounds 5 --csv new.csv
    crates/bench/compare.py --table old.csv                  # the table of a run that was kept

Needs Python 3.11 and cargo. Peers that are not installed are left out: Open MPI (mpicc.openmpi), MPICH (mpicc.mpich), Gloo alone
(g++ and libgloo-dev), and PyTorch's Gloo (--torch-python: an interpreter that can import torch).

Figures of different moments do not compare on a machine that does other things too. So in every round each operation is
measured by one library right after the other; a ratio is taken within a round, and the table shows the median of rounds.
Of a peer with several algorithms the fastest of each round counts.
No library pins its ranks to cores, and those that can yield while they wait do. A ratio below 1 means that phalanx took less time.
"""

import argparse
import csv
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
OPS = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "barrier"]
OURS = "phalanx"
# A case that hangs must not hang the comparison.
RUN_SECONDS_MAX = 900


def main():
    flags = parse_flags()
    if flags.table:
        print(table(csv.reader(flags.table.open())))
        return
    with tempfile.TemporaryDirectory() as build:
        libraries = build_all(Path(build), flags)
        rows = compare(libraries, flags)
    print(table(rows))


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=int, default=100, help="for each case in each round")
    parser.add_argument("--min-bytes", type=int, default=0)
    parser.add_argument("--max-bytes", type=int, default=64 << 20)
    parser.add_argument("--peers", nargs="+", help="only these: openmpi, mpich, gloo, torch-gloo")
    parser.add_argument("--torch-python", help="an interpreter with torch")
    parser.add_argument("--csv", type=Path, help="keep every line here")
    parser.add_argument("--table", type=Path, help="measure nothing; print the table of this file")
    return parser.parse_args()


class Library:
    """How to start the benchmark of one library."""

    def __init__(self, name, run):
        self.name, self.run = name, run


def build_all(build, flags):
    """Ours, and the peers that can be built here."""
    candidates = {"openmpi": openmpi, "mpich": mpich, "gloo": gloo, "torch-gloo": torch_gloo}
    wanted = flags.peers or candidates
    libraries = [ours()]
    for name, make in candidates.items():
        run = make(build, flags) if name in wanted else None
        if run:
            libraries.append(Library(name, run))
        elif name in wanted:
            print(f"{name}: not installed", file=sys.stderr)
    return libraries


def ours():
    command = ["cargo", "build", "--release", "--quiet", "--package", "phalanx-bench"]
    subprocess.run(command, check=True, cwd=HERE)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE / "../../target"))
    program = target / "release/phalanx-bench"

    def run(ranks, op, flags):
        limits = ["--min-bytes", str(flags.min_bytes), "--max-bytes", str(flags.max_bytes)]
        budget = ["--budget-ms", str(flags.budget_ms)]
        return output([[program, "--ranks", str(ranks), "--ops", op, "--peer", OURS, *limits, *budget]])

    return Library(OURS, run)


def common(flags, op, peer):
    """The flags that method.h reads."""
    return [str(flags.budget_ms), op, str(flags.min_bytes), str(flags.max_bytes), peer, "tcp"]


def compiled(compiler, source, program, *libraries):
    if not shutil.which(compiler):
        return False
    command = [compiler, "-O3", "-march=native", HERE / "peers" / source, "-o", program, *libraries]
    return subprocess.run(command).returncode == 0


def openmpi(build, _flags):
    program = build / "openmpi"
    if not compiled("mpicc.openmpi", "mpi.c", program, "-lm"):
        return None
    # Ranks above the number of cores are "slots" that do not exist; root is for containers.
    # No other library here pins its ranks to cores; Open MPI would, up to two of them.
    start = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    tcp = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def run(ranks, op, flags):
        return output([[*start, *tcp, "-n", str(ranks), program, *common(flags, op, "openmpi")]], [root])

    return run


def mpich(build, _flags):
    program = build / "mpich"
    if not compiled("mpicc.mpich", "mpi.c", program, "-lm"):
        return None
    tcp = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}

    def run(ranks, op, flags):
        return output([["mpiexec.mpich", "-n", str(ranks), program, *common(flags, op, "mpich")]], [tcp])

    return run


def gloo(build, _flags):
    program = build / "gloo"
    # Debian's Gloo takes references where upstream's takes shared pointers.
    for dialect in (["-DPSARG(x)=*x", "-DPSARG2(x)=*x"], []):
        if compiled("g++", "gloo.cc", program, *dialect, "-lgloo", "-lpthread"):
            break
    else:
        return None

    def run(ranks, op, flags):
        with tempfile.TemporaryDirectory() as store:
            envs = [rank_env(rank, ranks, STORE_DIR=store) for rank in range(ranks)]
            return output([[program, *common(flags, op, "gloo")]] * ranks, envs)

    return run


def torch_gloo(_build, flags):
    if not flags.torch_python:
        return None
    program = [flags.torch_python, HERE / "peers/torch_gloo.py"]

    def run(ranks, op, flags):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        envs = [rank_env(rank, ranks, **place) for rank in range(ranks)]
        return output([[*program, *common(flags, op, "torch-gloo")]] * ranks, envs)

    return run


def rank_env(rank, ranks, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), **more}


def output(commands, envs=None):
    """Runs the commands at the same time; returns the lines of CSV that the first of them printed."""
    envs = envs or [{}] * len(commands)
    running = []
    try:
        for command, env in zip(commands, envs):
            out = subprocess.PIPE if not running else subprocess.DEVNULL
            running.append(subprocess.Popen(command, env={**os.environ, **env}, stdout=out, text=True))
        text, _ = running[0].communicate(timeout=RUN_SECONDS_MAX)
        failed = [process.returncode for process in running if process.wait(timeout=60)]
    except subprocess.TimeoutExpired:
        text, failed = "", ["took too long"]
    finally:
        for process in running:
            process.kill()
            process.wait()
    if failed:
        print(f"failed: {' '.join(map(str, commands[0]))}: {failed[0]}", file=sys.stderr)
    return [line.split(",") for line in text.splitlines() if line.count(",") == 10]


def compare(libraries, flags):
    rows = []
    for number in range(flags.rounds):
        for ranks in flags.ranks:
            for op in flags.ops:
                # Nobody always comes first.
                turn = number % len(libraries)
                for library in libraries[turn:] + libraries[:turn]:
                    print(f"round {number + 1}, {ranks} ranks, {op}: {library.name}", file=sys.stderr)
                    rows += library.run(ranks, op, flags)
                if flags.csv:
                    flags.csv.write_text("".join(",".join(row) + "\n" for row in rows))
    return rows


def table(rows):
    """Markdown: for each operation and number of ranks, a line a size with our time, the peers', and the ratios."""
    times = rounds_of(rows)
    peers = sorted({peer for case in times.values() for peer in case} - {OURS})
    lines = []
    order = sorted({(OPS.index(op), op, world) for op, world, _ in times})
    for _, op, world in order:
        lines += [f"\n**{op}, {world} ranks**, median µs (ratio of {OURS} to the peer)\n"]
        lines += ["| bytes | " + " | ".join([OURS, *peers]) + " |", "|---" * (len(peers) + 2) + "|"]
        for size in sorted(size for o, w, size in times if (o, w) == (op, world)):
            case = times[op, world, size]
            cells = [shown(statistics.median(case[OURS]))] if OURS in case else ["–"]
            cells += [cell(case, peer) for peer in peers]
            lines.append(f"| {short(size)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rounds_of(rows):
    """{(op, world, size): {peer: [µs of the fastest algorithm in each round]}}"""
    by_algorithm = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for peer, transport, op, world, size, median, *_ in rows:
        by_algorithm[op, int(world), int(size)][peer][transport].append(float(median))
    return {
        case: {peer: [min(times) for times in zip(*algorithms.values())] for peer, algorithms in peers.items()}
        for case, peers in by_algorithm.items()
    }


def cell(case, peer):
    if peer not in case:
        return "–"
    text = shown(statistics.median(case[peer]))
    if OURS in case:
        ratio = statistics.median(mine / theirs for mine, theirs in zip(case[OURS], case[peer]))
        text += f" ({ratio:.2f})"
    return text


def shown(us):
    return f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def short(size):
    for unit, name in ((1 << 20, " MiB"), (1 << 10, " KiB")):
        if size >= unit:
            return f"{size // unit}{name}"
    return f"{size} B"


if __name__ == "__main__":
    main()
