"""The static and the donated parameters of a function, and the binding of a call's arguments to its parameters.

Options are those of ``jax.jit``: parameters by number, by name, or both; a negative number counts from the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from pathways_nb.errors import UsageError

_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
"""The kinds of parameters that a call can give by position."""


@dataclass(frozen=True)
class Statics:
    """The static and the donated parameters, by number and by name."""

    parameters: inspect.Signature | None
    static_numbers: frozenset[int]
    static_names: frozenset[str]
    donated_numbers: frozenset[int]
    donated_names: frozenset[str]

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any] | None,
        static_argnums: int | Iterable[int],
        static_argnames: str | Iterable[str],
        donate_argnums: int | Iterable[int],
        donate_argnames: str | Iterable[str],
    ) -> Statics:
        """Return the statics given by ``jax.jit``'s own options; ``fn`` may come later (decorators)."""
        numbers = [frozenset((n,) if isinstance(n, int) else n) for n in (static_argnums, donate_argnums)]
        names = [frozenset((n,) if isinstance(n, str) else n) for n in (static_argnames, donate_argnames)]
        return cls(None, numbers[0], names[0], numbers[1], names[1]).bound_to(fn)

    def bound_to(self, fn: Callable[..., Any] | None) -> Statics:
        """Return the same with the parameters of ``fn``, where they can be read."""
        try:
            parameters = inspect.signature(fn) if fn is not None else None
        except (TypeError, ValueError):
            parameters = None
        names = [p.name for p in parameters.parameters.values() if p.kind in _NAMED] if parameters else []

        def resolve(numbers: frozenset[int], given: frozenset[str]) -> tuple[frozenset[int], frozenset[str]]:
            # As ``jax.jit`` does: negative numbers count from the end, and a number also means the parameter given by
            # name.
            counted = frozenset(n + len(names) if n < 0 and names else n for n in numbers)
            return counted, given | {names[n] for n in counted if 0 <= n < len(names)}

        return Statics(
            parameters,
            *resolve(self.static_numbers, self.static_names),
            *resolve(self.donated_numbers, self.donated_names),
        )

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
        """Bind a call's arguments to parameters.

        Returns:
            Positional arguments, keyword arguments, and a name for each positional one.

        Raises:
            UsageError: the arguments do not fit the function's parameters.
        """
        # The usual call: ``inspect.Signature.bind`` would cost more than the rest of this method, at every call.
        if not kwargs and self._plain is not None and len(args) == len(self._plain):
            return args, kwargs, self._plain
        if self.parameters is None:
            return args, kwargs, [f"argument {i}" for i in range(len(args))]
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            given = f"{len(args)} positional" + (f" and {', '.join(kwargs)}" if kwargs else "")
            raise UsageError(f"{name}{self.parameters}: {error}; given are {given}.") from None
        names: list[str] = []
        for parameter in self.parameters.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"argument {parameter.name}[{i}]" for i in range(len(bound.args) - len(names))]
            elif parameter.kind in _NAMED:
                names.append(f"argument {parameter.name}")
        return bound.args, bound.kwargs, names[: len(bound.args)]

    @cached_property
    def _plain(self) -> list[str] | None:
        """Names of the parameters in errors, if the function takes each by position and no others; else ``None``."""
        parameters = self.parameters.parameters.values() if self.parameters is not None else ()
        if self.parameters is None or any(parameter.kind not in _NAMED for parameter in parameters):
            return None
        return [f"argument {parameter.name}" for parameter in parameters]

    @cached_property
    def has_static(self) -> bool:
        """Whether any parameter is static."""
        return bool(self.static_numbers or self.static_names)

    def is_static(self, number: int, name: str) -> bool:
        """Return whether the parameter with this number or name is static."""
        if not self.has_static:
            return False
        return number in self.static_numbers or name.removeprefix("argument ") in self.static_names

    def donated_leaves(self, owned: Iterator[tuple[int, str, Any]]) -> tuple[int, ...]:
        """Return the positions of donated leaves among the leaves of all ``(number, name, value)``."""
        # Most calls donate nothing, and must not flatten each argument on its own.
        if not (self.donated_numbers or self.donated_names):
            return ()
        found: list[int] = []
        first = 0
        for number, name, value in owned:
            count = len(jax.tree.leaves(value))
            if number in self.donated_numbers or name.removeprefix("argument ") in self.donated_names:
                found += range(first, first + count)
            first += count
        return tuple(found)
