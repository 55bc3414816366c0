"""The comparison of halves by numbers: what follows the first unknown operation alone says the same as the whole loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from pathways_nb.parallel.batch_walk import halves
from pathways_nb.parallel.batch_walk.halves import of_halves
from tests.jax.batch_walk import losses
from tests.jax.batch_walk.losses import FEATURES, UNKNOWN, UNKNOWN_BUT_RIGHT, data, each

Loss = Callable[..., Any]


def deep(tail: Loss) -> Loss:
    """Return a loss of several layers in front of what ends it; ``w`` is used behind it, too."""

    def loss(w: Any, x: Any, y: Any) -> Any:
        for _ in range(2):
            x = jnp.tanh(x @ (w @ w.T / FEATURES) * 3)
        return tail(w, x, y)

    return loss


def verdict(loss: Loss) -> str:
    w, x, y = data()
    try:
        return str(of_halves("fsdp", "loss", None, loss, w, (x, y), 2, 0)())
    except pw.UsageError as error:
        return "refused" if "is no mean over the rows" in str(error) else str(error)


NOT_DIFFERENTIABLE = "host function", "as many turns as rows"
ALL = {name: loss for name, loss in (UNKNOWN | UNKNOWN_BUT_RIGHT).items() if name not in NOT_DIFFERENTIABLE}
ALL |= {"ranked": losses._ranked}


@pytest.mark.parametrize("name", ALL)
def test_the_rest_of_a_loss_is_judged_as_the_whole_of_it(name: str, monkeypatch) -> None:
    loss = deep(ALL[name])
    jitted = verdict(jax.jit(loss))
    found = verdict(loss)
    monkeypatch.setattr(halves, "_tail", lambda *asked: None)
    assert found == jitted == verdict(loss) == ("checked by numbers, once" if name in UNKNOWN_BUT_RIGHT else "refused")


def test_layers_before_the_unknown_operation_are_computed_once_and_not_differentiated() -> None:
    w, x, y = data()
    loss = deep(lambda w, x, y: jnp.sort(each(w, x, y)).mean())
    tail = halves._tail(loss, (w, x[:4], y[:4]), (w, x[:8], y[:8]), 4)
    read = jax.make_jaxpr(lambda *given: tail.of_half(*given))(*tail.shapes[0])
    names = {eqn.primitive.name for eqn in read.jaxpr.eqns}
    assert not names & {"dot_general", "tanh"}
    assert [shape.shape for shape in tail.shapes[0]] == [(4,)]
    assert [shape.shape for shape in tail.shapes[1]] == [(8,)]


def test_gradients_that_stop_are_not_asked_of_the_host() -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        stopped = jax.lax.stop_gradient(each(w, x, y))
        return jnp.mean(each(w, x, y) * jax.pure_callback(lambda a: a * 2, stopped, stopped))

    assert verdict(deep(loss)) == "checked by numbers, once"


def test_what_depends_on_other_rows_in_front_is_compared_too() -> None:
    """A sum over rows that the unknown operation reads has another value in a half: all of the loss is compared."""

    def loss(w: Any, x: Any, y: Any) -> Any:
        own = each(w, x, y)
        return jnp.sort(own + own.mean()).mean() + own.mean() ** 2

    w, x, y = data()
    assert halves._tail(loss, (w, x[:4], y[:4]), (w, x[:8], y[:8]), 4) is None
    assert verdict(loss) == "refused"
