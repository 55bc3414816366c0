"""The operations that a future refuses outside a program.

Computing on a future's value in the user's thread would launch work on an island's devices behind the controller's
back: unscheduled, unrecorded, and able to deadlock a gang. Therefore every operator, NumPy's and JAX's functions and
the methods of an array raise an error that says what to write instead: a host value, or the same expression inside a
computation or a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax

from pathways_nb.errors import NoAttributeError, UsageError
from pathways_nb.program import context


class NotAnArray:
    """A base class whose arithmetic raises an error with the fix; ``_name`` is its name in errors."""

    _name: str

    @property
    def __jax_array__(self) -> NoReturn:
        # A property, because JAX only asks whether it is there before it complains in words of its own.
        __tracebackhide__ = True
        self._refuse_captured()
        self._refuse("a JAX function of y", "y.result() in its place", "jnp.sum(y)")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> NoReturn:
        __tracebackhide__ = True
        name = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        words = ["y" if value is self else "…" for value in inputs]
        host = ", ".join("y.result()" if word == "y" else word for word in words)
        inside = f"jnp.{ufunc.__name__}({', '.join(words)})" if method == "__call__" else "jnp.sum(y)"
        self._refuse(f"{name}({', '.join(words)})", f"{name}({host})", inside)

    def __getattr__(self, name: str) -> NoReturn:
        __tracebackhide__ = True
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"a future has no attribute {name!r}", name=name, obj=self)
        self._refuse_captured()
        called = "()" if callable(getattr(jax.Array, name)) else ""
        self._refuse(f"y.{name}", f"y.result().{name}{called}", f"y.{name}{called}", NoAttributeError)

    def __getitem__(self, index: Any) -> NoReturn:
        __tracebackhide__ = True
        self._refuse(f"y[{index!r}]", f"y.result()[{index!r}]", f"y[{index!r}]")

    # By identity, as futures are kept in sets and dictionaries: ``==`` is refused below.
    __hash__ = object.__hash__

    def _refuse_captured(self) -> None:
        """Refuse a future that a program under trace captured from outside instead of taking it as an argument."""
        __tracebackhide__ = True
        trace = context.tracing()
        if trace is not None:
            raise UsageError(
                f"{trace.who} uses the future {trace.captured(self)} from outside. "
                f"Pass it as an argument of {trace.who_name!r} instead."
            )

    def _refuse(self, wrong: str, host: str, inside: str, error: type[UsageError] = UsageError) -> NoReturn:
        __tracebackhide__ = True
        raise error(
            f"{wrong}: y = {self._name} is a future and is not computed on outside a program. Write {host} for a host "
            f"value, or compute on the devices: pw.jit(lambda y: {inside}, on=place)(y), or inside a @pw.program."
        )


def _operator(name: str, symbol: str, swapped: bool) -> Callable[..., Any]:
    def refuse(self: NotAnArray, other: Any = None) -> NoReturn:
        __tracebackhide__ = True
        # An operand without a short text would make the advice unreadable.
        text = "1" if not isinstance(other, (int, float)) else repr(other)
        value = "y.result()"
        wrong, host = (f"{text} {symbol} y", f"{text} {symbol} {value}") if swapped else (
            f"y {symbol} {text}", f"{value} {symbol} {text}"
        )  # fmt: skip
        self._refuse(wrong, host, wrong)

    refuse.__name__ = name
    return refuse


for _name, _symbol in {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}.items():  # fmt: skip
    setattr(NotAnArray, f"__{_name}__", _operator(f"__{_name}__", _symbol, swapped=False))
    setattr(NotAnArray, f"__r{_name}__", _operator(f"__r{_name}__", _symbol, swapped=True))
for _name, _symbol in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(NotAnArray, f"__{_name}__", _operator(f"__{_name}__", _symbol, swapped=False))
for _name, _symbol in {"neg": "-y", "pos": "+y", "abs": "abs(y)", "invert": "~y"}.items():

    def _unary(self: NotAnArray, symbol: str = _symbol) -> NoReturn:
        __tracebackhide__ = True
        self._refuse(symbol, symbol.replace("y", "y.result()"), symbol)

    setattr(NotAnArray, f"__{_name}__", _unary)
