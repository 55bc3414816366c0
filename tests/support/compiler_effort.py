"""How tests compile: with little effort, since most of their time is XLA's, and once for all runs on this machine.

Executables are kept in ``build/jax-cache``, in a folder for each version of JAX and processor; JAX's own key of an
executable has its text and the options. The key leaves out names and lines of the source, so a test that reads those,
or memory, fusions or seconds of compiled code, asks for the fixture ``usual_effort``: there XLA compiles as it does for
a user. ``PATHWAYS_USUAL_EFFORT=1`` has all tests compile like that.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Options of XLA that save most of its time."""
USUAL: dict[str, Any] = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
"""The same as XLA has them by itself."""
FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
CACHES = Path(__file__).parents[2] / "build" / "jax-cache"
KEEPING = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
"""Keep small executables too."""


def prepare() -> None:
    """Set the environment of this process and of all that tests start; before JAX is imported."""
    if os.environ.get("PATHWAYS_USUAL_EFFORT") == "1":
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # nothing that an earlier run has kept
        return
    assert "jax" not in sys.modules, "too late: JAX has read its environment"
    folder = CACHES / _machine()
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(folder), **KEEPING}
    given = os.environ.get("XLA_FLAGS", "")
    if FLAGS not in given and _is_known(folder / "flags"):  # a worker of pytest has them from its parent
        os.environ["XLA_FLAGS"] = f"{given} {FLAGS}".strip()


def _machine() -> str:
    """Return a name of what decides whether compiled code can be taken over."""
    try:
        features = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):  # not Linux, or not x86
        features = platform.processor()
    key = f"{version('jax')} {version('jaxlib')} {platform.machine()} {features}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _is_known(noted: Path) -> bool:
    """Return whether this XLA knows the flags, which is tried once: it ends a process over one that it does not."""
    if noted.exists() and noted.read_text().startswith(FLAGS):
        return noted.read_text().endswith("known")
    tried = subprocess.run(
        [sys.executable, "-c", "import jax; jax.jit(lambda x: x)(0)"],
        env={**os.environ, "XLA_FLAGS": FLAGS}, capture_output=True, text=True,
    )  # fmt: skip
    known = tried.returncode == 0
    if known or "nknown flag" in tried.stderr:  # else it failed for another reason, and is tried again
        noted.parent.mkdir(parents=True, exist_ok=True)
        (made := noted.with_suffix(f".{os.getpid()}")).write_text(f"{FLAGS}\n{'known' if known else 'refused'}")
        made.rename(noted)
    return known


@contextmanager
def usual_environment() -> Iterator[None]:
    """What is started in this block compiles as for a user."""
    with mock.patch.dict(os.environ):
        for name in ("JAX_COMPILATION_CACHE_DIR", *KEEPING):
            os.environ.pop(name, None)
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "").replace(FLAGS, "").strip()
        yield


@contextmanager
def usual_effort() -> Iterator[None]:
    """What this process compiles in the block is optimised as for a user, and has names and lines of this source.

    This holds for what is compiled by ``Lowered.compile``, as nodes are; a jitted function that is called is not.
    """
    import jax

    from pathways_nb.attach.local_attach import executables  # what is there was compiled with little effort

    compile = jax.stages.Lowered.compile
    options: dict[str, Any] = USUAL if FLAGS in os.environ.get("XLA_FLAGS", "") else {}

    def compile_usually(lowered: Any, compiler_options: Any = None, **rest: Any) -> Any:
        return compile(lowered, {**options, **(compiler_options or {})} or None, **rest)

    with (
        mock.patch.object(jax.stages.Lowered, "compile", compile_usually),
        mock.patch.dict(executables._compiled, clear=True),
    ):
        jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_include_metadata_in_key", False)
