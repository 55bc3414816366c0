"""A scan with collectives in its body; ``scan_gathers`` says which scans become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from pathways_nb.jaxpr.flat import scan_sizes
from pathways_nb.parallel.flat_function import FlatFunction, Runnable
from pathways_nb.parallel.fsdp.collectives import gathering, scattering
from pathways_nb.parallel.fsdp.step_graph import CollectiveName, StepGraph

View = Callable[[Any], Any]


class LoopExchange(NamedTuple):
    """A collective in the body of a loop.

    Args:
        name: of the collective.
        param: the position of the parameter whose layers it exchanges.
        bytes: of one whole layer, of its part on one device of the axes that do not split the batch.
    """

    name: CollectiveName
    param: int
    bytes: int


@dataclass(frozen=True, eq=False)
class ShardedScan(Runnable):
    """A scan whose iterations gather layers of parameters or reduce gradients of layers.

    Args:
        axis: over which they do.
        exchanges: the collectives of one iteration.
    """

    axis: str = field(kw_only=True)
    exchanges: tuple[LoopExchange, ...] = ()

    @property
    def length(self) -> int:
        """Number of iterations."""
        return int(self.params["length"])


class Slice(NamedTuple):
    """What one operand of a scan becomes.

    Args:
        param: the position of the parameter.
        shards: the value of its shards.
        view: from a gathered layer to what the body reads.
    """

    param: int
    shards: int
    view: View


def sharded_scan(
    graph: StepGraph, scan: Runnable, slices: Mapping[int, Slice], stacks: Mapping[int, tuple[int, int]],
    made: Sequence[int], dtypes: Mapping[int, Any],
) -> ShardedScan:  # fmt: skip
    """Return a scan with the collectives of its operands and results in its body.

    Args:
        graph: the step.
        scan: the operation.
        slices: by position of an operand, what it becomes.
        stacks: by position of a result, the parameter whose gradient it is and the value of its shards.
        made: positions of the results that it makes; nothing reads the others any more.
        dtypes: in which parameters are used.
    """
    operands = [slices[at].shards if at in slices else value for at, value in enumerate(scan.operands)]
    inputs = tuple(dict.fromkeys(operands))
    outputs = tuple(stacks[at][1] if at in stacks else scan.results[at] for at in made)
    # Stacks are split over the axis that splits parameters; every gather and scatter of the step has it.
    axis = next(op.axis for op in graph.collectives if op.name in ("all_gather", "reduce_scatter"))
    params = (*(one.param for one in slices.values()), *(param for param, _ in stacks.values()))
    layers = {param: graph.parameters[param].layer for param in params}
    gathers = {one.param: _converted(gathering(layers[one.param], axis), dtypes[one.param]) for one in slices.values()}
    reduced = {param: graph.flat.avals[shards].dtype for param, shards in stacks.values()}
    scattering_of = {param: _converted(scattering(layers[param], axis), dtype) for param, dtype in reduced.items()}
    scatters = [scattering_of[stacks[at][0]] if at in stacks else None for at in made]
    exchanges = (
        *(LoopExchange("all_gather", param, layers[param].piece.size * dtypes[param].itemsize) for param in gathers),
        *(
            LoopExchange("reduce_scatter", param, layers[param].piece.size * dtype.itemsize)
            for param, dtype in reduced.items()
        ),
    )
    views = [slices.get(at) for at in range(len(operands))]
    loop = _loop(scan, made, gathers, views, scatters)

    def run(*arrays: Any) -> list[Any]:
        values = dict(zip(inputs, arrays, strict=True))
        return loop([values[value] for value in operands])

    return ShardedScan(
        "scan", inputs, outputs, scan.eqn, run=run, operands=scan.operands, results=scan.results, axis=axis,
        exchanges=exchanges,
    )  # fmt: skip


def _converted(run: Callable[[Any], list[Any]], dtype: Any) -> View:
    # In the loop: converted in front of it, the shards of all layers would be in memory twice.
    return lambda array: run(array.astype(dtype))[0]


def _loop(
    scan: Runnable, results: Sequence[int], gathers: Mapping[int, View], views: Sequence[Slice | None],
    scatters: Sequence[View | None],
) -> Callable[[list[Any]], list[Any]]:  # fmt: skip
    """Return a scan as a function of its operands, with collectives in its body.

    Args:
        scan: the operation.
        results: positions of those that it makes.
        gathers: by parameter, what gathers its layer.
        views: of each operand, what its slice becomes; ``None`` for itself.
        scatters: of each of these results, what reduces a gradient; ``None`` for another result.
    """
    closed, (consts, carried), params = scan.params["jaxpr"], scan_sizes(scan.eqn), scan.params
    body = FlatFunction.of(closed)
    step = body.function(body.ops, body.inputs, [body.outputs[at] for at in results])
    start = consts + carried

    def run(operands: list[Any]) -> list[Any]:
        def iterate(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            # Gathered once in an iteration, though several operands may be views of one layer.
            layers = {one.param: gathers[one.param](given)
                      for one, given in zip(views[start:], slices, strict=True) if one}  # fmt: skip
            read = [one.view(layers[one.param]) if one else given
                    for one, given in zip(views[start:], slices, strict=True)]  # fmt: skip
            made = step(*operands[:consts], *carry, *read)
            stacked = zip(scatters[carried:], made[carried:], strict=True)
            return made[:carried], [array if scatter is None else scatter(array) for scatter, array in stacked]

        last, stacks = jax.lax.scan(
            iterate, operands[consts:start], operands[start:], length=params["length"], reverse=params["reverse"],
            unroll=params["unroll"],
        )  # fmt: skip
        return [*last, *stacks]

    return run
