"""The step of one device as a flat list of operations in which collectives stand: what passes read and change.

It is the flat form that pipelines cut, too (``FlatFunction``). A collective is issued where it stands in the list, and
whatever reads its outputs waits for it. So the order of the list is the plan, and a pass is an edit of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import jax

from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.jaxpr.primitives import VIEWS
from pathways_nb.errors import PlanError
from pathways_nb.jaxpr.flat import alive
from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary
from pathways_nb.parallel.flat_function import FlatFunction, Runnable
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter

_REDUCTIONS = {"reduce_scatter": "reduce", "all_reduce": "all-reduce"}
_VIEWS_AND_CONVERSIONS = VIEWS | set(
    "convert_element_type reduce_precision convert copy name transpose broadcast_in_dim alias".split()
)
"""Operations on one array that are repeated with its gather rather than stored for the backward pass."""
CollectiveName = Literal["all_gather", "reduce_scatter", "all_reduce"]


def kind_of(name: str) -> str:
    """Return the word in HLO for a collective of JAX."""
    return BY_NAME[name].name


@dataclass(frozen=True, eq=False)
class CollectiveOp(Runnable):
    """An exchange of parameters or gradients between the devices of an axis.

    Args:
        axis: the axis of the place.
        carries: positions of the parameters whose values or gradients it exchanges; none for the loss.
        again: whether it gathers for the backward pass what the forward pass has gathered already.
        paced: whether it may not begin before the operation in front of it, for the compiler; see ``lowering``.
    """

    axis: str = field(kw_only=True)
    carries: tuple[int, ...] = ()
    again: bool = False
    paced: bool = False

    @property
    def kind(self) -> str:
        """The word for it in HLO, such as ``"all-gather"``."""
        return kind_of(self.name)

    @property
    def is_gather(self) -> bool:
        """Whether it gathers parameters."""
        return self.name == "all_gather"


@dataclass(frozen=True, eq=False, repr=False)
class StepGraph:
    """A step: loss and gradients of one device's part of the batch, with the collectives between devices.

    Args:
        flat: its operations, inputs and outputs; values are numbers.
        parameters: of the model.
        shards: the value of each parameter's shard, among the inputs.
        batch: the values of the batch, among the inputs.
        results: the values of the loss and auxiliary outputs.
        gradients: by position of a parameter, the value of its gradient's shard.
        seed: the value of the gradient by the loss, on which every operation of the backward pass depends.
        traced_values: number of values that were traced, which come before those of collectives and passes.
        joins: how each result of the devices becomes that of the whole batch.
        wholes: the value of each parameter as the loss reads it.
    """

    flat: FlatFunction
    parameters: tuple[Parameter, ...]
    shards: tuple[int, ...]
    batch: tuple[int, ...]
    results: tuple[int, ...]
    gradients: Mapping[int, int]
    seed: int
    traced_values: int
    joins: tuple[Auxiliary, ...]
    wholes: tuple[int, ...] = ()

    @property
    def ops(self) -> tuple[Runnable, ...]:
        """The operations, in order."""
        return self.flat.ops

    @cached_property
    def collectives(self) -> tuple[CollectiveOp, ...]:
        """The collectives of parameters and gradients, in the order in which they are issued."""
        return tuple(op for op in self.ops if isinstance(op, CollectiveOp) and op.carries)

    @cached_property
    def backward(self) -> frozenset[Runnable]:
        """The operations of the backward pass: those that depend on the gradient by the loss, and repeated gathers."""
        # The seed is an input of the trace for this reason: nothing else tells the two passes apart in a jaxpr.
        found, after = set[Runnable](), {self.seed}
        for op in self.ops:
            if not after.isdisjoint(op.inputs) or (isinstance(op, CollectiveOp) and op.again):
                after.update(op.outputs)
                found.add(op)
        return frozenset(found)

    @cached_property
    def positions(self) -> dict[Runnable, int]:
        """The position of each operation."""
        return {op: position for position, op in enumerate(self.ops)}

    @cached_property
    def readers(self) -> dict[int, list[Runnable]]:
        """By value, the operations that read it, in order."""
        found: dict[int, list[Runnable]] = {}
        for op in self.ops:
            for value in dict.fromkeys(op.inputs):
                found.setdefault(value, []).append(op)
        return found

    @cached_property
    def makers(self) -> dict[int, Runnable]:
        """The operation that makes each value."""
        return {value: op for op in self.ops for value in op.outputs}

    def first_reader(self, values: Iterable[int]) -> int:
        """Return the position of the first operation that reads one of some values; without one, that of the end."""
        return min((self.positions[self.readers[v][0]] for v in values if v in self.readers), default=len(self.ops))

    def with_ops(self, ops: Iterable[Runnable]) -> StepGraph:
        """Return the step with other operations, of which those that nothing needs are left out."""
        # A gather whose readers all read a second one, for example, is needed no more.
        return replace(self, flat=replace(self.flat, ops=alive(tuple(ops), self.flat.outputs)))

    def reordered(self, ops: Iterable[Runnable]) -> StepGraph:
        """Return the step with as many operations in another order, or some renamed; all of them are needed."""
        return replace(self, flat=replace(self.flat, ops=tuple(ops)))

    def check(self) -> None:
        """Check that every operation stands behind those whose results it reads.

        Raises:
            PlanError: naming the collective that does not, or that stands behind what needs it.
        """
        made = {*self.flat.inputs, *self.flat.constants}
        for op in self.ops:
            for value in op.inputs:
                if value not in made:
                    raise PlanError(
                        f"{self._what(op)} reads what {self._what(self.makers.get(value))} makes, which stands behind "
                        f"it. A pass may begin a gather earlier or finish a reduction later, not the other way round."
                    )
            made.update(op.outputs)

    def _what(self, op: Runnable | None) -> str:
        """Return how errors name an operation."""
        if op is None:
            return "no operation"
        label = f'the collective "{self.label(op)}"' if isinstance(op, CollectiveOp) else f"the operation {op.name}"
        return f"{label} at position {self.positions[op]}"

    def __repr__(self) -> str:
        return f"<step of {len(self.ops)} operations, {len(self.collectives)} collectives: {self.schedule()}>"

    def new(self, aval: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> int:
        """Add a value like ``aval`` and return its number."""
        struct = jax.ShapeDtypeStruct(aval.shape if shape is None else tuple(shape), dtype or aval.dtype)
        return self.flat.walk().new(struct)

    def names(self, params: Iterable[int]) -> tuple[str, ...]:
        """Return the names of parameters."""
        return tuple(self.parameters[param].name for param in params)

    def label(self, op: CollectiveOp) -> str:
        """Return what a collective does and carries, such as ``"gather layers.3.wq +8"``; none has it twice."""
        # Profiles know operations by this text alone, so it must tell the two reductions of hybrid sharding apart.
        first, *more = self.names(op.carries) or ("the loss",)
        verb = ("regather" if op.again else "gather") if op.is_gather else _REDUCTIONS[op.name]
        over = f" over {op.axis}" if op.name == "all_reduce" and self._reduces_twice else ""
        return f"{verb} {first}" + (f" +{len(more)}" if more else "") + over

    @cached_property
    def _reduces_twice(self) -> bool:
        """Whether reductions go over two axes, as in hybrid sharding."""
        return len({op.axis for op in self.collectives if op.name == "all_reduce"}) > 1

    def schedule(self) -> str:
        """Return the order of the list in one line: ``A`` a gather, ``R`` a reduction, ``a`` to gather again.

        Between them stand the products of matrices, one digit for up to nine, as in ``AA2A2R1``; ``|`` begins the
        backward pass.
        """
        return "".join(_runs(self._letters()))

    def _letters(self) -> Iterator[str]:
        forward = True
        for op in self.ops:
            if forward and op in self.backward:
                forward = False
                yield "|"
            if isinstance(op, CollectiveOp):
                if op.carries:
                    yield ("a" if op.again else "A") if op.is_gather else "R"
            elif op.name in ("dot_general", "conv_general_dilated", "scan"):
                yield "."


def _runs(letters: Iterable[str]) -> Iterator[str]:
    """Yield letters, with dots in a row as their number."""
    dots = 0
    for letter in (*letters, ""):
        if letter != "." and dots:
            yield str(dots)
            dots = 0
        dots += letter == "."
        yield "" if letter == "." else letter


def feeders(graph: StepGraph, collective: CollectiveOp) -> list[Runnable]:
    """Return the operations that only prepare what a collective sends, such as a conversion or a pack, in order."""
    own: set[Runnable] = {collective}
    pending: list[Runnable] = [collective]
    while pending:
        for value in pending.pop().inputs:
            maker = graph.makers.get(value)
            if maker is None or maker in own:
                continue
            # What anything else reads, too, must stay where that reader finds it.
            if own.issuperset(reader for output in maker.outputs for reader in graph.readers.get(output, ())):
                own.add(maker)
                pending.append(maker)
    return sorted(own - {collective}, key=graph.positions.__getitem__)


def is_view(flat: FlatFunction, op: Runnable) -> bool:
    """Return whether an operation only views or converts one array: it makes no more elements than it reads."""
    alone = op.name in _VIEWS_AND_CONVERSIONS and len(op.inputs) == 1
    return alone and flat.avals[op.outputs[0]].size <= flat.avals[op.inputs[0]].size


def renamed(op: Runnable, names: Mapping[int, int]) -> Runnable:
    """Return an operation that reads other values."""
    if names.keys().isdisjoint(op.inputs):
        return op
    return replace(op, inputs=tuple(names.get(value, value) for value in op.inputs))


def barrier(*arrays: jax.Array) -> Sequence[jax.Array]:
    """Return arrays unchanged; the compiler moves nothing across."""
    return jax.lax.optimization_barrier(arrays)


def operation(name: str, inputs: Sequence[int], outputs: Sequence[int], run: Callable[..., Any]) -> Runnable:
    """Return an operation that was not read from an equation."""
    return Runnable(name, tuple(inputs), tuple(outputs), run=run)
