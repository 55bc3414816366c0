"""What pipelines and sharded steps require alike of a loss and an optimizer, with both sides in the error's text."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pathways_nb.errors import UsageError
from pathways_nb.util.words import a_type_of, counted


def optimizer(given: Any, step: str) -> None:
    """Require an Optax optimizer.

    Args:
        given: the optimizer.
        step: what refuses it, such as ``"fsdp"``.

    Raises:
        UsageError: it is none.
    """
    if not (hasattr(given, "init") and hasattr(given, "update")):
        raise UsageError(
            f"{step}: optimizer={given!r} is {a_type_of(given)}. Give one of Optax, such as optax.adam(1e-3)."
        )


def value_and_aux(made: Any, call: str, has_aux: bool, step: str) -> tuple[Any, Any]:
    """Return a loss, which must be a floating-point scalar, and its auxiliary outputs; ``()`` without ``has_aux``.

    Args:
        made: what the loss returned: arrays or shapes.
        call: how it is called, for errors, such as ``"loss(y, targets)"``.
        has_aux: whether it returns a pair of the loss and auxiliary outputs.
        step: what refuses it, such as ``"fsdp"``.

    Raises:
        UsageError: it returned something else.
    """
    if has_aux and not (isinstance(made, tuple) and len(made) == 2):
        raise UsageError(
            f"{step}: {call} returned {_form(made)}, but has_aux=True. Return a pair of the loss and anything else."
        )
    if not has_aux and isinstance(made, tuple):
        raise UsageError(
            f"{step}: {call} returned {_form(made)}, but has_aux=False. Return the loss alone, or pass has_aux=True."
        )
    value, aux = made if has_aux else (made, ())
    if value is None or jnp.shape(value) or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise UsageError(
            f"{step}: {call} returned {_form(value)}, not a scalar loss. Return a mean over the batch, such as "
            f"jnp.mean((y - targets) ** 2); with has_aux=True, a pair of it and anything else."
        )
    return value, aux


def _form(found: Any) -> str:
    if found is None:
        return "None"
    if hasattr(found, "shape") and hasattr(found, "dtype"):
        return f"{found.dtype}{list(found.shape)}"
    if isinstance(found, (bool, int, float)):
        return a_type_of(found)
    leaves = jax.tree.leaves(found)
    return f"{a_type_of(found)} of {counted(len(leaves), 'array')}"
