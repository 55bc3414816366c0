"""What a call costs beyond its computation: the thread that makes it, a training step of many leaves, a first call.

Each figure is taken beside plain JAX doing the same, in turns, on one device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pathways_nb as pw
from pathways_nb.bench.stopwatch import interleaved

PARAMETERS, MANY = 300, 2000
"""Arrays of 8 × 8 that are trained, and arrays of the first call."""
_CALLS, _STEPS = 32, 5
"""Calls in a row, and steps in a round."""
_OPTIMIZER = optax.adam(1e-3)
Step = Callable[..., Any]


class Called(Protocol):
    """A program of one node, and its argument."""

    program: pw.Program
    start: Any


def call_seconds(called: Called, rounds: int) -> float:
    """Return the seconds that a thread spends on each of 32 calls of a known program in a row; nothing is waited for.

    Args:
        called: what is called.
        rounds: of which the median is taken.
    """
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        results = [called.program(called.start) for _ in range(_CALLS)]
        found.append((time.perf_counter() - began) / _CALLS)
        pw.wait(results)
    return median(found)


def step_overheads(rounds: int) -> dict[str, float]:
    """Return the milliseconds of a training step of 901 leaves beyond plain JAX's, donated or not, the worse of both.

    Args:
        rounds: of which the median is taken.

    Returns:
        By figure: a step that is one node, and a program of a gradient and an update, beside two plain jits.
    """
    place = pw.virtual_slice(1)
    found: dict[str, float] = {}
    for form in ("", "_program"):
        worst = []
        for donated in (False, True):
            taken = (0, 1) if donated else ()
            plain = _in_two(jax.jit, taken) if form else jax.jit(_step, donate_argnums=taken)
            ours = _program(place, taken) if form else pw.jit(_step, on=place, donate_argnums=taken)
            contenders = {"plain": _trainer(plain, _state()), "ours": _trainer(ours, pw.put(_state(), on=place))}
            seconds = interleaved(contenders, rounds)
            pairs = zip(seconds["ours"], seconds["plain"], strict=True)
            worst.append(median(ours - plain for ours, plain in pairs) / _STEPS)
        found[f"step_overhead_ms_{PARAMETERS}_leaves{form}"] = max(worst) * 1e3
    return found


def first_call_seconds() -> float:
    """Return the seconds of a program's first call with two thousand arrays beyond those of a plain jit's."""
    arrays = [np.full((8, 8), 0.5, np.float32) for _ in range(MANY)]

    def scale(arrays: list[Any]) -> list[Any]:
        return [array * 2.0 for array in arrays]

    began = time.perf_counter()
    jax.block_until_ready(jax.jit(scale)(arrays))
    between = time.perf_counter()
    pw.wait(pw.jit(scale, on=pw.virtual_slice(1))(arrays))
    return time.perf_counter() - between - (between - began)


def _state() -> tuple[Any, Any]:
    """Return parameters and the optimizer's state of them."""
    params = [np.full((8, 8), 0.01, np.float32) for _ in range(PARAMETERS)]
    return jax.tree.map(np.asarray, (params, _OPTIMIZER.init(params)))


def _loss(params: list[Any]) -> Any:
    total = params[0]
    for one in params[1:]:
        total = total + one
    return jnp.mean(total**2)


def _update(params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
    changes, state = _OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, changes), state


def _step(params: Any, state: Any) -> tuple[Any, Any, Any]:
    loss, gradients = jax.value_and_grad(_loss)(params)
    return *_update(params, state, gradients), loss


def _in_two(jit: Callable[..., Step], taken: tuple[int, ...]) -> Step:
    """Return a step of a gradient and an update, each compiled by ``jit``; the update takes those arguments over."""
    gradient, update = jit(jax.value_and_grad(_loss)), jit(_update, donate_argnums=taken)

    def step(params: Any, state: Any) -> tuple[Any, Any, Any]:
        loss, gradients = gradient(params)
        return *update(params, state, gradients), loss

    return step


def _program(place: pw.VirtualSlice, taken: tuple[int, ...]) -> Step:
    return pw.program(_in_two(partial(pw.jit, on=place), taken), donate_argnums=taken)


def _trainer(step: Step, state: tuple[Any, Any]) -> Callable[[], None]:
    """Return a function that trains for a few steps from where it left off; each loss is waited for."""
    held = [state]

    def train() -> None:
        for _ in range(_STEPS):
            *state, loss = step(*held[0])
            held[0] = tuple(state)
            float(loss)

    train()  # compiled before any round is timed
    return train
