"""The build of the wheel: maturin's, with the command `phalanx` put into it. So `pip install` of this folder brings both."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

from maturin import *  # noqa: F403 the hooks that are as maturin's
import maturin

HERE = Path(__file__).resolve().parent


def data_folder():
    """The wheel's folder of commands, which maturin wants to exist for a source distribution too."""
    scripts = HERE / "phalanx.data" / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    return scripts


def build_command(config_settings):
    """Builds `phalanx` for the wheel's folder of scripts, as `-C build-args=…` says of the wheel itself."""
    arguments = shlex.split((config_settings or {}).get("build-args", "")) or ["--release"]
    cargo = ["cargo", "rustc", *arguments, "--locked", "--manifest-path", HERE.parent / "cli" / "Cargo.toml", "--bin", "phalanx", "--message-format", "json-render-diagnostics"]
    built = subprocess.run([*cargo, "--", "-C", "strip=symbols"], check=True, stdout=subprocess.PIPE, text=True)
    executable = next(path for line in built.stdout.splitlines() if (path := json.loads(line).get("executable")))
    shutil.copy2(executable, data_folder() / "phalanx")


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    data_folder()
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build_command(config_settings)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    data_folder()
    return maturin.build_sdist(sdist_directory, config_settings)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    build_command(config_settings)
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
