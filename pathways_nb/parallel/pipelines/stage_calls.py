"""The stages that a user writes, in one form: called with parameters, input, key and context."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from pathways_nb.parallel.pipelines.token_context import Context
from pathways_nb.program import specs
from pathways_nb.program.computation import Computation

Stage = Callable[..., Any]
Call = Callable[[Any, Any, Any, Context], Any]


def as_call(stage: Stage) -> Call:
    """Return a stage as ``call(params, x, key, context)``, which passes on what the stage has parameters for."""
    # A computation is called for its function only: the pipeline places the whole stage.
    fn = stage.fn if isinstance(stage, Computation) else stage
    wanted = parameters(stage)

    def call(params: Any, x: Any, key: Any, tokens: Context) -> Any:
        given = {name: value for name, value in (("key", key), ("context", tokens)) if name in wanted}
        return fn(params, x, **given)

    return call


def parameters(stage: Stage) -> Mapping[str, inspect.Parameter]:
    """Return a stage's parameters, as far as they can be read."""
    try:
        return inspect.signature(stage).parameters
    except (TypeError, ValueError):
        # Some built-in callables have no signature.
        return {}


def stage_key(key: Any, stage: int, microbatch: int, token_slice: int = 0) -> Any:
    """Return the key for dropout of one stage, microbatch and token slice, whatever the schedule."""
    if key is None:
        return None
    # Folded in by number, not drawn in turn: the order of a schedule must not change what is dropped.
    for number in (stage, microbatch, token_slice):
        key = jax.random.fold_in(key, number)
    return key


def declared_shardings(stage: Stage) -> Any:
    """Return the declared shardings of a stage's parameters, if it is a computation; else ``None``."""
    given = stage.in_specs if isinstance(stage, Computation) else None
    return given[0] if isinstance(given, tuple) and not specs.is_spec(given) else given
