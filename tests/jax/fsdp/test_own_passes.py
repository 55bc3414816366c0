"""Passes of the user's: what one says in a few lines, the graph, the search, plans and the explorer all heed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.examples import llama3
from pathways_nb.parallel.fsdp.passes import built_in_passes, pass_registry
from pathways_nb.parallel.fsdp.passes.edits import Edit, Gather, StepCollectives
from pathways_nb.parallel.fsdp.plan_text import plan_of_text, text_of_plan
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, renamed
from pathways_nb.parallel.fsdp.step_planner import Planner
from tests.jax.fsdp.test_options import batch, loss, model
from tests.jax.fsdp.test_passes import NAMES, run
from tests.jax.fsdp.test_planner import CHIP, random_plan, step
from tests.support.closeness import close

ONE = np.float64(1)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The registry as it was."""
    before = dict(pass_registry._passes)
    yield
    pass_registry._passes.clear()
    pass_registry._passes.update(before)


def early(step: StepCollectives, distance: int = 2) -> Iterator[Edit]:
    """Issue each repeated gather some gathers earlier."""
    for number, gather in enumerate(step.gathers):
        if gather.again and number >= distance:
            yield step.move(gather, before=step.gathers[number - distance].at)


def shuffled(step: StepCollectives, seed: int = 0, illegal: bool = False) -> Iterator[Edit]:
    """Move collectives anywhere, or anywhere that is legal."""
    chance = random.Random(seed)
    every = (*step.gathers, *step.reductions)
    places = sorted({place for one in every for place in (one.at, one.read if isinstance(one, Gather) else one.at)})
    for one in every:
        if chance.random() < 0.4:
            fits = (
                (lambda at, one=one: at <= one.read) if isinstance(one, Gather) else (lambda at, one=one: at > one.made)
            )
            near = [place for place in (*places, step.end) if illegal or fits(place)]
            yield step.move(one, before=chance.choice(near[-25:] if isinstance(one, Gather) else near[:25]))


def joined(step: StepCollectives, seed: int = 0) -> Iterator[Edit]:
    """Merge neighbours, whatever the plan's buckets are."""
    chance = random.Random(seed)
    for of in step.alike.values():
        some = [one for one in of.values() if chance.random() < 0.7]
        for first in range(0, len(some) - 2, 3):
            if len({one.dtype for one in some[first : first + 3]}) == 1:
                yield step.merge(*some[first : first + 3])


def copied(step: StepCollectives, seed: int = 0) -> Iterator[Edit]:
    """Gather some again, also what is gathered again already and buckets."""
    chance = random.Random(seed)
    return (step.copy(one) for one in step.gathers if not one.again and chance.random() < 0.5)


def random_passes(plan: pw.FsdpPlan, seed: int, illegal: bool = False) -> pw.FsdpPlan:
    chance = random.Random(seed)
    for name in chance.sample(
        ["sink", "regather", "bucket", "prefetch", "joined", "copied_0", "copied_1"], chance.randint(1, 3)
    ):
        if name.startswith(("joined", "copied")):
            plan = plan.with_pass(name, seed=seed)
        else:
            plan = plan.with_pass(f"after_{name}", seed=chance.randrange(100), illegal=illegal)
    return plan


def register_random() -> None:
    pw.register_pass("joined", after="regather")(joined)
    pw.register_pass("copied_0", after="sink")(copied)
    pw.register_pass("copied_1", after="prefetch")(copied)
    for name in ("sink", "regather", "bucket", "prefetch"):
        pw.register_pass(f"after_{name}", after=name)(shuffled)


def ended(planner: Planner, plan: pw.FsdpPlan) -> int | str:
    """When a step ends by its graph, or why its plan is refused."""
    try:
        found = planner.timeline(plan)
    except pw.PlanError as error:
        return str(error)
    found.graph.check()
    return found.end


def outlined(planner: Planner, plan: pw.FsdpPlan) -> int | str:
    try:
        return planner.ticks(plan)
    except pw.PlanError as error:
        return str(error)


@pytest.mark.parametrize("illegal", [False, True])
@pytest.mark.parametrize("mode", ["zero3", "hsdp", "zero2"])
def test_any_passes_take_the_same_time_by_edits_and_by_the_graph(mode, illegal) -> None:
    register_random()
    planner = step(mode).planner(chip=CHIP, streams=3 if illegal else 2)
    found = list[int | str]()
    for seed in range(12):
        plan = random_passes(random_plan(planner, seed), seed, illegal)
        found.append(ended(planner, plan))
        assert found[-1] == outlined(planner, plan), plan
    assert any(isinstance(one, str) for one in found) == illegal


@pytest.mark.parametrize("seed", range(4))
def test_a_step_with_passes_of_the_user_computes_the_same(seed) -> None:
    register_random()
    buckets = [NAMES[:3], NAMES[3:7], NAMES[7:]]
    plan = pw.FsdpPlan(tuple(pw.Bucket(tuple(one)) for one in buckets), prefetch=1)
    made = pw.fsdp(loss, model(), on=pw.virtual_slice(4, axes=("d",)), plan=random_passes(plan, seed))
    close(run(made.graph(*batch())), jax.jit(jax.value_and_grad(loss))(model(), *batch()))


def test_the_example_of_the_guide_moves_what_it_says() -> None:
    apply = pw.register_pass("early", after="prefetch", search={"distance": (1, 2)})(early)
    planner = step().planner(chip=CHIP)
    plain = planner.per_block()
    graph = planner.timeline(plain).graph
    found = planner.timeline(plain.with_pass("early", distance=1)).graph
    order = [graph.label(op) for op in graph.collectives if op.is_gather]
    moved = [found.label(op) for op in found.collectives if op.is_gather]
    assert sorted(order) == sorted(moved)
    assert order != moved
    assert apply.__doc__ == early.__doc__
    assert isinstance(apply(planner.traced), StepGraph)


def test_a_search_tries_a_pass_with_each_of_its_settings() -> None:
    seen = set[int]()

    def noted(step: StepCollectives, distance: int = 2) -> Iterator[Edit]:
        seen.add(distance)
        return early(step, distance)

    pw.register_pass("noted", after="prefetch", search={"distance": (1, 3)})(noted)
    planner = step().planner(chip=CHIP)
    said = list[str]()
    with_pass = planner.search(budget=100, say=said.append)
    assert seen == {1, 3}
    assert not said
    pass_registry._passes.pop("noted")
    plain = planner.search(budget=100)
    pw.register_pass("noted", after="prefetch")(noted)
    assert planner.ticks(with_pass) <= planner.ticks(plain) * (1 + 1e-4)


def kept(graph: StepGraph) -> StepGraph:
    """Gather nothing again: what the backward pass reads is what the forward pass gathered."""
    first = {op.carries: op for op in graph.collectives if op.is_gather and not op.again}
    again = [op for op in graph.collectives if op.again]
    names = {op.outputs[0]: first[op.carries].outputs[0] for op in again}
    return graph.with_ops(renamed(op, names) for op in graph.ops if op not in again)


def test_a_search_uses_a_pass_on_the_graph_that_gains_and_says_that_it_is_slow() -> None:
    pw.register_pass("kept", after="regather", edits="graph")(kept)
    planner = step().planner(chip=CHIP)
    said = list[str]()
    plan = planner.search(budget=100, say=said.append)
    assert [one.name for one in plan.passes] == ["kept"]
    assert ended(planner, plan) == planner.ticks(plan) < planner.ticks(plan.without_pass("kept"))
    (line,) = said
    assert line.startswith("search: kept changes the graph itself, so a plan with it takes ")
    assert " times as long as one of edits (" in line
    made = pw.fsdp(loss, model(), on=pw.virtual_slice(4, axes=("d",)))
    graph = made.with_plan(made.plan.with_pass("kept")).graph(*batch())
    assert not any(op.again for op in graph.collectives)
    close(run(graph), jax.jit(jax.value_and_grad(loss))(model(), *batch()))


def test_a_search_within_memory_is_not_worse_for_a_pass_that_does_not_fit() -> None:
    """The pass gathers nothing again: quick, and too large."""
    planner, said = step().planner(chip=CHIP), list[str]()
    bound = 0.97 * planner.timeline(planner.search(budget=200)).memory.peak
    without = planner.search(bound, 200)
    pw.register_pass("kept", after="regather", edits="graph")(kept)
    found = planner.search(bound, 200, said.append)
    assert not found.passes
    assert planner.ticks(found) <= planner.ticks(without)
    assert planner.timeline(found).memory.peak <= bound
    assert said[0].startswith("search: kept changes the graph itself")
    assert re.fullmatch(
        r"search: plans were left out, because the best plan with kept needs .* more than the memory", said[1]
    )


def test_a_pass_on_the_graph_is_timed_with_what_the_plan_keeps() -> None:
    pw.register_pass("idle", after="bucket", edits="graph")(lambda graph: graph)
    planner = step().planner(chip=CHIP)
    kept = planner.per_block().keeping(lambda bucket: "layers.1" in bucket.params[0])
    assert planner.ticks(kept.with_pass("idle")) == planner.timeline(kept).end == planner.ticks(kept)
    assert planner.ticks(kept) != planner.ticks(planner.per_block())


def test_a_pass_that_cannot_be_carried_out_is_left_out_of_a_search_and_named() -> None:
    @pw.register_pass("too_late", after="bucket")
    def too_late(step: StepCollectives) -> Iterator[Edit]:
        yield step.move(step.gathers[0], before=step.end)

    planner = step().planner(chip=CHIP)
    said = list[str]()
    plan = planner.search(budget=100, say=said.append)
    assert not plan.passes
    assert said
    assert all(
        line.startswith("search: plans were left out, because pass 'too_late': it moves \"gather embedding")
        for line in said
    )


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (lambda step: None, r"pass 'wrong' returned None; yield its edits, such as `yield step.move"),
    "a number": (lambda step: [3], r"pass 'wrong' yielded 3; yield edits"),
    "twice": (
        lambda step: [step.move(step.gathers[0], before=step.gathers[0].at)] * 2,
        r"pass 'wrong': it edits \"gather embedding\" twice; yield one edit for each collective",
    ),
    "two kinds": (
        lambda step: [step.copy(step.gathers[0]), step.pace(step.gathers[1])],
        r"it yields edits of several kinds \(copy, pace\); write a pass for each",
    ),
    "a place of its own": (
        lambda step: [step.move(step.gathers[0], before=3)],
        r"it moves \"gather embedding\" in front of 3; take a position, such as before=step",
    ),
    "a place that no collective has": (
        lambda step: [step.move(step.gathers[0], before=(0.5,))], r"in front of \(0.5,\); take a position, such as before=step",
    ),
    "a collective": (
        lambda step: [step.move(step.gathers[1], before=step.gathers[0])], r"in front of a collective; take a position",
    ),
    "merges in front of regather": (
        lambda step: [step.merge(*step.gathers[1:3])],
        r"it merges gathers in front of \"regather\", which could not gather them again\. .*after='regather'",
    ),
    "merges nothing": (lambda step: [step.merge()], r"it merges nothing; give the collectives"),
    "a number in place of edits": (lambda step: 3, r"pass 'wrong' returned 3; yield its edits"),
    "an error of ours": (lambda step: step.gathers[0].nothing, r"pass 'wrong' raised AttributeError"),
    "too late": (
        lambda step: [step.move(step.gathers[0], before=step.end)],
        r"it moves \"gather embedding\" behind the operation that first reads it\. A gather may begin earlier",
    ),
    "too early": (
        lambda step: [step.move(step.reductions[-1], before=step.gathers[0].at)],
        r"it moves \"reduce embedding.*\" in front of the operation that makes it\. A reduction may begin later",
    ),
    "unlike": (
        lambda step: [step.merge(step.gathers[0], step.reductions[0])],
        r"it merges \"gather embedding\" and \"reduce .*\": gathers, repeated gathers and reductions are merged apart",
    ),
    "a reduction again": (lambda step: [step.copy(step.reductions[0])], r"it cannot copy \"reduce .*, which is no gather"),
    "an error": (lambda step: [step.gathers[999]], r"pass 'wrong' raised IndexError: tuple index out of range"),
    "another step's": (
        lambda step: [step.pace(step.gathers[0]._replace(again=True))],
        r"which is no collective of this step; take them from step.gathers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_a_pass_says_wrongly_is_named_by_both_interpreters(name) -> None:
    make, text = WRONG[name]
    pw.register_pass("wrong", after="sink")(lambda step: make(step))
    planner = step().planner(chip=CHIP)
    plan = planner.per_parameter().with_pass("wrong")
    for evaluate in (planner.ticks, planner.timeline):
        with pytest.raises(pw.PlanError, match=text):
            evaluate(plan)


def without_a_reduction(graph: StepGraph) -> StepGraph:
    """Who reads a reduced gradient reads the one before."""
    op = next(op for op in graph.collectives if not op.is_gather and op.outputs[0] not in graph.flat.outputs)
    made = next(one for one in graph.ops if one.outputs == op.inputs)
    names = {op.outputs[0]: made.inputs[0]}
    return graph.reordered(renamed(one, names) for one in graph.ops if one is not op)


def without_the_loss(graph: StepGraph) -> StepGraph:
    op = next(op for op in graph.ops if isinstance(op, CollectiveOp) and not op.carries)
    return graph.reordered(renamed(one, {op.outputs[0]: op.inputs[0]}) for one in graph.ops if one is not op)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda graph: None, r"pass 'wrong' returned NoneType, not the StepGraph after the pass"),
        (
            lambda graph: graph.reordered(reversed(graph.ops)),
            r"pass 'wrong': .* reads what .* makes, which stands behind it",
        ),
        (
            lambda graph: graph.reordered(op for op in graph.ops if op is not graph.collectives[-1]),
            r"pass 'wrong' returned a graph in which nothing makes the gradient of embedding",
        ),
        (lambda graph: graph.reordered(graph.ops[:-1]), r"pass 'wrong' returned a graph in which nothing makes the"),
        (without_a_reduction, r"in which the gradient of .* comes through other reductions \(0 and 1 before\)"),
        (without_the_loss, r"in which the loss comes through other reductions \(0 and 1 before\)"),
        (lambda graph: replace(graph, joins=()), r"a graph with other joins than it was given; change its operations"),
    ],
)
def test_a_graph_that_is_wrong_is_refused(change, text) -> None:
    pw.register_pass("wrong", after="bucket", edits="graph")(lambda graph: change(graph))
    planner = step().planner(chip=CHIP)
    with pytest.raises(pw.PlanError, match=text):
        planner.timeline(planner.per_block().with_pass("wrong"))


def test_what_cannot_be_registered_is_named() -> None:
    for name, text in {"": "write a name of one word", "two words": "write a name of one word",
                       "bucket": "that is a pass of every step"}.items():  # fmt: skip
        with pytest.raises(pw.UsageError, match=text):
            pw.register_pass(name, after="sink")
    with pytest.raises(pw.UsageError, match=r"after='buckets' is no pass. Did you mean 'bucket'\? All: sink, regather"):
        pw.register_pass("own", after="buckets")
    with pytest.raises(pw.UsageError, match=r"after='pace' is too late for edits; write after='prefetch', or"):
        pw.register_pass("own", after="pace")
    with pytest.raises(pw.UsageError, match=r"edits='ops'; write 'collectives', or 'graph'"):
        pw.register_pass("own", after="sink", edits="ops")  # type: ignore[arg-type]
    for make, search, text in [
        (lambda: (), {}, r"takes no step; its first parameter is the step"),
        (lambda step, distance: (), {}, r"give 'distance' a number, a truth or a text as its default"),
        (early, {"distant": (1,)}, r"has no setting 'distant' to search. Did you mean 'distance'\?"),
        (early, {"distance": 3}, r"search\['distance'\] is 3; give the values to try, as in \(1, 2, 4\)"),
        (early, {"distance": ()}, r"give the values to try"),
        (early, {"distance": ("far",)}, r"search\['distance'\] has 'far', which is no number, as 2 is"),
        (early, {"distance": (float("nan"),)}, r"search\['distance'\] has nan"),
        (early, {"distance": range(1, 40)}, r"search= has 39 combinations, of which at most 16 are tried"),
        (early, [("distance", (1,))], r"give values by setting, as in search=\{'count': \(1, 2, 4\)\}"),
        (dict, {}, r"is no function of a step"),
        (lambda step, x=ONE: (), {}, r"give 'x' a number, a truth or a text as its default"),
    ]:
        with pytest.raises(pw.UsageError, match=text):
            pw.register_pass("own", after="sink", search=search)(make)  # type: ignore[arg-type]
    with pytest.raises(pw.UsageError, match=r"after=\['sink'\] is no pass. Give its name"):
        pw.register_pass("own", after=["sink"])  # type: ignore[arg-type]
    with pytest.raises(pw.UsageError, match=r"pass 'kept' was given an? .*FsdpStep; give it a step's graph, such as"):
        pw.register_pass("kept", after="prefetch")(early)(step())  # type: ignore[arg-type]
    pw.register_pass("one", after="sink")(early)
    pw.register_pass("two", after="one")(early)
    with pytest.raises(pw.UsageError, match=r"'two' runs behind it, for whose edits after='finish' is too late"):
        pw.register_pass("one", after="finish", edits="graph")
    with pytest.raises(pw.UsageError, match=r"after='two' runs behind 'one' itself"):
        pw.register_pass("one", after="two")(early)
    assert [one.name for one in pass_registry.ordered()][:4] == ["sink", "one", "two", "regather"]


def test_a_plan_says_its_passes_in_words_and_in_files(tmp_path) -> None:
    pw.register_pass("early", after="prefetch")(early)
    names = [one.name for one in step().parameters]
    plan = step().plan.with_pass("early", distance=3)
    assert str(plan).endswith("\npass early distance=3")
    text = text_of_plan(plan, names)
    assert text.endswith("\npass: early distance=3")
    assert plan_of_text(text, names).passes == plan.passes
    plan.save(tmp_path / "plan.json")
    assert pw.FsdpPlan.load(tmp_path / "plan.json") == plan
    assert plan.with_pass("early").passes[0].settings == ()
    assert not plan.without_pass("early").passes
    for wrong, said in [
        ("pass: erly", r"line 2 of the buckets: there is no pass 'erly'. Did you mean 'early'\? .*run the cell with"),
        ("pass: early distant=1", r"line 2 .*pass 'early' has no setting 'distant'. Did you mean 'distance'\?"),
        ("pass: early distance=far", r"line 2 .*pass 'early': distance='far' is no number, as 2 is"),
        ("pass: early distance", r"line 2 .*'distance' is no setting; write name=value"),
        ("pass:", r"line 2 .*name a pass behind 'pass:'"),
    ]:
        with pytest.raises(pw.PlanError, match=said):
            plan_of_text(f"*\n{wrong}", names)
    pass_registry._passes.pop("early")
    with pytest.raises(pw.PlanError, match=r"there is no pass 'early'.*If it is yours, run the cell with @pw.register"):
        step().with_plan(pw.FsdpPlan.load(tmp_path / "plan.json"))
    with pytest.raises(
        pw.PlanError, match=r"pass 'sink' is one that every step has; a plan names only passes of yours"
    ):
        plan.with_pass("sink")


def test_a_file_from_before_passes_opens(tmp_path) -> None:
    plan = step().plan
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "old.json").write_text(text.replace(',\n "passes": []', ""))
    assert "passes" not in (tmp_path / "old.json").read_text()
    assert pw.FsdpPlan.load(tmp_path / "old.json") == plan
    (tmp_path / "bad.json").write_text(text.replace('"passes": []', '"passes": [{"name": "a", "settings": {"b": []}}]'))
    with pytest.raises(pw.PlanError, match=r"passes\[0\].settings.b is \[\], no value of a setting"):
        pw.FsdpPlan.load(tmp_path / "bad.json")


def test_the_explorer_runs_the_passes_and_hears_of_new_ones() -> None:
    explorer = pw.explore_fsdp(step(), chip=CHIP)
    assert not explorer.own_passes
    before = explorer.timeline.end
    pw.register_pass("early", after="prefetch", search={"distance": (1, 2)})(early)
    assert explorer.own_passes == ("early distance=1", "early distance=2")
    explorer.passes = "early distance=1"
    assert explorer.plan.passes[0].name == "early"
    assert [name for name, _ in explorer.picture.passes] == [
        "traced", "sink", "regather", "bucket", "prefetch", "early", "finish", "pace",
    ]  # fmt: skip
    pw.register_pass("early", after="prefetch")(lambda step, distance=1: ())
    assert explorer.timeline.end == before, "the pass does nothing now"
    explorer.passes = "erly"
    assert "there is no pass 'erly'. Did you mean 'early'?" in explorer.picture.error
    explorer.passes = ""
    explorer.buckets = f"{explorer.text}\npass: early"
    assert explorer.plan.passes[0].name == "early"


def test_a_pass_that_is_registered_again_keeps_its_place_and_is_what_runs() -> None:
    pw.register_pass("one", after="prefetch")(lambda step: ())
    pw.register_pass("two", after="prefetch")(lambda step: ())
    made = pw.fsdp(loss, model(), on=pw.virtual_slice(4, axes=("d",)))
    with_pass = made.with_plan(made.plan.with_pass("one"))
    first = with_pass._program("value_and_grad", None, 1)
    assert with_pass._program("value_and_grad", None, 1) is first
    pw.register_pass("one", after="prefetch")(lambda step: [step.merge(*step.reductions[:0])] if False else ())
    assert with_pass._program("value_and_grad", None, 1) is not first, "the compiled step would be that of before"
    assert [one.name for one in pass_registry.own_passes()] == ["one", "two"]


def test_a_pass_cannot_change_what_others_see() -> None:
    pw.register_pass("spoils", after="regather")(lambda step: step.gathers.clear())
    planner = step().planner(chip=CHIP)
    plain = planner.per_block()
    before = planner.ticks(plain)
    with pytest.raises(
        pw.PlanError, match=r"pass 'spoils' raised AttributeError: 'tuple' object has no attribute 'clear'"
    ):
        planner.ticks(plain.with_pass("spoils"))
    assert planner.ticks(plain) == before


@jax.custom_vjp
def doubled(x: Any, w: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x, w: (x * 2, (x, w)), lambda kept, g: (g * 2 + kept[1], (g * kept[0]).sum(0)))


@pytest.mark.parametrize("mode", ["zero3", "zero2", "ddp"])
def test_what_the_backward_pass_alone_reads_takes_the_same_time_by_both(mode) -> None:
    def late_loss(params: Any, x: Any) -> Any:
        return ((doubled(jnp.tanh(x @ params["a"]), params["b"]) @ params["c"]) ** 2).mean()

    shapes = {"a": (512, 512), "b": (512,), "c": (512, 512)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    batch = (jax.ShapeDtypeStruct((64, 512), jnp.float32),)
    planner = pw.fsdp(late_loss, params, on=pw.virtual_slice(16), mode=mode, batch=batch).planner(chip=CHIP)
    plans = [planner.per_block(), planner.per_parameter(1), planner.search(), planner.per_block().keeping(True)]
    for plan in plans:
        assert planner.ticks(plan) == planner.timeline(plan).end


def test_gathers_that_were_moved_are_gathered_again_in_the_usual_order() -> None:
    """Those with one reader, as the barrier of a checkpointed block, stand there as they were traced."""

    @pw.register_pass("hoist", after="sink")
    def hoist(step: StepCollectives) -> Iterator[Edit]:
        return (
            step.move(one, before=step.gathers[0].at) for one in reversed(step.gathers[1:]) if "out" in step.label(one)
        )

    tokens = jax.ShapeDtypeStruct((16, 256), jnp.int32)
    shape = llama3.Shape(layers=2, features=256, hidden=512, heads=4, shared_heads=2, vocabulary=512)
    made = pw.fsdp(
        llama3.loss(shape, remat=True), llama3.params(shape), on=pw.virtual_slice(16), batch=(tokens, tokens)
    )
    planner = made.planner(chip=CHIP)
    for plan in (planner.per_block(), planner.per_parameter(), *(random_plan(planner, seed) for seed in range(6))):
        with_pass = plan.with_pass("hoist")
        assert planner.ticks(with_pass) == planner.timeline(with_pass).end


def test_a_function_of_ours_under_a_name_of_the_users_is_theirs() -> None:
    pw.register_pass("prefetch_again", after="prefetch")(built_in_passes.prefetch.__wrapped__)  # type: ignore[attr-defined]
    assert [one.name for one in pass_registry.own_passes()] == ["prefetch_again"]
    planner = step().planner(chip=CHIP)
    plan = planner.per_block(0).with_pass("prefetch_again", distance=2)
    assert planner.ticks(plan) == planner.timeline(plan).end == planner.ticks(planner.per_block(2))


def test_names_of_settings_are_the_users_own() -> None:
    pw.register_pass("named", after="sink")(lambda given, step=1, graph=2, self=3, name="x": ())
    plan = step().plan.with_pass("named", step=5, graph=6, self=7, name="y")
    planner = step().planner(chip=CHIP)
    assert planner.ticks(plan) == planner.timeline(plan).end
    assert str(plan.passes[0]) == "named step=5 graph=6 self=7 name=y"


def test_a_whole_number_stays_one() -> None:
    pw.register_pass("early", after="prefetch")(early)
    assert step().plan.with_pass("early", distance=3.0).passes[0].settings == (("distance", 3),)
    with pytest.raises(pw.PlanError, match=r"pass 'early': distance=2.5 is no whole number, as 2 is"):
        step().plan.with_pass("early", distance=2.5)
    with pytest.raises(pw.PlanError, match=r"prefetch=-1 is negative"):
        step().planner(chip=CHIP).ticks(replace(step().plan, prefetch=-1))


def test_own_passes_of_the_explorer_are_named_in_one_place() -> None:
    pw.register_pass("early", after="prefetch")(early)
    explorer = pw.explore_fsdp(step(), chip=CHIP)
    explorer.passes = "early"
    explorer.wrapping = "own"
    assert "pass" not in explorer.buckets
    explorer.passes = "early distance=1"
    assert explorer.plan.passes[0].settings == (("distance", 1),)
    explorer.passes = ""
    assert not explorer.plan.passes
