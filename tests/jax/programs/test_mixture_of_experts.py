"""A sparse exchange: gradients of the dense reference, transfers to chosen experts alone, few programs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.examples import mixture
from pathways_nb.parallel.experts import Chosen, Experts, bucket, choose, combine, everyone, route, send
from tests.support.closeness import close

EXPERTS, DIM, HIDDEN = 4, 16, 8


class Model:
    """The small mixture with its router on ``place`` and an expert on each of ``homes``."""

    def __init__(self, place: pw.VirtualSlice, homes: list[pw.VirtualSlice], top: int = 1):
        rows = pw.P("x")
        self.kinds = mixture.Kinds(EXPERTS, DIM)
        self.front, self.params = mixture.init(self.kinds, HIDDEN)
        self.top = top
        self.look = pw.jit(self._look, on=place, in_shardings=(None, rows), out_shardings=pw.P())
        self.features = pw.jit(mixture.features, on=place, in_shardings=(None, rows), out_shardings=rows)
        self.error = pw.jit(mixture.error, on=place, in_shardings=rows)
        self.experts = Experts(mixture.expert, place, homes, rows)
        self.forward = pw.program(self.loss, static_argnames="chosen", name="forward")
        self.gradients = pw.program(
            lambda *args, chosen: jax.value_and_grad(functools.partial(self.loss, chosen=chosen), (0, 1))(*args),
            static_argnames="chosen",
            name="gradients",
        )

    def _look(self, front, x):
        mask = route(mixture.features(front, x)[1], self.top)
        return mask, mask.sum(0)

    def loss(self, front, picked, x, mask, targets, chosen):
        tokens, gates = self.features(front, x)
        return self.error(self.experts(picked, tokens, gates, mask, chosen), targets)

    def run(self, program, x, targets):
        """What a cell does: route, fetch the counts, dispatch what they ask for."""
        mask, counts = self.look(self.front, x)
        chosen = choose(counts)
        picked = {expert: self.params[expert] for expert in chosen.experts}
        return chosen, program(self.front, picked, x, mask, targets, chosen=chosen)

    def reference(self, x, targets):
        dense = functools.partial(mixture.dense_loss, top=self.top)
        return jax.value_and_grad(dense, (0, 1))(self.front, self.params, x, targets)


@pytest.fixture
def places(controller) -> tuple[pw.VirtualSlice, list[pw.VirtualSlice]]:
    """A router on two devices, two experts beside it and two on the other island."""
    router = pw.virtual_slice(2, island=0, name="router")
    return router, [pw.virtual_slice(1, island=e // 2, name=f"expert {e}") for e in range(EXPERTS)]


@pytest.fixture
def model(places) -> Model:
    router, homes = places
    return Model(router, homes)


def between_places(run: pw.Run, program: str) -> list[str]:
    """The transfers of a program from one place to another, not from the host."""
    events = run.events
    mine = events.select(events.is_("kind", "transfer") & events.is_("program", program) & ~events.is_("route", "host"))
    return sorted(mine["name"])


@pytest.mark.parametrize(("count", "rows"), [(0, 8), (1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (1000, 1024)])
def test_buckets_are_few_and_large_enough(count: int, rows: int) -> None:
    assert bucket(count) == rows
    assert bucket(count, 3) >= count


def test_experts_with_tokens_are_chosen_with_room_for_the_largest_share() -> None:
    assert choose(np.array([3, 0, 12, 1])) == Chosen((0, 2, 3), 16)
    assert choose(jnp.array([0, 40])) == Chosen((1,), 64)
    assert choose([5, 5], least=2) == Chosen((0, 1), 8)
    assert everyone(3, 20) == Chosen((0, 1, 2), 20)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (np.zeros((2, 2), int), r"counts is int64\[2,2\]; give the number of tokens of each expert, mask.sum\(0\)"),
        (np.array([1.5, 2.0]), r"counts is float64\[2\]; give the number"),
        ([0, 0, 0], "none of 3 experts got a token; there is nothing to run"),
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


@pytest.mark.parametrize("top", [1, 2])
def test_sent_and_combined_no_token_is_lost_or_doubled(top: int) -> None:
    random = np.random.default_rng(1)
    tokens, gates = jnp.array(random.standard_normal((50, 3))), jax.nn.softmax(random.standard_normal((50, 6)))
    mask = route(gates, top)
    chosen = choose(mask.sum(0))
    sent = send(tokens, mask, chosen)
    assert {part.shape for part in sent} == {(chosen.capacity, 3)}
    assert [int(np.any(part, axis=1).sum()) for part in sent] == [c for c in mask.sum(0).tolist() if c]
    close(combine(sent, gates, mask, chosen), (gates * mask).sum(1)[:, None] * tokens)


BATCHES = {"all": (9, 5, 12, 6), "some": (20, 0, 12, 0), "one": (0, 32, 0, 0)}


@pytest.mark.parametrize(("batch", "top"), [("all", 1), ("some", 1), ("one", 1), ("some", 2)])
def test_gradients_are_those_of_every_expert_on_every_token(places, batch: str, top: int) -> None:
    router, homes = places
    model = Model(router, homes, top)
    x, targets = model.kinds.batch(*BATCHES[batch])
    with pw.record() as run:
        chosen, (value, (front, picked)) = model.run(model.gradients, x, targets)
    if top == 1:
        assert chosen.experts == tuple(e for e, count in enumerate(BATCHES[batch]) if count)
    expected, (expected_front, expected_experts) = model.reference(x, targets)
    close(value, expected)
    close(front, expected_front)
    close(picked, {expert: expected_experts[expert] for expert in chosen.experts})
    idle = set(range(EXPERTS)) - set(chosen.experts)
    assert not any(np.any(leaf) for expert in idle for leaf in jax.tree.leaves(expected_experts[expert]))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_front)) > 1e-3, "there is something to compare"
    assert not {f"expert {expert}" for expert in idle} & set(run.events["place"]), "nothing is sent to them or runs"


def test_the_exchange_is_what_the_fetched_counts_imply(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["some"])
    with pw.record() as run:
        model.run(model.forward, x, targets)
        model.run(model.gradients, x, targets)
    there = [f"router → expert {expert}" for expert in (0, 2)]
    back = [f"expert {expert} → router" for expert in (0, 2)]
    assert between_places(run, "forward") == sorted(there + back)
    assert between_places(run, "gradients") == sorted(2 * (there + back))


def test_combining_depends_on_the_chosen_experts_and_on_no_others(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["some"])
    with pw.record() as run:
        model.run(model.forward, x, targets)
    graph = run.programs[-1].graph
    (last,) = (node for node in graph.nodes if node.name == "combine")
    sources = [graph.nodes[edge.source] for edge in graph.edges() if edge.target == last.id]
    from_experts = [node.place.label for node in sources if node.place and node.place.label != "router"]
    assert from_experts == ["expert 0", "expert 2"]


def test_all_experts_need_no_value_and_more_transfers(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["some"])
    with pw.record() as run:
        mask, _ = model.look(model.front, x)
        value = model.forward(
            model.front, dict(enumerate(model.params)), x, mask, targets, chosen=everyone(EXPERTS, 32)
        )
    assert all(not program.needed for program in run.programs)
    assert len(between_places(run, "forward")) == 2 * EXPERTS
    close(value, model.reference(x, targets)[0])


def test_the_graph_says_what_had_to_be_known(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["one"])
    with pw.record() as run:
        model.run(model.forward, x, targets)
    look, forward = run.programs
    assert [look.graph.names[node] for node in look.needed] == ["_look"]
    assert [line.split(":")[0] for line, _ in look.needed.values()] == ["test_mixture_of_experts.py"]
    assert forward.needed == {}


def test_other_counts_of_the_same_size_are_the_same_program(model) -> None:
    model.run(model.forward, *model.kinds.batch(20, 0, 12, 0))
    with pw.record() as run:
        chosen, _ = model.run(model.forward, *model.kinds.batch(15, 0, 17, 0))
    assert chosen == Chosen((0, 2), 32)
    assert len(run.events.of_kind("trace", "compile")) == 0


def test_parameters_that_are_missing_are_named(model) -> None:
    x, targets = model.kinds.batch(*BATCHES["some"])
    mask, _ = model.look(model.front, x)
    with pytest.raises(pw.UsageError, match=r"expert 2 is chosen, but there are parameters of \[0\] and 4 places: give the parameters of \[0, 2\]"):  # fmt: skip
        model.forward(model.front, {0: model.params[0]}, x, mask, targets, chosen=Chosen((0, 2), 32))
    with pytest.raises(pw.UsageError, match=r"expert 9 is chosen, but there are parameters of \[9\] and 4 places"):
        model.forward(model.front, {9: model.params[0]}, x, mask, targets, chosen=Chosen((9,), 32))
