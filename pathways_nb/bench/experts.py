"""Mixture of experts: a training step with the experts that got tokens, over one with all experts on all tokens.

Eight experts on four islands, two at each, and a router on a fifth; the two best experts of each token. Which kinds of
tokens a batch has, and so which experts get how many, is drawn anew for each step. *Sparse* fetches the counts and
calls each chosen expert by itself; *dense* is one graph in which every expert has room for every token, so that nothing
is fetched; *plain JAX* runs every expert on every token on one device with all cores. All three take the same steps.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from statistics import mean
from typing import Any, NamedTuple

import jax
import numpy as np

import pathways_nb as pw
from pathways_nb.bench.stopwatch import interleaved, ratio, spread
from pathways_nb.examples import mixture
from pathways_nb.examples.sparse_mixture import SparseMixture, learned
from pathways_nb.parallel.sparse_experts import everyone

EXPERTS, PLACES, TOP = 8, 4, 2
"""Experts, their places, and experts of each token."""
TOKENS, DIM, HIDDEN, LEAST = 1024, 256, 1024, 128
"""Tokens of a batch, features of a token, hidden features of an expert, and fewest rows of an expert."""
FIRST, STEPS, ROUNDS = 10, 100, 15
"""Steps before new traces are counted, steps in which they are, and timed rounds."""
SKEW = 0.3
"""Concentration of the Dirichlet distribution of kinds in a batch: some are absent."""
SPARSE, DENSE, PLAIN = "sparse", "dense", "plain JAX, one device, all cores"

Batch = tuple[np.ndarray, np.ndarray]


def run() -> dict[str, Any]:
    """Return bytes and seconds of sparse steps over dense ones, and the traces that changing choices cost."""
    kinds, pairs = kinds_and_pairs()
    batches = [batch(pairs) for _ in range(FIRST + STEPS)]
    front, experts = mixture.init(kinds, HIDDEN)
    with pw.attach("cpu", islands=1 + PLACES, devices_per_island=1):
        router = pw.virtual_slice(1, island=0, name="router")
        places = [pw.virtual_slice(1, island=1 + place, name=f"place {place}") for place in range(PLACES)]
        homes = [places[expert % PLACES] for expert in range(EXPERTS)]
        model = SparseMixture(router, homes, TOP, LEAST)
        there = {expert: pw.put(experts[expert], on=home) for expert, home in enumerate(homes)}
        here = pw.put(front, on=router)
        steps = [_sparse_step(model, here, there, *one) for one in batches]
        every, plain = everyone(EXPERTS, TOKENS), jax.jit(_plain_step)
        dense = _recorded(lambda: model.step_in_one_graph(here, there, *batches[0], chosen=every))
        front, experts = jax.device_put((front, experts))
        ways = {
            SPARSE: _in_turn(batches[FIRST:], lambda x, y: pw.wait(model.step(here, there, x, y))),
            DENSE: _in_turn(
                batches[FIRST:], lambda x, y: pw.wait(model.step_in_one_graph(here, there, x, y, chosen=every))
            ),
            PLAIN: _in_turn(batches[FIRST:], lambda x, y: jax.block_until_ready(plain(front, experts, x, y))),
        }
        seconds = {name: times[1:] for name, times in interleaved(ways, 1 + ROUNDS).items()}  # the first compiles
    counted = steps[FIRST:]
    figures = {
        "bytes_sparse_over_dense": mean(step.sent for step in counted) / _sent(dense),
        "seconds_sparse_over_dense": ratio(seconds, SPARSE, DENSE),
        "seconds_sparse_over_jax_dense": ratio(seconds, SPARSE, PLAIN),
        f"retraces_in_{STEPS}_steps": sum(step.traces for step in counted),
    }
    detail = {
        "seconds of a step": {name: spread(times) for name, times in seconds.items()},
        "best round": {
            f"{SPARSE} over {other}": min(a / b for a, b in zip(seconds[SPARSE], seconds[other], strict=True))
            for other in (DENSE, PLAIN)
        },
        f"traces in the first {FIRST} steps": sum(step.traces for step in steps[:FIRST]),
        "choices of experts in the steps counted": len({step.called for step in counted}),
        "experts called in a step": mean(len(step.called) for step in counted),
        "bytes sent in a dense step": _sent(dense),
    }
    return {"figures": figures, "detail": detail}


def kinds_and_pairs() -> tuple[mixture.Kinds, mixture.Kinds]:
    """Return a kind of tokens for each expert, and one for each ordered pair of them: mostly this, partly that."""
    kinds, pairs = mixture.Kinds(EXPERTS, DIM), mixture.Kinds(EXPERTS * (EXPERTS - 1), DIM)
    pairs.centres = np.array([a + b / 2 for a, b in itertools.permutations(kinds.centres, 2)])
    return kinds, pairs


def batch(pairs: mixture.Kinds) -> Batch:
    """Return a batch in which some kinds are frequent, and some perhaps absent."""
    shares = np.array([a * b for a, b in itertools.permutations(pairs.random.dirichlet([SKEW] * EXPERTS), 2)])
    return pairs.batch(*pairs.random.multinomial(TOKENS, shares / shares.sum()))


class StepTaken(NamedTuple):
    """What a step of the sparse mixture took: traces of programs, bytes between places, and the experts called."""

    traces: int
    sent: int
    called: tuple[int, ...]


def _sparse_step(model: SparseMixture, front: Any, experts: Any, x: np.ndarray, y: np.ndarray) -> StepTaken:
    called: list[int] = []
    run = _recorded(lambda: called.extend(model.step(front, experts, x, y)[2]))
    return StepTaken(len(run.events.of_kind("trace")), _sent(run), tuple(called))


def _recorded(step: Callable[[], object]) -> pw.Run:
    with pw.record() as run:
        step()
    return run


def _sent(run: pw.Run) -> int:
    """Return the bytes sent from one place to another; what comes from the host is not counted."""
    events = run.events
    return int(events.select(events.is_("kind", "transfer") & ~events.is_("route", "host"))["bytes"].sum())


def _in_turn(batches: list[Batch], step: Callable[[Any, Any], object]) -> Callable[[], object]:
    """Return a function without arguments that takes a step with the next batch."""
    following = itertools.cycle(batches)
    return lambda: step(*next(following))


def _plain_step(front: Any, experts: Any, x: jax.Array, y: jax.Array) -> Any:
    """Return loss and learned parameters, with every expert on every token."""
    loss = functools.partial(mixture.dense_loss, top=TOP)
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(front, experts, x, y)
    return value, learned((front, experts), gradients)
