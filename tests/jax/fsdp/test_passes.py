"""Each pass computes the same with the collectives it promises, and any plan gives a legal step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.parallel.fsdp.fsdp_plan import plan_of
from pathways_nb.parallel.fsdp.lowering import per_device, with_barriers
from pathways_nb.parallel.fsdp.passes import bucket, finish, pace, prefetch, regather, sink
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, operation, renamed
from tests.jax.fsdp.test_options import LAYERS, batch, loss, model
from tests.support.closeness import close

DEVICES = 4
NAMES = ["embed", *(f"layers.{layer}.{name}" for layer in range(LAYERS) for name in ("bias", "down", "up"))]
"""In the order of the leaves."""
BLOCKS = [[0], *([1 + 3 * layer + one for one in range(3)] for layer in range(LAYERS))]


def step_of(mode: str = "zero3", **options: Any) -> pw.FsdpStep:
    place = pw.virtual_slice((2, 2), axes=("r", "d")) if mode == "hsdp" else pw.virtual_slice(DEVICES, axes=("d",))
    return pw.fsdp(loss, model(), on=place, mode=mode, **options)


@pytest.fixture(scope="module")
def traced() -> StepGraph:
    return step_of().traced(*batch())


@pytest.fixture(scope="module")
def plain() -> Any:
    return jax.jit(jax.value_and_grad(loss))(model(), *batch())


def shards(one: Parameter, array: Any) -> Any:
    """A parameter as one array with a row for each device."""
    return jnp.stack(jnp.split(one.pad(array), one.parts, axis=one.dim))


def run(graph: StepGraph) -> tuple[Any, Any]:
    """The loss and the whole gradients of a step whose devices are rows of arrays on one device."""
    params = [shards(one, leaf) for one, leaf in zip(graph.parameters, jax.tree.leaves(model()), strict=True)]
    rows = [array.reshape(DEVICES, -1, *array.shape[1:]) for array in batch()]
    value, *gradients = jax.jit(jax.vmap(per_device(graph), axis_name="d"))(*params, *rows)
    whole = [one.crop(jnp.concatenate(list(array), axis=one.dim))
             for one, array in zip(graph.parameters, gradients, strict=True)]  # fmt: skip
    return value[0], jax.tree.unflatten(jax.tree.structure(model()), whole)


def counts(graph: StepGraph) -> tuple[int, int, int]:
    """Gathers of the forward pass, repeated gathers, reductions."""
    kinds = Counter((op.is_gather, op.again) for op in graph.collectives)
    return kinds[True, False], kinds[True, True], kinds[False, False]


def check_legal(graph: StepGraph) -> None:
    """Every operation stands behind those whose results it reads, and makes new values."""
    made = {*graph.flat.inputs, *graph.flat.constants}
    for op in graph.ops:
        assert made.issuperset(op.inputs), op
        assert made.isdisjoint(op.outputs), op
        made.update(op.outputs)
    assert made.issuperset(graph.flat.outputs)


ALL = len(NAMES)
PASSES: dict[str, tuple[Callable[[StepGraph], StepGraph], tuple[int, int, int]]] = {
    "sink": (sink, (ALL, 0, ALL)),
    "regather": (regather, (ALL, ALL - LAYERS, ALL)),  # the backward pass reads no bias
    "regather, embedding kept": (lambda graph: regather(graph, keep={0}), (ALL, ALL - LAYERS - 1, ALL)),
    "bucket": (lambda graph: bucket(regather(sink(graph)), BLOCKS), (len(BLOCKS),) * 3),
    "bucket, two at the back": (
        lambda graph: bucket(regather(sink(graph)), BLOCKS, [range(4), range(4, ALL)]),
        (len(BLOCKS), 2, 2),
    ),
    "one bucket": (lambda graph: bucket(regather(sink(graph)), [range(ALL)]), (1, 1, 1)),
    "prefetch": (lambda graph: prefetch(bucket(sink(graph), BLOCKS), 2), (len(BLOCKS), 0, len(BLOCKS))),
    "finish": (lambda graph: finish(bucket(sink(graph), BLOCKS)), (len(BLOCKS), 0, len(BLOCKS))),
    "pace": (lambda graph: pace(bucket(regather(sink(graph)), BLOCKS)), (len(BLOCKS),) * 3),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_computes_the_same_with_the_collectives_it_promises(traced: StepGraph, plain: Any, name: str) -> None:
    change, expected = PASSES[name]
    assert counts(traced) == (ALL, 0, ALL)
    graph = change(traced)
    assert counts(graph) == expected
    check_legal(graph)
    check_legal(with_barriers(graph))
    close(run(graph), plain)


PLANS = {
    "early, one by one": plan_of([[name] for name in NAMES], prefetch=3),
    "other buckets at the back": pw.FsdpPlan(
        (pw.Bucket(tuple(NAMES[6:]), keep=True), pw.Bucket(tuple(NAMES[:2])), pw.Bucket(tuple(NAMES[2:6]))),
        (pw.Bucket((NAMES[0], NAMES[9], NAMES[3])), pw.Bucket((*NAMES[1:3], *NAMES[4:9]))), prefetch=2,
    ),
    "backwards": plan_of([NAMES[:4:-1], NAMES[4::-1]], prefetch=0),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_of_the_user_computes_the_same(plain: Any, name: str) -> None:
    graph = step_of(plan=PLANS[name]).graph(*batch())
    close(run(graph), plain)


def first_uses(graph: StepGraph, again: bool = False) -> list[tuple[int, int]]:
    """Of each gather, its position and that of the first operation that needs it."""
    gathers = [op for op in graph.collectives if op.is_gather and op.again == again]
    return [(graph.positions[op], graph.first_reader(op.outputs)) for op in gathers]


def test_what_passes_move(traced: StepGraph) -> None:
    late = sink(traced)
    assert [at for at, _ in first_uses(traced)] == list(range(ALL)), "all gathers in front"
    assert all(use - at == 1 or late.ops[at + 1].name == "all_gather" for at, use in first_uses(late))
    merged = bucket(regather(late), BLOCKS)
    early = prefetch(merged, 1)
    uses = [*first_uses(early), *first_uses(early, again=True)]
    assert all(at < use for (at, _), (_, use) in zip(uses[1:], uses, strict=False)), "issued before the last is used"
    tail = finish(merged)
    ends = [at for at, op in enumerate(tail.ops) if op.name == "unpack" and op.outputs[0] in tail.flat.outputs]
    assert ends == list(range(len(tail.ops) - len(ends), len(tail.ops))), "gradients are unpacked last"


def test_paced_gathers_read_a_value_made_in_front_of_them(traced: StepGraph) -> None:
    graph = pace(bucket(regather(sink(traced)), BLOCKS))
    bound = with_barriers(graph)
    barriers = [op for op in bound.ops if op.name == "barrier"]
    assert len(barriers) == 2 * len(BLOCKS) - 1, "nothing floating stands in front of the first gather"
    for op in barriers:
        assert all(any(value in other.inputs for other in bound.ops) for value in op.outputs), "or it is removed"


def test_an_illegal_order_is_refused_with_the_name_of_the_collective(traced: StepGraph) -> None:
    graph = bucket(sink(traced), BLOCKS)
    label = {graph.label(op): op for op in graph.collectives}
    late = label["gather layers.1.up +2"]
    others = [op for op in graph.ops if op is not late]
    with pytest.raises(
        pw.PlanError,
        match=r'the operation unpack at position \d+ reads what the collective "gather layers.1.up \+2" at position '
        r"\d+ makes, which stands behind it",
    ):
        per_device(graph.reordered([*others, late]))
    early = label["reduce layers.1.down +2"]
    others = [op for op in graph.ops if op is not early]
    with pytest.raises(
        pw.PlanError, match=r'the collective "reduce layers.1.down \+2" at position 0 reads what the op'
    ):
        per_device(graph.reordered([early, *others]))


def test_collectives_that_wait_for_each_other_share_no_bucket(traced: StepGraph) -> None:
    """The shard of one parameter is made from another parameter."""
    graph = sink(traced)
    first, last = (next(op for op in graph.collectives if op.carries == (one,)) for one in (1, 4))
    made = graph.new(graph.flat.avals[last.inputs[0]])
    ops = [[operation("mine", first.outputs, (made,), lambda array: [array]), renamed(op, {op.inputs[0]: made})]
           if op is last else [op] for op in graph.ops]  # fmt: skip
    graph = graph.with_ops(op for group in ops for op in group)
    check_legal(graph)
    with pytest.raises(pw.PlanError, match=r"collectives of layers.0.bias, layers.1.bias wait for each other"):
        bucket(graph, [[1, 4]])


def cuts(names: list[int]) -> st.SearchStrategy[list[list[int]]]:
    """All parameters in any order, in buckets."""
    ends = st.sets(st.integers(1, len(names) - 1))
    return st.builds(
        lambda order, at: [order[a:b] for a, b in zip([0, *sorted(at)], [*sorted(at), len(order)], strict=True)],
        st.permutations(names), ends,
    )  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> pw.FsdpPlan:
    def buckets() -> tuple[Any, ...]:
        return tuple(
            pw.Bucket(tuple(NAMES[one] for one in group), draw(st.booleans())) for group in draw(cuts(list(range(ALL))))
        )

    return pw.FsdpPlan(buckets(), draw(st.sampled_from([None, buckets()])), prefetch=draw(st.integers(0, 4)))


STEPS: dict[tuple[str, str], pw.FsdpStep] = {}


def cached(mode: str, frozen: str) -> pw.FsdpStep:
    """A step that was traced before; tracing costs more than all passes."""
    key = mode, frozen
    return STEPS.setdefault(key, step_of(mode, frozen=(lambda name: name.endswith(frozen)) if frozen else None))


def carried(graph: StepGraph, chosen: Callable[[CollectiveOp], bool]) -> set[frozenset[str]]:
    return {frozenset(graph.names(op.carries)) for op in graph.collectives if chosen(op)}


def parts(buckets: Any, among: set[str]) -> set[frozenset[str]]:
    """The groups of some parameters that buckets make."""
    return {group for one in buckets if (group := frozenset(one.params) & among)}


@settings(max_examples=30)
@given(plans(), st.sampled_from(["ddp", "zero1", "zero2", "zero3", "hsdp"]), st.sampled_from(["", "up", "embed"]))
def test_any_plan_gives_a_legal_step(plan: pw.FsdpPlan, mode: str, frozen: str) -> None:
    step = cached(mode, frozen).with_plan(plan)
    graph = step.graph(*batch())
    check_legal(graph)
    check_legal(with_barriers(graph))
    names = set(NAMES)
    trained = {name for name in names if not frozen or not name.endswith(frozen)}
    unread = {name for name in names if name.endswith("bias")} | ({"layers.0.up"} if frozen == "embed" else set())
    again = names - plan.kept - unread if mode in ("zero3", "hsdp") else set()
    gathered = names if mode not in ("ddp", "zero1") else set()
    assert carried(graph, lambda op: op.is_gather and not op.again) == parts(plan.buckets, gathered)
    assert carried(graph, lambda op: op.again) == parts(plan.reduced, again)
    for axis in {op.axis for op in graph.collectives if not op.is_gather}:
        assert carried(graph, lambda op: not op.is_gather and op.axis == axis) == parts(plan.reduced, trained)
    gathers = [op for op in graph.collectives if op.is_gather]
    for number, op in enumerate(gathers):
        wanted = graph.first_reader(gathers[max(number - plan.prefetch, 0)].outputs)
        assert graph.positions[op] < wanted, "no later than planned"
