"""What stands for an executable on simulated devices: what a node costs, read from its own code.

Operations and bytes come from a walk of the node's jaxpr; so do collectives of per-shard code. Those of whole-array
code are the partitioner's choice: the node is compiled for a few CPU devices along the same axes, and what is found
there is scaled (see ``cost.compiled``). Memory comes from liveness. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways_nb.backends.executables import Executable, Request
from pathways_nb.cost.collective import Collective
from pathways_nb.cost.compiled import collectives_by_compiling
from pathways_nb.cost.liveness import peak_bytes
from pathways_nb.cost.local import needs_no_exchange
from pathways_nb.cost.model import Model, NodeCost
from pathways_nb.cost.topology import Topology
from pathways_nb.cost.work import Work, layouts_of, work_of
from pathways_nb.errors import UsageError
from pathways_nb.program.emit import emit, out_shardings
from pathways_nb.program.items import Const, Item
from pathways_nb.trace.record import Record

_compiled: dict[Hashable, tuple[tuple[Collective, ...], str]] = {}
"""Collectives found by compiling, and what could not be known, by the text of the code and how it is laid out."""
_REMEMBERED = 256
"""How many of them: those used last."""


class Estimates:
    """Costs of nodes on islands of one kind of chip.

    Args:
        model: what everything costs. topology_of: an island, by its index.
    """

    def __init__(self, model: Model, topology_of: Callable[[int], Topology]):
        self.model, self.topology_of = model, topology_of

    def get(self, request: Request, record: Record) -> Future[Executable]:
        """What stands for an executable: it has a cost, and cannot be called."""
        made: Future[Executable] = Future()
        try:
            made.set_result(self._estimate(request))
        except BaseException as error:
            made.set_exception(error)
        return made

    def _estimate(self, request: Request) -> Executable:
        sizes = dict(request.mesh.shape)
        laid = _Layouts(request, sizes)
        temporary, reused = laid.memory()
        if request.code.seconds is not None:
            work, cost = Work(), NodeCost(request.code.seconds, 0.0, request.code.seconds, 0.0, "declared", "declared")
        else:
            added = Work(*_exchanges(request, laid, sizes))
            work = laid.work() + added
            temporary += max((one.bytes for one in added.collectives if one.kind == "all-gather"), default=0)
            cost = self.model.node(work, self.topology_of(request.label.island), sizes)
            cost = cost._replace(origin=_basis(cost, work))
        return Executable(None, laid.outputs(), work.flops * request.mesh.size, temporary, reused, None, cost)


def _basis(cost: NodeCost, work: Work) -> str:
    """Where the seconds come from, how many of them are communication, and what was not known."""
    share = f"{cost.collective / cost.seconds:.0%} of it collectives" if cost.collective else ""
    return "; ".join(filter(None, (cost.origin, share, *work.notes)))


class _Layouts:
    """How the values of a node are split, and what follows from that, item by item."""

    def __init__(self, request: Request, sizes: Mapping[str, int]):
        self.request, self.sizes = request, sizes
        self.specs: dict[int, Any] = {
            value: _spec(sharding)
            for value, sharding in zip(request.code.inputs, request.arriving, strict=True)
        }  # fmt: skip
        self.items: list[tuple[Item, list[Any]]] = []
        self.resharded = self.rejoined = False
        """Whether anything is taken in another layout than it lies in, and whether anything that is split."""
        for item in request.code.items:
            given = [self._given(item, at) for at in range(len(item.inputs))]
            self.items.append((item, given))
            found = layouts_of(item.jaxpr, sizes, given)
            declared = item.out_specs or (None,) * len(found)
            for value, spec, split in zip(item.outputs, declared, found, strict=True):
                self.specs[value] = split if spec is None else spec
                self._compare(spec, split)

    def _given(self, item: Item, at: int) -> Any:
        """The layout in which an item takes an operand: as it declares, else as the operand lies."""
        operand = item.inputs[at]
        declared = item.in_specs[at] if at < len(item.in_specs) else None
        lies = None if isinstance(operand, Const) else self.specs.get(operand)
        if not isinstance(operand, Const):
            self._compare(declared, lies)
        return lies if declared is None else declared

    def _compare(self, declared: Any, lies: Any) -> None:
        if declared is not None and not _same(declared, lies):
            self.resharded = True
            self.rejoined |= _as_spec(lies) != PartitionSpec()

    def work(self) -> Work:
        """Of all items."""
        total = Work()
        for item, given in self.items:
            total = total + work_of(item.jaxpr, self.sizes, given, item.out_specs or None)
        return total

    def outputs(self) -> tuple[NamedSharding, ...]:
        """The sharding of each output: as declared, else as the layouts lead to."""
        mesh, code = self.request.mesh, self.request.code
        declared = out_shardings(code, mesh, self.request.replicated)
        if not code.outputs:
            return tuple(sharding for sharding in declared if sharding is not None)
        return tuple(
            NamedSharding(mesh, _as_spec(self.specs.get(value))) if sharding is None else sharding
            for value, sharding in zip(code.outputs, declared, strict=True)
        )

    def memory(self) -> tuple[int, int]:
        """Bytes per device beyond inputs and outputs, and of outputs in memory that is taken over."""
        most = 0
        for item, given in self.items:
            bodies = item.jaxpr.jaxpr
            ends = sum(_bytes(var.aval, spec, self.sizes) for var, spec in zip(bodies.invars, given, strict=True))
            ends += sum(
                _bytes(var.aval, self.specs.get(value), self.sizes)
                for var, value in zip(bodies.outvars, item.outputs, strict=True)
            )
            most = max(most, peak_bytes(item.jaxpr, self.sizes, given) - ends)
        request = self.request
        taken = sum(
            _bytes(request.structs[at], _spec(request.arriving[at]), self.sizes) for at in request.donated
        )  # fmt: skip
        return max(most, 0), taken


def _exchanges(
    request: Request, laid: _Layouts, sizes: Mapping[str, int]
) -> tuple[tuple[()], tuple[Collective, ...], tuple[str, ...]]:
    """What else devices exchange: what whole-array code needs; nothing where no axis splits anything."""
    split = any(_as_spec(spec) != PartitionSpec() for spec in laid.specs.values()) or laid.resharded
    if not split or any("shard_map" in _primitives(item) for item, _ in laid.items):
        return (), (), ()
    if not laid.rejoined and all(needs_no_exchange(item.jaxpr, sizes, given) for item, given in laid.items):
        return (), (), ()
    found, note = _remembered(request, sizes)
    return (), found, (note,) if note else ()


def _remembered(request: Request, sizes: Mapping[str, int]) -> tuple[tuple[Collective, ...], str]:
    key = _text(request, sizes)
    found = _compiled.pop(key, None) or _compile(request, sizes)
    _compiled[key] = found  # what was used last is last
    if len(_compiled) > _REMEMBERED:
        del _compiled[next(iter(_compiled))]
    return found


def _compile(request: Request, sizes: Mapping[str, int]) -> tuple[tuple[Collective, ...], str]:
    specs = [_as_spec(_spec(sharding)) for sharding in request.arriving]
    outputs = [_spec(sharding) for sharding in out_shardings(request.code, request.mesh, request.replicated)]
    traced = tuple(sizes.items())

    def on_mesh(mesh: Mesh) -> Callable[..., Any]:
        return emit(request.code, mesh, [NamedSharding(mesh, spec) for spec in specs], traced)

    try:
        found = collectives_by_compiling(on_mesh, request.structs, specs, outputs, sizes, for_mesh=True)
    except UsageError as error:
        return (), f"collectives unknown: {error}"
    return found.collectives, "; ".join(found.notes)


def _text(request: Request, sizes: Mapping[str, int]) -> Hashable:
    code, names = request.code, dict[int, int]()
    bodies = tuple(str(item.jaxpr) for item in code.items)
    wires = tuple(
        tuple(
            "const" if isinstance(x, Const) else names.setdefault(x, len(names)) for x in (*item.inputs, *item.outputs)
        )
        for item in code.items
    )
    specs = tuple((item.in_specs, item.out_specs) for item in code.items)
    whole = tuple(value in request.replicated for value in code.outputs)
    ends = tuple(map(names.get, code.inputs)), tuple(map(names.get, code.outputs))
    arriving = tuple(str(_spec(sharding)) for sharding in request.arriving)
    return bodies, wires, str(specs), whole, ends, arriving, request.structs, tuple(sizes.items())


def _primitives(item: Item) -> set[str]:
    found: set[str] = set()
    pending = [item.jaxpr.jaxpr]
    while pending:
        for eqn in pending.pop().eqns:
            found.add(eqn.primitive.name)
            pending += [getattr(inner, "jaxpr", inner) for inner in jax.extend.core.jaxprs_in_params(eqn.params)]
    return found


def _spec(sharding: Any) -> Any:
    return sharding.spec if isinstance(sharding, NamedSharding) else None


def _as_spec(layout: Any) -> PartitionSpec:
    """A layout, of a spec or of axes for each dimension, as a spec without needless ends."""
    entries = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None for entry in layout or ()]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def _same(one: Any, other: Any) -> bool:
    return _as_spec(one) == _as_spec(other)


def _bytes(aval: Any, layout: Any, sizes: Mapping[str, int]) -> int:
    """Of an array on one device."""
    if not hasattr(aval, "shape"):
        return 0
    count = 1
    for dimension, entry in enumerate((*_as_spec(layout), *[None] * len(aval.shape))[: len(aval.shape)]):
        axes: Sequence[str] = () if entry is None else (entry,) if isinstance(entry, str) else entry
        ways = 1
        for axis in axes:
            ways *= sizes.get(axis, 1)
        count *= -(-aval.shape[dimension] // ways)
    return count * int(aval.dtype.itemsize)
