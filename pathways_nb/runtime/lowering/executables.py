"""Executables, cached by content and devices: running a cell again compiles nothing.

A node is looked up three times. Its traced shape finds repeats of a call inside one program without lowering them. The
text it lowers to finds the same code in a cell that runs again, whose functions are new objects each time. JAX's
persistent cache finds what an earlier kernel compiled, or this one for other devices (``compilers.kept_executables``).
Compiling is recorded, and shown to the user once it has taken two seconds.

Nodes are lowered by the thread that calls, under its contexts of JAX; only compiling is left to other threads.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pathways_nb.compilers import kept_executables
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.cost.model import NodeCost
from pathways_nb.program import jax_contexts
from pathways_nb.program.build import Code
from pathways_nb.program.emit import digest, emit, has_callbacks, out_shardings, shape_key
from pathways_nb.program.guarded_callbacks import KeptExceptions, LaunchToTheEnd
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.runtime.lowering.transfers import spread
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row
from pathways_nb.util.fallbacks import fall_back
from pathways_nb.util.waiting import Promise, Workers

Clock = Callable[[], float]

_UNCOUNTED = re.compile(r"stablehlo\.while|custom_call @(?!Sharding|SPMD|xla\.sdy)")
"""Operations of a lowered node that may take any time."""
_QUICKLY_MOVED = 4e6
"""Bytes that a processor moves in less than a millisecond."""
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
    opened: OpenedLaunch | None = None
    """Only in the simulator: its operations, where the compiler of the simulated chip has compiled it."""
    may_block: bool = False
    """Whether its call may take long, and does not only dispatch it."""


@dataclass(frozen=True)
class CompileRequest:
    """What to compile: a node's code, its devices, and how its inputs arrive."""

    code: Code
    mesh: Mesh | AbstractMesh
    """An abstract one where this process has no devices of the node's place."""
    structs: tuple[jax.ShapeDtypeStruct, ...]
    arriving: tuple[Any, ...]
    donated: tuple[int, ...]
    label: Label
    contexts: Contexts
    """JAX's contexts of the call."""

    def key(self) -> Hashable:
        """Return a key that is equal for requests with the same executable, within one trace."""
        return shape_key(self.code), self.mesh, self.arriving, self.donated, self.structs


class ExecutableMaker(Protocol):
    """Makes an executable of a node, or in the simulator an estimate that stands for one."""

    def get(self, request: CompileRequest, record: Record) -> Promise[Executable]:
        """Return a promise of the executable."""


class Executables:
    """The cache of executables of this process; a few threads compile, since XLA releases Python's lock meanwhile."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self._compiled: dict[tuple[str, tuple[tuple[str, int], ...], Contexts], Promise[Executable]] = {}
        self._lock = threading.Lock()
        self._pool = Workers("pathways-compile", max(2, min(8, os.cpu_count() or 1)))

    def get(self, request: CompileRequest, record: Record) -> Promise[Executable]:
        """Lower the node, and compile it unless the same text was compiled for the same devices.

        Returns:
            A promise of the executable.
        """
        # On a single device no collective waits for a callback that raises, so XLA may raise its exception itself.
        start, kept = self.clock(), KeptExceptions() if request.mesh.size > 1 else None
        lowered = _lower(request, kept)
        record.add(Row(_relabel(request.label, "lower"), start, self.clock(), quality="exact"))
        return self._pool.submit(self._get, lowered, kept, request, record)

    def forget(self, devices: Collection[Any]) -> None:
        """Forget what was compiled for some devices, which are lost: they come back without it."""
        gone = {(device.platform, device.id) for device in devices}
        with self._lock:
            for key in [key for key in self._compiled if not gone.isdisjoint(key[1])]:
                del self._compiled[key]

    def _get(self, lowered: Any, kept: KeptExceptions | None, request: CompileRequest, record: Record) -> Executable:
        jax_contexts.adopt(request.contexts)
        options = sorted(_options(request).items())
        devices = tuple((device.platform, device.id) for device in request.mesh.devices.flat)
        text = digest(request.code, lowered.as_text(), _types(lowered), repr(options))
        key = text, devices, request.contexts
        with self._lock:
            # Only the look-up is under the lock: threads compile different nodes at once, and equal ones wait for the
            # promise.
            found = self._compiled.get(key)
            if found is None:
                made = self._compiled[key] = Promise()
        if found is not None:
            return found.result()
        # All virtual devices are alike: what was compiled for some is loaded for others.
        same = (text, len(devices), request.contexts) if devices[0][0] == "cpu" else None
        try:
            with kept_executables.turn(same):
                start = self.clock()
                made.set_result(_compile(lowered, kept, request, same))
                end = self.clock()
        except BaseException as error:
            # Whoever waits for the promise fails, too. The failure is not cached: the next call compiles again.
            made.set_exception(error)
            with self._lock:
                self._compiled.pop(key, None)
            raise
        record.add(Row(_relabel(request.label, "compile"), start, end, quality="exact"))
        return made.result()


def _options(request: CompileRequest) -> dict[str, Any]:
    return request.code.options_on(request.mesh.devices.flat[0].platform)


def _lower(request: CompileRequest, kept: KeptExceptions | None) -> Any:
    node = jitted(request, kept)
    return quietly(lambda: node.lower(*request.structs))


def jitted(request: CompileRequest, kept: KeptExceptions | None = None) -> Any:
    """Return the node as a jitted function of its inputs, not traced yet; ``kept`` takes exceptions of callbacks."""
    node = emit(request.code, request.mesh, request.arriving, kept=kept)
    return jax.jit(
        node,
        in_shardings=request.arriving,
        out_shardings=out_shardings(request.code, request.mesh),
        donate_argnums=request.donated,
        keep_unused=True,
    )


def quietly(lower: Callable[[], Any]) -> Any:
    """Return what ``lower`` returns, one thread at a time, without the warning about donated memory that is of no use.

    The filters are the whole process's: threads that changed them at once would restore each other's. It is no context
    manager of this package, whose generator an interrupt could leave with the lock.
    """
    with _lowering, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        return lower()


def _types(lowered: Any) -> str:
    """Return the types of inputs and outputs: a typed PRNG key and its bare numbers lower to the same text."""
    return repr(
        [
            (leaf.dtype, getattr(leaf, "weak_type", False))
            for leaf in jax.tree.leaves((lowered.in_avals, lowered.out_info))
        ]
    )


def _compile(lowered: Any, kept: KeptExceptions | None, request: CompileRequest, same: Hashable) -> Executable:
    compiled = accept_small_elements(kept_executables.compiled(lowered, _options(request), same))
    # Outputs that callbacks leave on the first device count as replicated: ``_Spread`` copies them to the others.
    whole = NamedSharding(request.mesh, PartitionSpec())
    found = jax.tree.leaves(compiled.output_shardings)
    shardings = tuple(whole if is_on_one(sharding, request.mesh) else sharding for sharding in found)
    on_one = [at for at, sharding in enumerate(found) if sharding is not shardings[at]]
    cost = compiled.cost_analysis() or {}
    # XLA counts what one device computes.
    flops = float(cost.get("flops", 0.0)) * request.mesh.size
    temporary, reused = memory_of(compiled)
    code = request.code if has_callbacks(request.code) else None
    call: Any = LaunchToTheEnd(compiled, kept) if kept is not None and kept.guards else compiled
    call = _Spread(call, on_one, whole) if on_one else call
    may_block = code is not None or computes_in_its_call(lowered.as_text, cost, request.mesh)
    return Executable(call, shardings, max(flops, 0.0), temporary, reused, code, may_block=may_block)


def computes_in_its_call(text: Callable[[], str], cost: Mapping[str, float], mesh: Mesh | AbstractMesh) -> bool:
    """Return whether XLA may take a long node for a short one, which its CPU client computes in the calling thread.

    What has few operations is short to it. It counts a loop's body once, a library's routine and moved bytes not at
    all.

    Args:
        text: returns the lowered node.
        cost: what the compiler's analysis of it says.
        mesh: its devices.
    """
    if mesh.size > 1 or mesh.devices.flat[0].platform != "cpu":
        return False
    return _UNCOUNTED.search(text()) is not None or cost.get("bytes accessed", 0.0) > _QUICKLY_MOVED


@dataclass(frozen=True, eq=False)
class _Spread:
    """A compiled node of which some outputs lie on one device: they are copied to the others.

    XLA could do that in the node itself, by a collective. But a callback that raises on the first device would leave
    the others waiting in it, and XLA ends the process.
    """

    compiled: Any
    on_one: Sequence[int]
    """Positions of those outputs."""
    target: NamedSharding

    def __call__(self, *inputs: Any) -> list[Any]:
        """Launch it."""
        arrays = list(self.compiled(*inputs))
        for at in self.on_one:
            arrays[at] = spread(arrays[at], self.target)
        return arrays

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)


def is_on_one(sharding: Any, mesh: Mesh | AbstractMesh) -> bool:
    """Return whether the compiler has left an output on the first of several devices.

    It does so with what a host callback returns (``maximal``): the other devices' memory is undefined. JAX calls such a
    sharding replicated, too, but names a truly replicated one by the axes of the mesh.
    """
    return mesh.size > 1 and not isinstance(sharding, NamedSharding) and sharding.is_fully_replicated


def accept_small_elements(compiled: jax.stages.Compiled) -> jax.stages.Compiled:
    """Let an executable take arrays of elements smaller than a byte, such as int4, as ``jax.jit`` does.

    The layout that compiling reports for them names the bits of an element, that of every array names none, and JAX's
    check of an executable's arguments takes the two for different. So such a layout is left out of the check.

    Returns:
        The same executable.
    """
    inner = getattr(compiled, "_executable", None)
    layouts = getattr(inner, "_xla_in_layouts", ())  # private: where it is missing, JAX's own error remains
    if any(getattr(one, "sub_byte_element_size_in_bits", 0) for one in layouts):
        kept = [None if getattr(one, "sub_byte_element_size_in_bits", 0) else one for one in layouts]
        inner._xla_in_layouts = kept  # type: ignore[union-attr]
    return compiled


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
