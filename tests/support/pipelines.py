"""What the tests of pipelines share: small stages, a causal transformer, and what a run did in order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways_nb as pw
from pathways_nb.parallel.schedules.actions import actions_of

D, HIDDEN, HEADS, WORDS, LENGTH = 8, 16, 2, 11, 12


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mlp(params, x):
    """A residual layer: its gradient by the input needs its weights, that by the weights its input."""
    return x + jnp.tanh(x @ params["up"]) @ params["down"]


def mlp_params(number: np.random.Generator) -> dict[str, np.ndarray]:
    return {"up": normal(number, D, HIDDEN), "down": normal(number, HIDDEN, D)}


def normal(number: np.random.Generator, *shape: int) -> np.ndarray:
    return (number.normal(size=shape) * 0.3).astype(np.float32)


def squared(y, targets):
    return jnp.mean((y - targets) ** 2)


def mlp_model(stages: int, rows: int = 8) -> tuple[list[Any], Any, Any]:
    """Parameters of so many stages, input and targets."""
    number = random()
    return [mlp_params(number) for _ in range(stages)], normal(number, rows, D), normal(number, rows, D)


def attend(params, h, context, stopped: bool = False):
    """A causal transformer block over the tokens up to those of its slice."""
    q, k, v = (jnp.einsum("bld,dhe->blhe", h, params[name]) for name in "qkv")
    if stopped:
        k, v = jax.lax.stop_gradient((k, v))
    keys, values = context.append(k, v)
    scores = jnp.where(context.mask, jnp.einsum("blhe,bmhe->bhlm", q, keys) / 2, -1e30)
    mixed = jnp.einsum("bhlm,bmhe->blhe", jax.nn.softmax(scores), values)
    h = h + jnp.einsum("blhe,hed->bld", mixed, params["o"])
    return mlp(params, h)


def embed(params, x, context):
    return attend(params["block"], params["table"][x] + params["positions"][context.positions], context)


def head(params, h, context):
    return attend(params["block"], h, context) @ params["head"]


def block_params(number: np.random.Generator) -> dict[str, np.ndarray]:
    inner = {name: normal(number, D, HEADS, D // HEADS) for name in "qkv"}
    return {**inner, "o": normal(number, HEADS, D // HEADS, D), **mlp_params(number)}


def language_model() -> tuple[list[Any], Any, Any]:
    """Parameters of two stages (``embed``, ``head``), tokens and targets."""
    n = random()
    first = {"table": normal(n, WORDS, D), "positions": normal(n, LENGTH, D), "block": block_params(n)}
    params = [first, {"block": block_params(n), "head": normal(n, D, WORDS)}]
    return params, n.integers(0, WORDS, (4, LENGTH)), n.integers(0, WORDS, (4, LENGTH))


def cross_entropy(y, targets):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(y), targets[..., None], -1))


def actions_run(run: pw.Run, pipe: pw.Pipeline, call: int | None = None) -> list[list[str]]:
    """The actions of each device of the schedule, in the order in which the run launched them; those of one call."""
    events = run.events.of_kind("compute", "collective")
    if call is not None:
        events = events.select(events["run"] == call)
    order = np.argsort(events["start"], kind="stable")
    found: list[list[str]] = [[] for _ in pipe.on]
    for name, stage in zip(events["name"][order].tolist(), events["stage"][order].tolist(), strict=True):
        if stage >= 0:
            found[int(pipe.schedule.tasks.device[0, stage])].append(name)
    return found


def actions_planned(pipe: pw.Pipeline) -> list[list[str]]:
    """The rows of its schedule; an overlapped pair is two actions."""
    return [[str(action) for cell in row for action in actions_of(cell)] for row in pipe.schedule.rows]
