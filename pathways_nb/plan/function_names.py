"""The names of functions in records, errors and compiled modules.

A lambda has no name of its own. ``double = pw.jit(lambda v: v * 2, on=left)`` says in its source line what it is, so it
is named ``double``; any other is named by its place: ``lambda at cell 3:5`` is in line 5 of cell 3.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from types import CodeType
from typing import Any

from pathways_nb.plan.source_lines import describe
from pathways_nb.plan.source_texts import parts_of
from pathways_nb.util.collecting import uncollected

_LAMBDA = "<lambda>"
_PLACED = re.compile(r"lambda at \S+(?: \d+)?:\d+")
_TRIES = 100
Span = tuple[int, int, int, int]
"""First line, first column, last line and last column of a part of a source, as code objects count them."""


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function; of an object without one that of its type.

    A lambda is named by the variable or attribute that it is assigned to, itself or as an argument of what is assigned;
    if it is not assigned, by its place, such as ``"lambda at cell 3:5"`` or ``"lambda at train.py:12"``.
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    code = getattr(inspect.unwrap(function), "__code__", None) if name == _LAMBDA else None
    return name if code is None else _name_of_lambda(code, code.co_filename)


def without_place(name: str) -> str:
    """Return a name in which lambdas have no place, for what must not change when a cell is run again or a line moves.

    Compiled modules are called so: their name is a part of the key under which a compiled program is found again.
    """
    return _PLACED.sub("lambda", name)


@lru_cache(512)
def _name_of_lambda(code: CodeType, filename: str) -> str:
    """Return the name of a lambda; ``filename`` is in the key because equal code in two cells is equal."""
    linecache.checkcache(filename)
    spans = [(a, c, b, d) for a, b, c, d in code.co_positions() if None not in (a, b, c, d) and (a, c) != (b, d)]
    around = [
        (inner, name)
        for inner, name in _lambdas("".join(linecache.getlines(filename)))
        if spans and all(inner[:2] <= span[:2] and span[2:] <= inner[2:] for span in spans)
    ]
    # A lambda within another is within both bodies: it is the one that begins last.
    if assigned := max(around, default=((), ""))[1]:
        return assigned
    file, line = parts_of(describe(filename, code.co_firstlineno))
    cell = re.fullmatch(r"Cell In\[(\d+)\]", file)
    return f"lambda at {f'cell {cell[1]}' if cell else file}:{line}"


@lru_cache(8)
def _lambdas(source: str) -> list[tuple[Span, str]]:
    """Return the body of each lambda of a source, and the name that it is assigned to; empty for none."""
    try:
        tree = _parsed(source)
    except (SyntaxError, ValueError):  # a shell's own syntax, or no Python at all
        return []
    named: dict[ast.expr, str] = {}
    for statement in ast.walk(tree):
        for target, value in _assignments(statement):
            functions = list(_functions_in(value))
            # Two functions of one assignment would have one name, and their places tell them apart.
            if len(functions) == 1 and (name := _target_name(target)):
                named[functions[0]] = name
    return [(_span(node.body), named.get(node, "")) for node in ast.walk(tree) if isinstance(node, ast.Lambda)]


def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a source, again where Python 3.11 fails since other threads parse, too (gh-106905)."""
    with uncollected():  # a thread gives way in the midst of a parse where garbage is collected
        for _ in range(_TRIES):
            with suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)


def _span(body: ast.expr) -> Span:
    """Return where a body is; columns are of bytes, as in code objects."""
    return body.lineno, body.col_offset, body.end_lineno or 0, body.end_col_offset or 0


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield pairs of a target and its value of an assignment, those of ``a, b = x, y`` one by one."""
    if isinstance(node, ast.Assign):
        target, value = node.targets[-1], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield target, value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value


def _target_name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""


def _functions_in(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the lambdas that a value is, or is made from by calls that take them as arguments."""
    if isinstance(value, ast.Lambda):
        yield value
    elif isinstance(value, ast.Call):
        # Not what is called: ``y = pw.jit(lambda v: v * 2, on=left)(x)`` names the result, not the function.
        for argument in (*value.args, *(keyword.value for keyword in value.keywords)):
            yield from _functions_in(argument)
