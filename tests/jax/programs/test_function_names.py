"""A lambda's name is the same in the graph, in the record, in errors and in the compiled module."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.program.emit import module_of
from tests.support.computations import v


def test_a_lambda_is_called_by_its_variable_everywhere(left) -> None:
    triple = pw.jit(lambda v: v * 3, on=left, in_shardings=pw.P("x"))
    with pw.record("cell") as run:
        y = triple(v)
    np.testing.assert_array_equal(y.result(), v * 3)
    assert set(run.events.of_kind("compute")["name"]) == {"triple"}
    assert [program.graph.name for program in run.programs] == ["triple"]
    assert module_of("triple") == "jit_pw_triple"
    with pytest.raises(pw.UsageError, match="^triple: argument v = 'text' is a str"):
        triple("text")


def test_a_lambda_without_a_variable_is_placed_and_its_cache_is_not_missed_from_another_line(controller, left) -> None:
    made = [pw.jit(lambda v: v * 7 + 1, on=left, in_shardings=pw.P("x"))]
    with pw.record("cell") as run:
        made[0](v)
    (name,) = set(run.events.of_kind("compute")["name"])
    assert re.fullmatch(r"lambda at test_function_names\.py:\d+", name)
    known = set(controller.driver.executables._compiled)
    made += [pw.jit(lambda v: v * 7 + 1, on=left, in_shardings=pw.P("x"))]
    assert made[1].name != name
    np.testing.assert_array_equal(made[1](v).result(), v * 7 + 1)
    assert set(controller.driver.executables._compiled) == known
    assert module_of(name) == module_of(made[1].name) == "jit_pw_lambda"


def test_a_picture_of_many_bare_calls_names_the_first_computations(left) -> None:
    first, second = pw.jit(lambda v: v + 1, on=left), pw.jit(lambda v: v + 2, on=left)
    third, fourth = pw.jit(lambda v: v + 3, on=left), pw.jit(lambda v: v + 4, on=left)
    with pw.record("cell") as run:
        fourth(third(second(first(first(v)))))
    assert [program.graph.name for program in run.programs] == ["first ×2, second, third, 1 more"]
