"""The packages with XLA's compilers for GPUs and TPUs: which ones fit the installed JAX, where they lie, installing.

They are installed into a folder below ``$XDG_DATA_HOME`` (else ``~/.local/share``), one for each version of jaxlib, and
only the process that compiles sees that folder. Inside the environment of a user, JAX would find them as plug-ins: its
first call would look for chips, print warnings about the missing ones, and take a second longer.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from pathways_nb.errors import UsageError
from pathways_nb.util.progress import show_progress

CompilerKind = Literal["gpu", "tpu"]


class Package(NamedTuple):
    """A compiler's package.

    Args:
        extra: of JAX, which names the version that fits it.
        name: of the distribution.
        module: that it installs.
        megabytes: on disk, rounded.
    """

    extra: str
    name: str
    module: str
    megabytes: int


PACKAGES: dict[CompilerKind, Package] = {
    "gpu": Package("cuda13-local", "jax-cuda13-plugin", "jax_cuda13_plugin", 400),
    "tpu": Package("tpu", "libtpu", "libtpu", 680),
}


def requirement(kind: CompilerKind) -> str:
    """Return the requirement, such as ``"libtpu==0.0.42.*"``, by which the installed JAX pins a compiler's package.

    Raises:
        UsageError: this version of JAX names none.
    """
    package = PACKAGES[kind]
    for line in importlib.metadata.requires("jax") or ():
        wanted, _, condition = line.partition(";")
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", condition)
        if extra and extra[1] == package.extra and re.match(rf"{re.escape(package.name)}\b(?!-)", wanted.strip()):
            return wanted.strip()
    raise UsageError(
        f"JAX {importlib.metadata.version('jax')} names no package {package.name} in its extra {package.extra}, so "
        f"it is not known which version fits; install JAX 0.10 or newer."
    )


def folder_of(kind: CompilerKind) -> Path:
    """Return the folder that a compiler's package is installed into, whether it is there or not."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "pathways_nb" / "compilers" / f"jaxlib-{importlib.metadata.version('jaxlib')}" / kind


def search_path(kind: CompilerKind) -> Path | None:
    """Return what the compiling process has to add to ``sys.path``, or None if nothing: the compiler is installed here.

    Raises:
        UsageError: the compiler is not there; the text names the command that installs it.
    """
    module = PACKAGES[kind].module
    if (folder_of(kind) / module).is_dir():
        return folder_of(kind)
    # On a machine with such chips the package is part of the user's environment.
    if importlib.util.find_spec(module) is not None:
        return None
    raise UsageError(f"the {kind.upper()} compiler is not installed. {how_to_install(kind)}")


def is_installed(kind: CompilerKind) -> bool:
    """Return whether a compiler is there."""
    try:
        search_path(kind)
    except UsageError:
        return False
    return True


def how_to_install(kind: CompilerKind) -> str:
    """Return one sentence that says how to get a compiler."""
    return (
        f"`python -m pathways_nb compilers install {kind}` installs it into a folder of its own (about "
        f"{PACKAGES[kind].megabytes} MB); it needs no {kind.upper()}."
    )


def version_of(kind: CompilerKind) -> str:
    """Return name and version of a compiler's package, such as ``"libtpu 0.0.42.1"``.

    Raises:
        UsageError: the compiler is not there.
    """
    found, name = search_path(kind), PACKAGES[kind].name
    places = sys.path if found is None else [str(found)]
    return f"{name} {next(iter(importlib.metadata.distributions(name=name, path=places))).version}"


def install(kind: CompilerKind, say: Callable[[str], object] = show_progress) -> Path:
    """Install a compiler's package.

    Args:
        kind: the compiler.
        say: is called with each line of progress.

    Returns:
        The folder that it is in now.

    Raises:
        UsageError: it could not be installed; the text has the installer's last words.
    """
    wanted, folder = requirement(kind), folder_of(kind)
    making = folder.with_name(f"{kind}.{os.getpid()}")
    say(f"installing {wanted} into {folder}")
    command = [*_installer(), "--target", str(making), wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise UsageError(f"{wanted} could not be installed: {' '.join(said)}")
        # A folder that is there is whole: it is made under another name, and takes its own in one step.
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    say(f"{version_of(kind)} is installed")
    return folder


def _installer() -> list[str]:
    """Return the command of an installer: pip of this environment, else uv.

    Raises:
        UsageError: there is none.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise UsageError(f"neither pip nor uv is here; install pip into the environment of {sys.executable}.")
