"""How the ranks of a c10d group become a group of phalanx: through the store that c10d hands to each backend."""

import contextlib
import os
import socket
from pathlib import Path

from .._leaving import is_in_job_of_environment, join

#: Whether this process has joined the job of `phalanx run`, which it can do once.
_has_joined_the_launchers_job = False


def meet(store, rank, size, timeout):
    """The group of all ranks that have this store. `timeout` is that of c10d, in seconds. Collective among them."""
    global _has_joined_the_launchers_job
    # A store may be used again by the same processes, as when a program initialises a second time under torchrun.
    turn = store.add(f"phalanx/turn/{rank}", 1)
    key = f"phalanx/{turn}"
    limits = {"PHALANX_TIMEOUT_S": str(timeout), "PHALANX_INIT_TIMEOUT_S": str(timeout)}
    if rank == 0:
        store.set(f"{key}/way", "launcher" if _is_launched(rank, size) else "store")
    if store.get(f"{key}/way") == b"launcher":
        _has_joined_the_launchers_job = True
        return join(limits)
    return _meet_through(store, key, rank, size, limits)


def _is_launched(rank, size):
    """Whether this is the job of `phalanx run`, whose report says more about ranks that it knows."""
    ours = os.environ.get("PHALANX_RANK"), os.environ.get("PHALANX_WORLD_SIZE")
    return "PHALANX_LIFELINE" in os.environ and ours == (str(rank), str(size)) and not _has_joined_the_launchers_job and not is_in_job_of_environment()


def _meet_through(store, key, rank, size, limits):
    local_rank, local_world_size = _place(store, key, rank, size)
    variables = {
        **limits,
        "PHALANX_RANK": str(rank),
        "PHALANX_WORLD_SIZE": str(size),
        "PHALANX_LOCAL_RANK": str(local_rank),
        "PHALANX_LOCAL_WORLD_SIZE": str(local_world_size),
    }

    def share(words):
        if words is None:
            return store.get(f"{key}/words").decode()
        store.set(f"{key}/words", words)
        return words

    group = join(variables, share, "the store of torch.distributed")
    if rank == 0:
        # All have read the secret. Some stores can't forget.
        with contextlib.suppress(RuntimeError):
            store.delete_key(f"{key}/words")
    return group


def _place(store, key, rank, size):
    """This rank among those on its host, and how many these are."""
    known = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    if known[:2] == [str(rank), str(size)] and None not in known:
        return known[2], known[3]
    store.set(f"{key}/host/{rank}", _host())
    hosts = [store.get(f"{key}/host/{other}") for other in range(size)]
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


def _host():
    """What only the processes of this host say."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"
