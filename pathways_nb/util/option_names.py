"""Options of public functions by name: a wrong or a missing one is an error that names the one that was meant.

Python's own error for these calls is a ``TypeError`` that compares spellings alone: for ``pw.attach(devices=4)`` it
proposes ``address``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from pathways_nb.errors import UsageError, did_you_mean
from pathways_nb.util.json_text import shortened

P = ParamSpec("P")
R = TypeVar("R")


def checked_options(**needed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that refuses wrong names of options, and calls without one that is needed.

    Args:
        **needed: by option that has no default, what it is, such as ``on="the virtual slice: on=place"``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        known = frozenset(parameters)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True
            if not kwargs.keys() <= known or not needed.keys() <= kwargs.keys():
                raise UsageError(_problem(f"pw.{function.__name__}", tuple(parameters), kwargs, needed))
            return function(*args, **kwargs)

        return checked

    return decorate


def _problem(who: str, known: tuple[str, ...], given: Mapping[str, Any], needed: Mapping[str, str]) -> str:
    """Return what is wrong with a call in words: the first option that does not exist, else those that are missing."""
    missing = "; ".join(f"{name}= is missing, {said}" for name, said in needed.items() if name not in given)
    for name, value in given.items():
        if name not in known:
            meant = did_you_mean(name, known) or f" The options are {', '.join(known)}."
            also = f" Besides, {missing}." if missing else ""
            return f"{who}({name}={shortened(value)}): there is no option {name!r}.{meant}{also}"
    return f"{who}: {missing}."
