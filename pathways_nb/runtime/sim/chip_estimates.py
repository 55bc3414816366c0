"""Estimates of nodes from what their chip's own compiler makes of them: seconds, memory, layouts, and the ops inside.

A compiled node is priced by the constants of its chip (``cost.launch``). What the chip's compiler does not say, such as
the time before a launch begins, is as in other estimates (``node_estimates``).
"""

from __future__ import annotations

import atexit
import itertools
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from pathways_nb.compilers.compiling import CompilerError
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.hlo.compiled import CompiledMemory
from pathways_nb.cost.jaxpr.node_work import Work
from pathways_nb.cost.jaxpr.splits import bytes_on_device
from pathways_nb.cost.launch.constants import constants_for
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.cost.model import CostModel, NodeCost
from pathways_nb.errors import CancelledError, UsageError
from pathways_nb.program.build import Code
from pathways_nb.program.items import origins_in
from pathways_nb.program.specs import trimmed
from pathways_nb.runtime.lowering.executables import CompileRequest
from pathways_nb.runtime.sim import chip_compiler
from pathways_nb.runtime.sim.chip_compiler import SHORT, CompilerChoice
from pathways_nb.runtime.sim.mesh_compiler import key_of, made_once
from pathways_nb.runtime.sim.node_layout import NodeLayout
from pathways_nb.trace.metrics import duration
from pathways_nb.util.waiting import Promise

_ALIAS = re.compile(r"\{(\d*)\}: \(\d+, \{\}, (?:may|must)-alias\)")
_SHAPE = re.compile(r"\b[a-z]+\d*\w*\[([\d,]*)\]")


class _OpenedNode(NamedTuple):
    """A node that was compiled, opened.

    Args:
        launch: it.
        header: first line of its text, which has the shapes of results; empty if there is no text.
        note: what it was compiled for, and whether the compiler refuses it.
        results: positions of the results that the text has: not all, where it has not all blocks.
    """

    launch: OpenedLaunch
    header: str
    note: str
    results: tuple[int, ...]


_opened: dict[Hashable, Promise[_OpenedNode]] = {}
_at_exit: list[bool] = []
"""Not empty once the interpreter exits: then nobody waits for a compiler any more."""
atexit.register(_at_exit.append, True)


class ChipEstimate(NamedTuple):
    """What a chip's compiler says of a node; nothing but a note where it was not asked, or does not take the node.

    Args:
        launch: the node, opened.
        memory: of one device.
        note: for the node's ``basis``.
        is_scheduled: whether ``launch`` has its operations, which a compiler that refuses a node may leave out.
    """

    launch: OpenedLaunch | None = None
    memory: CompiledMemory | None = None
    note: str = ""
    is_scheduled: bool = False

    def cost(self, before: float) -> NodeCost:
        """Return the seconds of the node.

        Args:
            before: seconds before its first operation begins.
        """
        assert self.launch is not None
        seconds = self.launch.seconds
        compute = min(seconds.busy["compute"], seconds.ordered)
        waits = seconds.ordered - compute
        formula = f"compute {duration(compute)}, waits {duration(waits)}"
        return NodeCost(before + seconds.ordered, before, compute, waits, formula, self.launch.basis)


class ChipEstimator:
    """Estimates nodes on islands of one kind of chip by that chip's compiler.

    Args:
        model: the cost model.
        choice: ``"own"`` or ``"auto"``; the compiler is there.
    """

    def __init__(self, model: CostModel, choice: CompilerChoice):
        self.model, self.choice = model, choice
        self._known = constants_for(model.chip, model.network)

    @classmethod
    def of(cls, model: CostModel, choice: CompilerChoice) -> ChipEstimator | None:
        """Return the estimator of a model's chip; None if nodes are estimated without its compiler.

        Raises:
            UsageError: its compiler is wanted, and not there.
        """
        return None if chip_compiler.kind_for(model, choice) is None else cls(model, choice)

    def estimate(
        self,
        request: CompileRequest,
        layout: NodeLayout,
        work: Work,
        topology: Topology,
        is_wanted: Callable[[], bool],
        key: Hashable = None,
    ) -> ChipEstimate:
        """Return what the chip's compiler says of a node.

        Args:
            request: the node.
            layout: its layouts.
            work: of each of its devices, without collectives that only a compiler knows.
            topology: of its island.
            is_wanted: whether anybody still waits for it.
            key: that of ``key_of``, if it is known.

        Raises:
            CancelledError: nobody waits any more.
            UsageError: it cannot be compiled, and nothing else may take the place of that (``"own"``).
        """
        if self._bound(layout, work, topology) < SHORT:
            return ChipEstimate(note=f"shorter than {duration(SHORT)}, so not compiled by its chip's compiler")
        try:
            node = self._opened(request, topology, is_wanted, key)
        except CancelledError:
            raise
        except Exception as error:  # JAX lowers not everything without devices, and a compiler does not take everything
            return self._without(request, error)
        note = "; ".join(filter(None, (node.note, *node.launch.notes)))
        return ChipEstimate(node.launch, _memory(node, layout), note, bool(node.header))

    def key_of(self, request: CompileRequest, topology: Topology) -> Hashable:
        """Return a key that is equal for nodes of which the compiler and the constants say the same.

        Args:
            request: the node.
            topology: of its island.
        """
        devices = chip_compiler.devices_of(request, topology)
        options = repr(sorted(request.code.options_on(devices.target.kind).items()))
        where = topology, devices.hosts, options, self._known, chip_compiler.name_of(self.model, self.choice)
        return key_of(request, request.mesh.shape), _written(request.code), request.contexts, where

    def _bound(self, layout: NodeLayout, work: Work, topology: Topology) -> float:
        """Return seconds that a node hardly takes longer than: its work, and all its values once over the network."""
        found = self.model.node(work, topology, layout.sizes)
        seconds = found.compute + found.collective
        if not layout.exchanges():
            return seconds
        # The slowest way between two devices of the island.
        chip, hosts = topology.chip, topology.hosts
        rate = (
            chip.link_bw_effective if chip.interconnect == "torus" or hosts == 1 else topology.network.host_bw_effective
        )
        return seconds + layout.whole() / rate

    def _opened(
        self, request: CompileRequest, topology: Topology, is_wanted: Callable[[], bool], key: Hashable
    ) -> _OpenedNode:
        """Return a node, compiled and opened; equal nodes on equal devices once."""
        devices = chip_compiler.devices_of(request, topology)

        def wanted() -> bool:
            return not _at_exit and is_wanted()

        def make() -> _OpenedNode:
            node = chip_compiler.compiled_node(request, devices.target, wanted)
            text = node.texts[-1]
            launch = node.opened(node.place(topology.chip, devices.hosts, topology.devices_per_host), self._known)
            refused = f"; refused by {text.compiler}: {text.refused.splitlines()[0]}" if text.refused else ""
            header = text.text.partition("\n")[0]
            return _OpenedNode(launch, header, f"compiled for {devices.words}{refused}", node.results)

        # The text of a long node takes a while to make, so it is not made again for a key that is known.
        key = self.key_of(request, topology) if key is None else key
        while True:
            try:
                return made_once(_opened, key, make)
            except CancelledError:
                # Another plan may have wanted it first, and was given up; then it is compiled for this one.
                if not wanted():
                    raise

    def _without(self, request: CompileRequest, error: Exception) -> ChipEstimate:
        """Return the note on a node that the compiler of its chip does not take.

        Raises:
            UsageError: only that compiler is wanted, or it does not know an option of the node.
        """
        if isinstance(error, CompilerError) and error.unknown_option:
            # An estimate has no options: it would hide the typo behind seconds of another kind.
            name = error.unknown_option
            raise UsageError(
                f"{request.label.name} of {request.label.program}: the compiler of {self.model.chip.name} has no "
                f"option {name!r} (compiler_options=). Correct its name; an option of one platform only is written "
                f'"gpu:NAME", "tpu:NAME" or "cpu:NAME".'
            ) from error
        said = str(error).strip().removesuffix(".") or type(error).__name__
        if "AbstractMesh cannot be used" in said:
            said = "JAX lowers custom_partitioning, and callbacks over several devices, only where there are devices"
        if self.choice == "own":
            label = request.label
            where = f" ({label.line})" if label.line else ""
            raise UsageError(
                f"{label.name} of {label.program}{where} cannot be compiled for {self.model.chip.name}, as "
                f'compiler="own" wants: {said}. Attach with compiler="auto" to estimate such nodes from their jaxpr.'
            ) from error
        first = said if isinstance(error, CompilerError) else f"{type(error).__name__}: {said}"
        return ChipEstimate(note=f"not compiled by its chip's compiler: {first.splitlines()[0]}")


def _written(code: Code) -> Hashable:
    """Return what codes with equal operations may differ by: names, lines and scopes, which ops have."""
    return tuple(item.title for item in code.items), origins_in(item.jaxpr for item in code.items)


def _memory(node: _OpenedNode, layout: NodeLayout) -> CompiledMemory:
    """Return temporary and reused bytes, and the layouts of results, as the compiler has chosen them."""
    if node.launch.memory is None:
        return CompiledMemory(layout.temporary(), layout.taken_over(), ())
    results = layout.results()
    taken = {int(number or 0) for number in _ALIAS.findall(node.header)}
    # A node without outputs returns zeros, see ``emit``.
    locals_ = enumerate(zip(node.results, _results(node.header), strict=False))
    said = {at: (local, number in taken) for number, (at, local) in locals_}
    # Results of blocks that were not compiled are as the nearest of the same shape and layout: parameters and their
    # gradients are alike, but stand apart.
    like: dict[Hashable, list[int]] = {}
    for at in said:
        if at < len(results):
            like.setdefault(_kind(*results[at]), []).append(at)
    nearest = [
        at if at in said else min(like.get(_kind(*one), ()), key=lambda near, at=at: abs(near - at), default=None)
        for at, one in enumerate(results)
    ]
    each = [None if at is None else said[at] for at in nearest]
    found = [
        one and _spec(one[0], aval.shape, spec, layout.sizes) for one, (aval, spec) in zip(each, results, strict=True)
    ]
    specs = [spec if chosen is None else chosen for chosen, (_, spec) in zip(found, results, strict=True)]
    sizes = [bytes_on_device(aval, spec, layout.sizes) for (aval, _), spec in zip(results, specs, strict=True)]
    reused = sum(size for size, one in zip(sizes, each, strict=True) if one and one[1])
    # The compiler's arrays are padded to its tiles; what that takes counts as temporary.
    temporary = node.launch.memory.peak - (layout.arguments() + sum(sizes) - reused)
    return CompiledMemory(max(temporary, 0), reused, tuple(found))


def _kind(aval: Any, spec: PartitionSpec | None) -> Hashable:
    """Return what results must share to be laid out alike: shape, type, layout by the jaxpr."""
    return aval.shape, aval.dtype, trimmed(spec)


def _results(header: str) -> list[tuple[int, ...]]:
    """Return the shape of each result on one device.

    Args:
        header: first line of a compiled text; nothing comes of an empty one.
    """
    _, _, after = header.partition("entry_computation_layout={")[2].partition("->")
    depth, end = 1, 0
    while depth and end < len(after):
        depth += (after[end] == "{") - (after[end] == "}")
        end += 1
    return [tuple(int(n) for n in dims.split(",") if n) for dims in _SHAPE.findall(after[:end])]


def _spec(
    local: Sequence[int], shape: Sequence[int], propagated: PartitionSpec | None, sizes: Mapping[str, int]
) -> PartitionSpec | None:
    """Return a layout that gives each device a part of the compiled shape.

    The text has shapes and no layouts. Of several that fit, the one that follows from the jaxpr is taken, else the
    first axes of the mesh.

    Args:
        local: shape on one device; of a typed key with further dimensions.
        shape: of the whole array.
        propagated: the layout by the jaxpr.
        sizes: devices along each axis of the mesh.
    """
    parts = [axes if isinstance(axes, tuple) else (axes,) for axes in trimmed(propagated)]
    ways = [math.prod(sizes[axis] for axis in axes if axis is not None) for axes in parts]
    if all(-(-whole // by) == part for whole, part, by in zip_longest(shape, local[: len(shape)], ways, fillvalue=1)):
        return trimmed(propagated)
    free, chosen = [axis for axis, size in sizes.items() if size > 1], list[tuple[str, ...]]()
    for whole, part in zip(shape, local, strict=False):
        choices = (axes for count in range(len(free) + 1) for axes in itertools.combinations(free, count))
        fits = (axes for axes in choices if -(-whole // math.prod(sizes[axis] for axis in axes)) == part)
        axes = next(fits, None)
        if axes is None:
            return None
        chosen.append(axes)
        free = [axis for axis in free if axis not in axes]
    return trimmed(PartitionSpec(*(axes or None for axes in chosen)))
