"""``python -m phalanx run -n 4 train.py`` is the command ``phalanx run -n 4 python train.py`` of this environment."""

import os
import sys
import sysconfig
from pathlib import Path


def command():
    """Where the command `phalanx` of this environment is."""
    schemes = ["posix_user"] if "posix_user" in sysconfig.get_scheme_names() else []
    folders = [sysconfig.get_path("scripts"), *(sysconfig.get_path("scripts", scheme) for scheme in schemes), Path(sys.executable).parent]
    for folder in folders:
        path = Path(folder) / "phalanx"
        if path.exists():
            return path
    raise SystemExit(f"phalanx: the command is in none of {', '.join(map(str, folders))}: install the package with pip")


def words(arguments):
    """The command's arguments: a program whose name ends in .py is run by this interpreter."""
    if arguments[:1] != ["run"]:
        return arguments
    for at, word in enumerate(arguments):
        if word.endswith(".py") and Path(word).exists():
            return [*arguments[:at], sys.executable, *arguments[at:]]
    return arguments


if __name__ == "__main__":
    path = command()
    os.execv(path, [str(path), *words(sys.argv[1:])])
