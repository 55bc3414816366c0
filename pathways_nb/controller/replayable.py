"""Whether a policy's decisions can be repeated: its code is read, since calling it could change what it keeps.

What cannot be seen to be harmless counts as state, so a policy may be refused that would answer alike; one that is not
refused computes from its arguments, from constants and from plain functions of them.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterator

from pathways_nb.controller.policies import Policy, is_built_in

_PURE_MODULES = ("math", "_operator", "operator", "itertools", "functools", "_functools", "bisect", "_bisect")
"""Modules of which a policy may use anything and still give the same answers."""
_PURE = frozenset(
    [getattr(builtins, name) for name in
     ("abs all any bool bytes dict divmod enumerate filter float frozenset int isinstance issubclass iter len list map "
      "max min next pow range reversed round set slice sorted str sum tuple zip ArithmeticError AssertionError "
      "Exception IndexError KeyError LookupError RuntimeError StopIteration TypeError ValueError").split()]
)  # fmt: skip
"""Built-in functions and types of which the same holds: without those that read addresses, names or files."""
_CHANGES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME")
_READS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")


def why_not(policy: Policy) -> str:
    """Return why decisions of a policy cannot be repeated, in words; empty if they can."""
    if is_built_in(policy):
        return ""
    try:
        name = getattr(policy, "__name__", type(policy).__name__)
        found = _impure(policy, set())
    except Exception as error:  # of a class of the user's, or an interpreter with other instructions
        name, found = type(policy).__name__, f"cannot be read ({type(error).__name__}: {error})"
    return f"the policy {name!r} {found}, so it may be random or keep state" if found else ""


def _impure(function: object, seen: set[types.FunctionType]) -> str:
    """Return what a function uses that may differ from call to call, in words; empty for nothing."""
    if not isinstance(function, types.FunctionType):
        return "is no plain function"
    if function in seen:
        return ""
    seen.add(function)
    used = dict[str, object]()
    # What it closes over, first: names of the enclosing function are not globals.
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError:
            return f"uses {name!r}, which has no value yet"
    held = frozenset(used)
    for code in _codes(function.__code__):
        for one in dis.get_instructions(code):
            # Instructions, not source: a notebook's cell may be gone, and a decorator shows other source than what
            # runs.
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                used[one.argval] = function.__globals__.get(one.argval, vars(builtins).get(one.argval))
            elif one.opname in _CHANGES or (one.opname == "STORE_DEREF" and one.argval in held):
                return f"changes or imports {one.argval!r}"
            # A private attribute may be anything, ``__dict__`` and ``__globals__`` included.
            elif one.opname in _READS and str(one.argval).startswith("_"):
                return f"reads {one.argval!r}, which is private"
    # A default is an object that lives as long as the function: a list as a default is state.
    for number, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        used[f"default {number}"] = value
    for name, value in used.items():
        if value is function:
            return "refers to itself, and a function's attributes may change"
        if found := _changing(value, seen):
            return f"uses {name!r}, {found}"
    return ""


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of all functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _changing(value: object, seen: set[types.FunctionType]) -> str:
    """Return why a value that a policy uses may differ from call to call, in words; empty if it does not."""
    # ``type`` and not ``isinstance``: a subclass may compute something else each time.
    if value is None or type(value) in (bool, int, float, str, bytes):
        return ""
    if type(value) in (tuple, frozenset):
        return next((found for one in value if (found := _changing(one, seen))), "")  # type: ignore[attr-defined]
    if isinstance(value, types.ModuleType):
        return "" if value.__name__ in _PURE_MODULES else f"the module {value.__name__}"
    if isinstance(value, types.FunctionType):
        # Where its code is, not ``__module__``: ``functools.wraps`` copies that from what it wraps.
        if is_built_in(value) or value.__globals__.get("__name__") in _PURE_MODULES:
            return ""
        found = _impure(value, seen)
        return f"which {found}" if found else ""
    if isinstance(value, (types.BuiltinFunctionType, type)):
        is_known = any(value is one for one in _PURE) or (
            value.__module__ in _PURE_MODULES
            and getattr(value, "__self__", None).__class__ in (types.ModuleType, type(None))
        )
        return "" if is_known else "which may differ"
    return "which may change"
