"""Estimates of long nodes on disk: a second kernel reads what the first one found, and lowers and prices nothing.

The key is all that an estimate follows from: the node with its layouts, its devices, the cost model, the versions of
JAX and of the compiler, and the sources of the rooms that estimate, so that a changed formula answers anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

import pathways_datasets
from pathways_nb import cost
from pathways_nb.compilers import disk_cache
from pathways_nb.cost.launch.launch_forms import LAUNCH
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.cost.model import NodeCost
from pathways_nb.jaxpr.jaxpr_digest import is_of_this_process
from pathways_nb.runtime.lowering.executables import CompileRequest, Executable
from pathways_nb.util.json_forms import Form, list_of, optional, record, row
from pathways_nb.util.json_text import DamagedError, Field

T = TypeVar("T")
_ROOMS = ("cost", "compilers", "jaxpr", "plan", "timing", "trace", "program", "runtime/sim", "adopt")
"""The packages that estimates come from."""


@dataclass(frozen=True, eq=False)
class _Estimate:
    """What is kept of a node.

    Args:
        flops: of all devices.
        temporary: bytes per device beyond inputs and outputs.
        reused: bytes per device of outputs in memory of donated inputs.
        cost: its seconds.
        specs: the layout of each output.
        launch: its operations.
    """

    flops: float
    temporary: int
    reused: int
    cost: NodeCost
    specs: tuple[PartitionSpec, ...]
    launch: OpenedLaunch


_ENTRY: Form[str | tuple[str, ...]] = Form(
    lambda field: field.text() if isinstance(field.value, str) else field.texts()
)
_SPEC = Form(lambda field: PartitionSpec(*list_of(optional(_ENTRY)).read(field)), list)
_COST = row(NodeCost._make, *(Field.number,) * 4, Field.text, Field.text)
_ESTIMATE = record(
    _Estimate,
    flops=Field.number,
    temporary=Field.whole,
    reused=Field.whole,
    cost=_COST,
    specs=list_of(_SPEC),
    launch=LAUNCH,
)


def digest_of(key: Hashable) -> str:
    """Return the name under which an estimate is kept; empty where its key says nothing in another process.

    Args:
        key: all that it follows from besides versions; its text counts.
    """
    text = repr(key)
    if is_of_this_process(text):
        return ""
    return disk_cache.key_of({"jax": jax.__version__, "sources": _sources()}, text.encode())


def read_as(form: Form[T], digest: str) -> T | None:
    """Return what was kept under a name; None if nothing was, or it is damaged.

    Args:
        form: of what was kept.
        digest: the name; nothing is found under an empty one.
    """
    found = disk_cache.read(digest) if digest else None
    try:
        return None if found is None else form.read(Field(found))
    except DamagedError:
        return None


def read(digest: str, request: CompileRequest) -> Executable | None:
    """Return the estimate that was kept under a name; None if there is none, or it is damaged.

    Args:
        digest: the name; nothing is found under an empty one.
        request: the node.
    """
    kept = read_as(_ESTIMATE, digest)
    if kept is None:
        return None
    outputs = tuple(NamedSharding(request.mesh, spec) for spec in kept.specs)
    return Executable(None, outputs, kept.flops, kept.temporary, kept.reused, None, kept.cost, kept.launch)


def write(digest: str, made: Executable) -> None:
    """Keep an estimate under a name; nothing is kept under an empty one."""
    if digest and made.cost is not None and made.opened is not None:
        specs = tuple(one.spec for one in made.out_shardings)
        kept = _Estimate(made.flops, made.temporary, made.reused, made.cost, specs, made.opened)
        disk_cache.write(digest, _ESTIMATE.write(kept))


@cache
def _sources() -> str:
    """Return a digest of the code that estimates."""
    package = Path(cost.__path__[0]).parent
    found = hashlib.sha256()
    tables = sorted(Path(pathways_datasets.__path__[0]).glob("*.json"))
    for path in [*sorted(path for room in _ROOMS for path in (package / room).rglob("*.py")), *tables]:
        found.update(path.read_bytes())
    return found.hexdigest()
