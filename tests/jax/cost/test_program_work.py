"""The walk over the nodes of a traced program, against what XLA counts in each node's executable."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.cost.collectives.collective import Collective
from pathways_nb.cost.jaxpr.node_work import Work, layouts_of, work_of
from pathways_nb.cost.jaxpr.splits import Split
from pathways_nb.program.items import Const
from pathways_nb.program.program_tracer import Traced
from pathways_nb.session.calls import submit

WEIGHTS = [np.ones((64, 128), np.float32), np.ones((128, 32), np.float32)]
X = np.ones((512, 64), np.float32)


def training(left: pw.VirtualSlice, right: pw.VirtualSlice) -> pw.Program:
    """Whole-array code on one island, per-shard code on the other, gradients through both."""

    @pw.jit(on=left, in_shardings=(pw.P(), pw.P("x")))
    def first(w, x):
        return jnp.tanh(x @ w)

    @pw.shard_map(on=right, in_specs=(pw.P(), pw.P("x")), out_specs=pw.P())
    def second(w, h):
        return jax.lax.pmean(jnp.mean((h @ w) ** 2), "x")

    @pw.program
    def step(weights, x):
        loss = lambda ws: second(ws[1], first(ws[0], x))  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(weights)
        return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    return step


def works(traced: Traced, sizes: dict[str, int]) -> dict[int, Work]:
    """Each node's work; layouts that no computation declares go from node to node."""
    layouts: dict[int, Split] = {}
    found = {}
    for node in traced.graph.nodes:
        for item in traced.codes[node.id].items if node.id in traced.codes else ():
            given = [None if isinstance(x, Const) else layouts.get(x) for x in item.inputs]
            declared = item.in_specs or (None,) * len(given)
            specs = [a if a is not None else b for a, b in zip(declared, given, strict=True)]
            work = work_of(item.jaxpr, sizes, specs, item.out_specs or None)
            found[node.id] = found.get(node.id, Work()) + work
            layouts.update(zip(item.outputs, layouts_of(item.jaxpr, sizes, specs), strict=True))
    return found


def test_every_node_takes_the_operations_that_its_executable_takes(
    controller: pw.Controller, left: pw.VirtualSlice, right: pw.VirtualSlice
) -> None:
    step = training(left, right)
    call = step.signature((WEIGHTS, X), {})
    traced = submit.traced(controller, step, call)
    ours = works(traced, {"x": 4})
    launches = [action for action in submit.compiled_plan(controller, traced, call).actions if action.call is not None]
    assert {action.label.name for action in launches} >= {"first", "second", "second (bwd)", "first (bwd)"}
    for action in launches:
        assert ours[action.step.node].flops == pytest.approx(action.label.flops / 4, rel=0.05), action.label.name


def test_collectives_of_per_shard_nodes_are_in_their_jaxprs_and_of_whole_array_nodes_are_not(
    controller: pw.Controller, left: pw.VirtualSlice, right: pw.VirtualSlice
) -> None:
    step = training(left, right)
    call = step.signature((WEIGHTS, X), {})
    traced = submit.traced(controller, step, call)
    names = {node.id: node.name for node in traced.graph.nodes}
    found = {names[node]: work.collectives for node, work in works(traced, {"x": 4}).items() if work.collectives}
    assert found == {
        "second": (Collective("all-reduce", 4, ("x",), 4),),
        "second (bwd)": (Collective("all-reduce", 4 * 128 * 32, ("x",), 4),),
    }
