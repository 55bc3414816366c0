"""The verdict on a loss is that of numbers: what is called a mean over rows is one, what is refused is none."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis
from pathways_nb.parallel.batch_walk.examine import PARAMETER, marks_of, resized, walked
from pathways_nb.parallel.batch_walk.verdicts import Verdict, of_loss
from tests.jax.batch_walk.losses import RIGHT, ROWS, UNKNOWN, UNKNOWN_BUT_RIGHT, WRONG, WRONG_GRADIENTS, Loss, data


def verdict(loss: Callable[..., Any], key: Any = None) -> Verdict:
    """What the structure says, which is all that is known of simulated devices; of ``loss(w, x, key)`` with a key."""
    axis = WalkedAxis("rows", (ROWS // 2, ROWS))
    w, x, y = data()
    last = y if key is None else key
    w, *batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (w, x, last))
    given = [(w, *resized(batch, 0, size)) for size in axis.sizes]
    found = walked(loss, axis, given, (PARAMETER, *marks_of(batch, 0)))
    return of_loss("fsdp", "loss", found.marks[0], axis)


def parts_and_whole(loss: Loss, seed: int) -> tuple[float, float]:
    """The mean of a loss over two parts, and the loss of both together, in double precision."""
    with jax.enable_x64(True):
        w, x, y = data(seed)
        w, x = w.astype(np.float64), x.astype(np.float64)
        half = ROWS // 2
        parts = [float(loss(w, x[at], y[at])) for at in (slice(half), slice(half, None))]
        return sum(parts) / 2, float(loss(w, x, y))


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_a_mean_over_rows_is_accepted(name: str) -> None:
    assert verdict(RIGHT[name]).unknown is None
    if "pw.mean" not in name and name != "two means":  # which is one only where totals and counts are added up
        for seed in range(3):
            together, whole = parts_and_whole(RIGHT[name], seed)
            assert together == pytest.approx(whole, rel=2e-6), "a test of the test"


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mean_over_rows_is_refused_by_its_line(name: str) -> None:
    lines, first = inspect.getsourcelines(inspect.getmodule(WRONG[name]))
    with pytest.raises(pw.UsageError, match="fsdp: loss is no mean over the rows of the batch: ") as caught:
        verdict(WRONG[name])
    assert re.search(r"pw\.mean\(total, count\)", str(caught.value))
    assert "If you know better: check=False." in str(caught.value)
    named = re.search(r"\(losses\.py:(\d+)\)", str(caught.value))
    assert named is None or first <= int(named[1]) <= len(lines)
    found = [parts_and_whole(WRONG[name], seed) for seed in range(3)]
    assert any(not np.isclose(a, b, rtol=1e-6, equal_nan=False) for a, b in found), "a test of the test"


def test_the_line_is_that_of_the_operation() -> None:
    def loss(w, x, y):
        total = (x @ w).sum()
        return total / (y > 1).sum()

    _, first = inspect.getsourcelines(loss)
    with pytest.raises(pw.UsageError, match=rf"division by a sum over rows \(test_structure\.py:{first + 2}\)"):
        verdict(loss)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_mixes_rows_otherwise_is_left_to_numbers(name: str) -> None:
    assert verdict(UNKNOWN[name]).unknown is not None
    together, whole = parts_and_whole(UNKNOWN[name], 0)
    assert together != pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("name", WRONG_GRADIENTS)
def test_gradients_with_a_rule_of_their_own_are_left_to_numbers(name: str) -> None:
    assert "gradients of 'jax.custom_" in str(verdict(WRONG_GRADIENTS[name]))


@pytest.mark.parametrize("name", UNKNOWN_BUT_RIGHT)
def test_what_only_numbers_can_accept_is_not_refused_by_its_structure(name: str) -> None:
    assert verdict(UNKNOWN_BUT_RIGHT[name]).unknown is not None


def test_an_evenly_masked_batch_does_not_mislead() -> None:
    """By the numbers of this batch the loss would pass; with the next one it would not."""
    w, x, _ = data()
    y = np.tile(np.arange(4, dtype=np.int32), ROWS // 4)
    loss, half = WRONG["masked"], ROWS // 2
    assert float(loss(w, x[:half], y[:half]) + loss(w, x[half:], y[half:])) / 2 == pytest.approx(float(loss(w, x, y)))
    with pytest.raises(pw.UsageError, match="division by a sum over rows"):
        verdict(loss)


def dropped(w, x, key):
    return RIGHT["mean"](w, x * jax.random.bernoulli(key, 0.5, x.shape), np.zeros(len(x), np.int32))


def of_many_keys(w, x, key):
    """Keys that are split and folded, in a loop, a branch and of each row."""
    first, *keys = jax.random.split(key, 3)
    h, _ = jax.lax.scan(lambda h, key: (h * jax.random.normal(key, h.shape), None), x, jnp.stack(keys))
    h = jax.lax.fori_loop(0, 2, lambda i, h: h + jax.random.uniform(jax.random.fold_in(first, i), h.shape), h)
    h = jax.lax.cond(w[0, 0] > 0, lambda h: h * jax.random.normal(keys[0], h.shape), lambda h: h, h)
    return jax.vmap(lambda row, key: (row * jax.random.normal(key)).mean())(h, jax.random.split(first, len(x))).mean()


@pytest.mark.parametrize("loss", [dropped, of_many_keys])
def test_numbers_drawn_from_a_key_are_others_in_each_part_only_if_the_key_is_given(loss: Loss) -> None:
    key = jax.random.key(0)
    assert verdict(loss, key).unknown is None
    text = (
        r"fsdp: every part of the batch draws the same random numbers for loss, because their key is closed over: "
        r"'random_\w+' \(test_structure\.py:\d+\)\. Give it in the batch, as loss\(params, x, key\)"
    )
    with pytest.raises(pw.UsageError, match=text):
        verdict(lambda w, x, y: loss(w, x, key))


def test_numbers_of_no_row_and_of_keys_of_rows_are_right_with_a_key_that_is_closed_over() -> None:
    key = jax.random.key(0)

    def noisy(w, x, y):
        return RIGHT["mean"](w + jax.random.normal(key, w.shape), x * jax.random.bernoulli(key, 0.5, x.shape[1:]), y)

    def numbered(w, x, y):
        kept = jax.vmap(lambda row, number: row * jax.random.bernoulli(jax.random.fold_in(key, number)))
        return RIGHT["mean"](w, kept(x, y), y)

    for loss in (noisy, numbered):
        assert verdict(loss).unknown is None
        together, whole = parts_and_whole(loss, 0)
        assert together == pytest.approx(whole, rel=2e-6)
