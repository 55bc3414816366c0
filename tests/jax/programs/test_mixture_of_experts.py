"""A sparse exchange: gradients of the dense reference, transfers to chosen experts alone, few traces."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.examples import mixture
from pathways_nb.examples.sparse_mixture import SparseMixture
from pathways_nb.parallel.sparse_experts import Chosen, Experts, bucket, choose, combine, everyone, group, route, send
from tests.support.closeness import close

EXPERTS, DIM, HIDDEN = 4, 16, 8


class Model(SparseMixture):
    """The small mixture with its router on ``place`` and an expert on each of ``homes``."""

    def __init__(self, place: pw.VirtualSlice, homes: list[pw.VirtualSlice], top: int = 1):
        super().__init__(place, homes, top, spec=pw.P("x"))
        self.kinds, self.top = mixture.Kinds(EXPERTS, DIM), top
        self.front, self.params = mixture.init(self.kinds, HIDDEN)
        self.graph_gradients = pw.program(
            jax.value_and_grad(self.loss, argnums=(0, 1)), static_argnames="chosen", name="gradients"
        )

    def reference(self, x, targets):
        """Loss and gradients of plain JAX."""
        dense = functools.partial(mixture.dense_loss, top=self.top)
        return jax.value_and_grad(dense, (0, 1))(self.front, self.params, x, targets)


@pytest.fixture
def places(controller) -> tuple[pw.VirtualSlice, list[pw.VirtualSlice]]:
    """A router on two devices, two experts beside it and two on the other island."""
    router = pw.virtual_slice(2, island=0, name="router")
    return router, [pw.virtual_slice(1, island=e // 2, name=f"expert {e}") for e in range(EXPERTS)]


@pytest.fixture
def model(places) -> Model:
    return Model(*places)


def between_places(run: pw.Run) -> list[str]:
    """The transfers from one place to another, not from the host: value and destination."""
    events = run.events
    return sorted(events.select(events.is_("kind", "transfer") & ~events.is_("route", "host"))["name"])


def traces(run: pw.Run) -> list[str]:
    """The programs that were traced."""
    return list(run.events.of_kind("trace")["name"])


@pytest.mark.parametrize(("count", "rows"), [(0, 8), (1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (1000, 1024)])
def test_buckets_are_few_and_large_enough(count: int, rows: int) -> None:
    assert bucket(count) == rows
    assert bucket(count, 3) >= count


def test_experts_with_tokens_are_chosen_each_with_room_for_its_own() -> None:
    assert choose(np.array([3, 0, 12, 1])) == Chosen((0, 2, 3), (8, 16, 8))
    assert choose(jnp.array([0, 40])) == Chosen((1,), (64,))
    assert choose([5, 5], least=2) == Chosen((0, 1), (8, 8))
    assert choose([0, 0, 0]) == Chosen((), ())
    assert everyone(3, 20) == Chosen((0, 1, 2), (20, 20, 20))


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (np.zeros((2, 2), int), r"counts is int64\[2,2\]; give the tokens of each expert, group\(mask\).counts"),
        (np.array([1.5, 2.0]), r"counts is float64\[2\]; give the tokens"),
    ],
)
def test_counts_that_say_nothing_are_refused(counts, text: str) -> None:
    with pytest.raises(pw.UsageError, match=text):
        choose(counts)


@pytest.mark.parametrize("top", [1, 2])
def test_a_token_goes_to_its_largest_gates(top: int) -> None:
    gates = np.random.default_rng(0).permuted(np.tile(np.arange(4.0), (10, 1)), axis=1)
    mask = route(gates, top)
    assert mask.sum(1).tolist() == [top] * 10
    assert gates[np.asarray(mask)].min() == 4 - top


def test_tokens_are_grouped_by_expert_in_their_order() -> None:
    groups = group(jnp.array([[1, 0, 1], [0, 0, 0], [1, 0, 1], [0, 0, 1]], bool))
    assert groups.rows.tolist() == [[0, 2, 4, 4], [4, 4, 4, 4], [0, 2, 3, 4]]
    assert groups.counts.tolist() == [2, 0, 3]
    assert list(map(int, groups.numbers)) == [0, 1, 2]


@pytest.mark.parametrize("top", [1, 2])
def test_sent_and_combined_no_token_is_lost_or_doubled(top: int) -> None:
    random = np.random.default_rng(1)
    tokens, gates = jnp.array(random.standard_normal((50, 3))), jax.nn.softmax(random.standard_normal((50, 6)))
    mask = route(gates, top)
    rows, counts, numbers = group(mask)
    total = jnp.zeros_like(tokens)
    for expert, capacity in zip(*choose(counts), strict=True):
        sent = send(tokens, rows, numbers[expert], capacity)
        assert sent.shape == (min(capacity, 50), 3)
        assert int(np.any(sent, axis=1).sum()) == counts[expert]
        total = combine(total, sent, gates, rows, numbers[expert])
    close(total, (gates * mask).sum(1)[:, None] * tokens)


def masks(tokens: int) -> dict[str, np.ndarray]:
    """Routings of some tokens, (T, E)."""
    random = np.random.default_rng(2)
    eye, gates = np.eye(EXPERTS, dtype=bool), random.standard_normal((tokens, EXPERTS))
    top_1, top_2 = (np.array(route(jnp.array(gates), top)) for top in (1, 2))
    kept = random.random((tokens, 1)) < 0.7
    return {
        "top 1": top_1,
        "top 2": top_2,
        "some tokens dropped": top_2 & kept,
        "all to one": eye[np.full(tokens, 2)],
        "one token alone": eye[np.full(tokens, 1)] & (np.arange(tokens) == 5)[:, None],
        "none": np.zeros((tokens, EXPERTS), bool),
        "every expert": np.ones((tokens, EXPERTS), bool),
        "any number": random.random((tokens, EXPERTS)) < 0.3,
    }


def weighted(params: Any, tokens: jax.Array, gates: jax.Array, mask: np.ndarray) -> jax.Array:
    """Every expert on every token, in plain JAX."""
    made = jnp.stack([mixture.expert(one, tokens) for one in params])
    return jnp.einsum("te,etd->td", jnp.where(mask, gates, 0), made)


@pytest.mark.parametrize("homes", ["of their own", "two at each"])
@pytest.mark.parametrize("routing", masks(4))
def test_any_routing_has_result_and_gradients_of_the_dense_reference(places, routing: str, homes: str) -> None:
    router, own = places
    tokens_count = 30
    random = np.random.default_rng(3)
    mix = Experts(mixture.expert, router, own if homes == "of their own" else [own[0], own[2]] * 2, pw.P("x"))
    params = mixture.init(mixture.Kinds(EXPERTS, DIM), HIDDEN)[1]
    tokens, cotangent = random.standard_normal((2, tokens_count, DIM)).astype("f4")
    gates = random.random((tokens_count, EXPERTS)).astype("f4")
    mask = masks(tokens_count)[routing]
    groups = pw.jit(group, on=router)(mask)
    chosen = choose(groups.counts)
    assert chosen.experts == tuple(np.flatnonzero(mask.any(0)))
    out, back = mix.vjp(params, tokens, gates, groups, chosen)
    expected, dense_back = jax.vjp(functools.partial(weighted, mask=mask), params, tokens, gates)
    close((out, mix(params, tokens, gates, groups, chosen)), (expected, expected))
    of_params, *of_inputs = back(cotangent)
    expected_params, *expected_inputs = dense_back(cotangent)
    close(of_inputs, expected_inputs)
    close(of_params, {expert: expected_params[expert] for expert in chosen.experts})
    for expert in set(range(EXPERTS)) - set(chosen.experts):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(expected_params[expert]))


def test_tokens_for_which_there_is_no_row_are_dropped(places) -> None:
    router, homes = places
    random = np.random.default_rng(4)
    mix, params = Experts(mixture.expert, router, homes), mixture.init(mixture.Kinds(EXPERTS, DIM), HIDDEN)[1]
    tokens = random.standard_normal((12, DIM)).astype("f4")
    gates, mask = random.random((12, EXPERTS)).astype("f4"), np.eye(EXPERTS, dtype=bool)[[1] * 12]
    groups = pw.jit(group, on=router)(mask)
    out, back = mix.vjp(params, tokens, gates, groups, Chosen((1,), (8,)))
    kept = mask & (np.arange(12) < 8)[:, None]
    expected, dense_back = jax.vjp(functools.partial(weighted, mask=kept), params, tokens, gates)
    close(out, expected)
    _, of_tokens, of_gates = back(np.ones_like(tokens))
    close([of_tokens, of_gates], list(dense_back(np.ones_like(tokens))[1:]))


BATCHES = {"all": (9, 5, 12, 6), "some": (20, 0, 12, 0), "one": (0, 32, 0, 0)}


@pytest.mark.parametrize(("batch", "top"), [("all", 1), ("some", 1), ("one", 1), ("some", 2)])
def test_the_whole_step_has_the_gradients_of_every_expert_on_every_token(places, batch: str, top: int) -> None:
    model = Model(places[0], places[1], top)
    x, targets = model.kinds.batch(*BATCHES[batch])
    with pw.record() as run:
        value, front, picked = model.gradients(model.front, model.params, x, targets)
    if top == 1:
        assert tuple(picked) == tuple(e for e, count in enumerate(BATCHES[batch]) if count)
    expected, (expected_front, expected_experts) = model.reference(x, targets)
    close(value, expected)
    close(front, expected_front)
    close(picked, {expert: expected_experts[expert] for expert in picked})
    idle = set(range(EXPERTS)) - set(picked)
    assert not any(np.any(leaf) for expert in idle for leaf in jax.tree.leaves(expected_experts[expert]))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_front)) > 1e-3, "there is something to compare"
    assert not {f"expert {expert}" for expert in idle} & set(run.events["place"]), "nothing is sent to them or runs"


def test_each_chosen_expert_is_sent_to_and_sends_twice(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["some"])
    with pw.record() as run:
        model.gradients(model.front, model.params, x, targets)
    there = [f"router → expert {expert}" for expert in (0, 2)]
    assert between_places(run) == sorted(2 * there + 2 * ["made → router", "cotangents → router"])


def test_another_choice_is_traced_for_new_capacities_of_a_place_alone(model) -> None:
    """Which experts run, in whatever combination, is data."""

    def traced(*tokens: int) -> list[str]:
        with pw.record() as run:
            pw.wait(model.gradients(model.front, model.params, *model.kinds.batch(*tokens)))
        return traces(run)

    assert {"to expert 0", "back to expert 0", "combine"} <= set(traced(16, 0, 16, 0))
    assert traced(0, 16, 0, 16) == ["to expert 1", "to expert 3", "back to expert 1", "back to expert 3"]
    for tokens in ((16, 16, 0, 0), (0, 0, 16, 16), (12, 0, 10, 10), (11, 11, 10, 0)):
        assert traced(*tokens) == []
    # A new capacity is also new at the router.
    assert traced(0, 0, 32, 0) == ["to expert 2", "combine", "back to expert 2", "collect"]


def test_experts_at_one_place_share_their_traces(places) -> None:
    router, homes = places
    seen = []

    def expert(params: Any, tokens: jax.Array) -> jax.Array:
        seen.append(tokens.shape)
        return tokens * params

    mix, tokens, gates = Experts(expert, router, homes[2:3] * 4), np.ones((8, 2), "f4"), np.ones((8, 4), "f4")
    for number in range(4):
        groups = pw.jit(group, on=router)(np.eye(4, dtype=bool)[[number] * 8])
        result = mix([1.0, 2.0, 3.0, 4.0], tokens, gates, groups, choose(groups.counts))
        np.testing.assert_array_equal(result, tokens * (number + 1))
    assert seen == [(8, 2)]


def test_inside_a_program_the_choice_is_static_and_jax_differentiates(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["some"])
    picked = {expert: model.params[expert] for expert in (0, 2)}
    with pw.record() as run:
        value, (front, experts) = model.graph_gradients(
            model.front, picked, x, targets, chosen=Chosen((0, 2), (32, 16))
        )
    assert all(not program.needed for program in run.programs), "no value is fetched"
    assert sorted(name for name in between_places(run) if "→ expert" in name) == [
        *2 * ["router → expert 0"], *2 * ["router → expert 2"],
    ]  # fmt: skip
    expected, (expected_front, expected_experts) = model.reference(x, targets)
    close(value, expected)
    close(front, expected_front)
    close(experts, {expert: expected_experts[expert] for expert in (0, 2)})


def test_all_experts_need_no_value_and_more_transfers(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["some"])
    with pw.record() as run:
        value, *_ = model.gradients(model.front, model.params, x, targets, lambda counts: everyone(EXPERTS, 32))
    assert all(not program.needed for program in run.programs)
    assert len(between_places(run)) == 4 * EXPERTS
    close(value, model.reference(x, targets)[0])


def test_the_graph_says_what_had_to_be_known(model) -> None:
    with pw.record() as run:
        model.gradients(model.front, model.params, *model.kinds.batch(*BATCHES["one"]))
    begin, *others = run.programs
    assert [begin.graph.names[node] for node in begin.needed] == ["look"]
    assert all(not program.needed for program in others)


def test_nothing_stays_behind_a_step(model, controller, quiet) -> None:
    pw.wait(model.gradients(model.front, model.params, *model.kinds.batch(*BATCHES["some"])))
    quiet(controller)
    assert not controller.machine.store.buffers


def test_a_result_has_the_type_of_gates_times_results(places) -> None:
    router, homes = places
    mix = Experts(lambda params, tokens: tokens * params, router, homes)
    tokens, gates, params = jnp.ones((8, 2), jnp.bfloat16), np.full((8, 4), 1.01, "f4"), [jnp.bfloat16(2.0)] * 4
    for mask in (np.eye(4, dtype=bool)[[1] * 8], np.zeros((8, 4), bool)):
        groups = pw.jit(group, on=router)(mask)
        out, back = mix.vjp(params, tokens, gates, groups, choose(groups.counts))
        close(out, np.full((8, 2), np.float32(2.02)) * mask.any(1, keepdims=True))
        _, *cotangents = back(np.ones((8, 2), "f4"))
        assert [one.dtype for one in (out, *cotangents)] == [jnp.float32, jnp.bfloat16, jnp.float32]


def test_parameters_that_are_missing_are_named(model) -> None:
    x, _ = model.kinds.batch(*BATCHES["some"])
    (tokens, gates), _, groups = model.begin(model.front, x)
    with pytest.raises(pw.UsageError, match=r"expert 2 is chosen, but there are parameters of \[0\] and 4 places: give the parameters of \[0, 2\]"):  # fmt: skip
        model.experts({0: model.params[0]}, tokens, gates, groups, Chosen((0, 2), (32, 32)))
    with pytest.raises(pw.UsageError, match=r"expert 9 is chosen, but there are parameters of \[9\] and 4 places"):
        model.experts({9: model.params[0]}, tokens, gates, groups, Chosen((9,), (32,)))
    with pytest.raises(pw.UsageError, match=r"no expert is chosen, and no parameters tell the shape of its result: give those of any expert"):  # fmt: skip
        model.experts({}, tokens, gates, groups, Chosen((), ()))
