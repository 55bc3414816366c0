"""A lambda is named by what it is assigned to, else by its place."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import threading
from types import SimpleNamespace

import pytest

from pathways_nb.plan.function_names import _lambdas, function_name, without_place

SOURCE = """
def made(function, **options):
    functions.append(function)
    return function

def keep(*several, **named):
    functions.extend([*several, *named.values()])

double = made(lambda v: v * 2, on="left")
total  = made(
    lambda v: (
        v.sum()
    ),
    on="right",
)
a, b = made(lambda x: x), made(lambda y: (lambda z: z)(y))
holder.step = made(lambda w: made(lambda inside: inside)(w) + outside)
annotated: object = made(lambda: None)
if (walrus := made(lambda: 1)): pass
y = made(lambda v: v + 1)(3)
both = keep(lambda x: x, lambda x: -x)
keep(step=lambda x: x)
holder.step(1)
"""


def functions_of(source: str, filename: str, monkeypatch, number: int | None = None) -> list:
    """Return the lambdas that a source makes, in order; with ``number`` it is the text of that cell."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    cells = {} if number is None else {filename: number}
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map=cells))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    functions: list = []
    exec(
        compile(source, filename, "exec"),
        {"functions": functions, "holder": SimpleNamespace(), "outside": 1},
    )
    return functions


def test_a_lambda_is_named_by_the_assignment_in_its_source(monkeypatch):
    functions = functions_of(SOURCE, "/tmp/named.py", monkeypatch)
    names = [function_name(function) for function in functions]
    assert names[:7] == ["double", "total", "a", "b", "step", "annotated", "walrus"]
    # A result, two functions of one assignment, a keyword, and one within another are no names.
    assert names[7:] == [
        "lambda at named.py:20", "lambda at named.py:21", "lambda at named.py:21", "lambda at named.py:22",
        "lambda at named.py:17",
    ]  # fmt: skip


def test_a_lambda_of_a_cell_that_is_not_assigned_is_named_by_cell_and_line(monkeypatch):
    (one,) = functions_of("\n\nfunctions.append(lambda v: v * 3)\n", "/tmp/ipykernel_1/5.py", monkeypatch, number=3)
    assert function_name(one) == "lambda at cell 3:3"
    # The same text in another cell is equal code at another place.
    (other,) = functions_of("\n\nfunctions.append(lambda v: v * 3)\n", "/tmp/ipykernel_1/6.py", monkeypatch, number=8)
    assert function_name(other) == "lambda at cell 8:3"


def test_a_lambda_without_a_source_is_still_placed_and_others_keep_their_names(monkeypatch):
    (one,) = functions_of("functions.append(lambda: 1)", "<string>", monkeypatch)
    del linecache.cache["<string>"]
    assert function_name(one) == "lambda at <string>:1"
    assert function_name(functions_of) == "functions_of"
    assert function_name(functools.partial(print)) == "partial"

    @functools.wraps(one)
    def wrapped():
        return one()

    assert function_name(wrapped) == "lambda at <string>:1", "a transformation of it, such as jax.grad"


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("lambda at cell 3:5", "lambda"),
        ("lambda at train.py:12", "lambda"),
        ("lambda at cell 3:5 (bwd) ×2 + mul", "lambda (bwd) ×2 + mul"),
        ("double", "double"),
    ],
)
def test_a_compiled_module_is_called_without_the_place(name, bare):
    assert without_place(name) == bare


def test_threads_that_name_lambdas_at_once_do_not_disturb_each_other() -> None:
    """Python 3.11 fails where one thread parses while garbage is collected in the midst of another's parse."""
    source = "".join(linecache.getlines(ast.__file__))
    interval, errors = sys.getswitchinterval(), []

    def name() -> None:
        try:
            for number in range(10):
                _lambdas(f"{source}\nlast = lambda: {number}")
                _lambdas.cache_clear()
        except SystemError as error:
            errors.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=name) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
