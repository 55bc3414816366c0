"""The comparison of parts by numbers: what follows the first unknown operation alone says the same as the whole loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from pathways_nb.parallel.batch_walk import parts
from pathways_nb.parallel.batch_walk.parts import of_parts
from tests.jax.batch_walk import losses
from tests.jax.batch_walk.losses import FEATURES, ROWS, UNKNOWN, UNKNOWN_BUT_RIGHT, WRONG_GRADIENTS, data, each

Loss = Callable[..., Any]


def deep(tail: Loss) -> Loss:
    """Return a loss of several layers in front of what ends it; ``w`` is used behind it, too."""

    def loss(w: Any, x: Any, y: Any) -> Any:
        for _ in range(2):
            x = jnp.tanh(x @ (w @ w.T / FEATURES) * 3)
        return tail(w, x, y)

    return loss


def verdict(loss: Loss, count: int = 2) -> str:
    w, x, y = data()
    try:
        return str(of_parts("fsdp", "loss", None, loss, w, (x, y), count, 0)())
    except pw.UsageError as error:
        return "refused" if "is no mean over the rows" in str(error) else str(error)


NOT_DIFFERENTIABLE = "host function", "as many turns as rows"
ALL = {
    name: loss
    for name, loss in (UNKNOWN | UNKNOWN_BUT_RIGHT | WRONG_GRADIENTS).items()
    if name not in NOT_DIFFERENTIABLE
}
ALL |= {"ranked": losses._ranked}


@pytest.mark.parametrize("name", ALL)
def test_the_rest_of_a_loss_is_judged_as_the_whole_of_it(name: str, monkeypatch) -> None:
    loss = deep(ALL[name])
    jitted = verdict(jax.jit(loss))
    found = verdict(loss)
    monkeypatch.setattr(parts, "_tail", lambda *asked: None)
    assert found == jitted == verdict(loss) == ("checked by numbers, once" if name in UNKNOWN_BUT_RIGHT else "refused")


def test_layers_before_the_unknown_operation_are_computed_once_and_not_differentiated() -> None:
    w, x, y = data()
    loss = deep(lambda w, x, y: jnp.sort(each(w, x, y)).mean())
    tail = parts._tail(loss, (w, x[:4], y[:4]), (w, x[:8], y[:8]), (4, 8))
    read = jax.make_jaxpr(lambda *given: tail.of_part(*given))(*tail.shapes[0])
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
    assert parts._tail(loss, (w, x[:4], y[:4]), (w, x[:8], y[:8]), (4, 8)) is None
    assert verdict(loss) == "refused"


def by_size(w: Any, x: Any, y: Any) -> Any:
    own = each(w, x, y)
    return own.mean() if len(x) >= ROWS // 2 else jnp.sqrt((own**2).mean())


def of_groups(w: Any, x: Any, y: Any) -> Any:
    groups = (x @ w).reshape(-1, min(4, len(x)), w.shape[-1])
    return (jax.nn.standardize(groups, axis=1) ** 4).mean()


@pytest.mark.parametrize("loss", [by_size, of_groups])
def test_the_parts_of_the_step_are_compared_and_not_larger_ones(loss: Loss) -> None:
    """Halves have the loss of the whole, smaller parts have not."""
    assert verdict(loss) == "checked by numbers, once"
    assert verdict(loss, ROWS // 2) == "refused"


def test_a_small_gradient_that_is_wrong_is_not_hidden_by_a_large_one() -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        sorted_ = jnp.sort((x @ w["small"]).sum(-1)) * jnp.linspace(0, 1, len(x))
        surrogate = sorted_ - jax.lax.stop_gradient(sorted_)
        return 1e4 * each(w["large"], x, y).mean() + surrogate.mean()

    w, x, y = data()
    with pytest.raises(pw.UsageError, match="gradients of its parts together differ by"):
        of_parts("fsdp", "loss", None, loss, {"large": w, "small": w}, (x, y), 2, 0)()
