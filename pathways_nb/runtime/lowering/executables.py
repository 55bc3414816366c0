"""Executables, cached by content and devices: running a cell again compiles nothing.

A node is looked up twice. Its traced shape finds repeats of a call inside one program without lowering them. The text
it lowers to finds the same code in a cell that runs again, whose functions are new objects each time. Compiling is
recorded, and shown to the user once it has taken two seconds.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from pathways_nb.cost.model import NodeCost
from pathways_nb.program.build import Code
from pathways_nb.program.emit import digest, emit, has_callbacks, out_shardings, shape_key
from pathways_nb.trace.record import Label, Record, Row
from pathways_nb.util.fallbacks import fall_back
from pathways_nb.util.waiting import Promise, Workers

Clock = Callable[[], float]

_lowering = threading.Lock()


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled node, to be called with arrays on its devices; in the simulator, an estimate that stands for one."""

    call: jax.stages.Compiled | None
    """``None`` in the simulator."""
    out_shardings: tuple[Any, ...]
    flops: float
    temporary: int
    """Bytes per device that it needs beyond inputs and outputs."""
    reused: int
    """Bytes per device of outputs that lie in memory taken over from inputs."""
    code: Code | None
    """Kept only for host callbacks, which the fingerprint names by identity; otherwise it would keep places alive."""
    cost: NodeCost | None = None
    """Only in the simulator: its estimated cost."""


@dataclass(frozen=True)
class CompileRequest:
    """What to compile: a node's code, its devices, and how its inputs arrive."""

    code: Code
    mesh: Mesh
    structs: tuple[jax.ShapeDtypeStruct, ...]
    arriving: tuple[Any, ...]
    donated: tuple[int, ...]
    label: Label

    def key(self) -> Hashable:
        """Return a key that is equal for requests with the same executable, within one trace."""
        return shape_key(self.code), self.mesh, self.arriving, self.donated, self.structs


class Executables:
    """The cache of executables of this process; a few threads compile, since XLA releases Python's lock meanwhile."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self._compiled: dict[tuple[str, tuple[tuple[str, int], ...]], Promise[Executable]] = {}
        self._lock = threading.Lock()
        self._pool = Workers("pathways-compile", max(2, min(8, os.cpu_count() or 1)))

    def get(self, request: CompileRequest, record: Record) -> Promise[Executable]:
        """Lower the node, and compile it unless the same text was compiled for the same devices.

        Returns:
            A promise of the executable.
        """
        return self._pool.submit(self._get, request, record)

    def _get(self, request: CompileRequest, record: Record) -> Executable:
        start = self.clock()
        lowered, options = _lower(request), sorted(request.code.compiler_options.items())
        devices = tuple((device.platform, device.id) for device in request.mesh.devices.flat)
        key = (digest(request.code, lowered.as_text(), _types(lowered), repr(options)), devices)
        middle = self.clock()
        record.add(Row(_relabel(request.label, "lower"), start, middle, quality="exact"))
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                ours = self._compiled[key] = Promise()
        if found is not None:
            return found.result()
        try:
            ours.set_result(_compile(lowered, request))
        except BaseException as error:
            ours.set_exception(error)
            with self._lock:
                del self._compiled[key]
            raise
        record.add(Row(_relabel(request.label, "compile"), middle, self.clock(), quality="exact"))
        return ours.result()


def _lower(request: CompileRequest) -> Any:
    node = jitted(request)
    with quietly():
        return node.lower(*request.structs)


def jitted(request: CompileRequest) -> Any:
    """Return the node as a jitted function of its inputs, not traced yet."""
    node = emit(request.code, request.mesh, request.arriving)
    return jax.jit(
        node,
        in_shardings=request.arriving,
        out_shardings=out_shardings(request.code, request.mesh),
        donate_argnums=request.donated,
        keep_unused=True,
    )


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Lower in this block, one thread at a time, without the warning about donated memory that is of no use.

    The filters are the whole process's: threads that changed them at once would restore each other's.

    Yields:
        Nothing.
    """
    with _lowering, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def _types(lowered: Any) -> str:
    """Return the types of inputs and outputs: a typed PRNG key and its bare numbers lower to the same text."""
    return repr(
        [
            (leaf.dtype, getattr(leaf, "weak_type", False))
            for leaf in jax.tree.leaves((lowered.in_avals, lowered.out_info))
        ]
    )


def _compile(lowered: Any, request: CompileRequest) -> Executable:
    compiled = lowered.compile(request.code.compiler_options or None)
    shardings = tuple(jax.tree.leaves(compiled.output_shardings))
    cost = compiled.cost_analysis() or {}
    flops = float(cost.get("flops", 0.0)) * request.mesh.size
    temporary, reused = memory_of(compiled)
    kept = request.code if has_callbacks(request.code) else None
    return Executable(compiled, shardings, max(flops, 0.0), temporary, reused, kept)


def memory_of(compiled: Any) -> tuple[int, int]:
    """Return the temporary and the reused bytes per device; 0 where a backend does not report them."""
    found, reason = None, None
    try:
        found = compiled.memory_analysis()
    except Exception as error:  # of whatever class a backend without it raises
        reason = error
    if found is None:
        fall_back(
            "The memory that compiled programs need while they run cannot be read here",
            reason,
            "Only inputs, intermediates and results are counted, so peaks and limits of memory are too low.",
        )
        return 0, 0
    return found.temp_size_in_bytes, found.alias_size_in_bytes


def _relabel(label: Label, kind: str) -> Label:
    return Label(kind, label.name, label.program, label.client, label.node, label.place, line=label.line)
