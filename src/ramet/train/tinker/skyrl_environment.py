"""The environment of a SkyRL server: SkyRL pins other versions of transformers than ramet needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ramet.errors import ConfigError
from ramet.models.folders import cache_folder
from ramet.store.lock import exclusive_lock

VERSION = "0.3.0"
# torch first, at one version: pip then takes a CPU build where one is at hand. Clients from 0.25 on send what this
# server cannot read.
PACKAGES = (("torch==2.13.0",), (f"skyrl[tinker,jax]=={VERSION}", "tinker<0.25"))
COMPLETE = ".installed"  # a file in an environment that has everything

Say = Callable[[str], None]


def default_environment() -> Path:
    """Where `ramet backend serve --install` makes the environment, one per version of Python."""
    return cache_folder() / f"skyrl-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"


def find_python(given: Path | None, *, install: bool, say: Say) -> Path:
    """The Python that runs the server: the given one, or that of our own environment, made on request."""
    if given is not None:
        return _check_python(given)
    environment = default_environment()
    if not (environment / COMPLETE).is_file():
        if not install:
            raise ConfigError(
                "a SkyRL server needs an environment of its own: add --install to make one (2.2 GB, a few minutes), "
                f"or --python PATH of one that has skyrl[tinker,jax]=={VERSION}"
            )
        make_environment(environment, say=say)
    return environment / "bin" / "python"


def has_accelerator(python: Path) -> bool:
    """Whether JAX in this environment has a plugin for GPUs or TPUs; without one it computes on the CPU."""
    code = "from importlib.util import find_spec; print(any(map(find_spec, ('jax_plugins', 'libtpu'))))"
    own = os.environ | {"PYTHONPATH": ""}  # as the server is started
    done = subprocess.run([str(python), "-c", code], env=own, capture_output=True, text=True, check=False)
    return done.stdout.strip() == "True"


def make_environment(folder: Path, *, say: Say) -> None:
    """A virtual environment with the packages of the server. One that was interrupted is completed."""
    say(f"installing skyrl {VERSION} into {folder} (2.2 GB, a few minutes)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from None
    python = str(folder / "bin" / "python")
    with exclusive_lock(folder):
        _run([sys.executable, "-m", "venv", str(folder)], say)
        for packages in PACKAGES:
            _run([python, "-m", "pip", "install", "--quiet", *packages], say)
        (folder / COMPLETE).touch()


def _run(command: list[str], say: Say) -> None:
    say(" ".join(command))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise ConfigError(f"cannot install the server: {' '.join(errors[-2:])}")


def _check_python(python: Path) -> Path:
    """A Python that has skyrl, of the version whose wire and behaviour ramet knows."""
    code = "from importlib.metadata import version; print(version('skyrl'))"
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"cannot run {python}: {error.strerror}") from None
    if done.returncode:
        raise ConfigError(f"{python} has no skyrl: {python} -m pip install 'skyrl[tinker,jax]=={VERSION}'")
    if (found := done.stdout.strip()) != VERSION:
        raise ConfigError(f"{python} has skyrl {found}; this command starts {VERSION}")
    return python
