"""Names of a hundred thousand characters, and of characters that no picture can hold, harm neither errors nor pictures."""

from __future__ import annotations

import pickle
import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.errors import PathwaysError, UsageError

LONG = "x" * 100_000
X = np.ones((3, 4), "f4")


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def failing(x: Any) -> Any:
    return jax.pure_callback(lambda value: 1 / 0, jax.ShapeDtypeStruct((3, 4), "f4"), x)


CALLS: list[Callable[[pw.VirtualSlice], object]] = [
    lambda place: pw.attach(LONG),
    lambda place: pw.put(X, on=place, shardings=pw.P(LONG)),
    lambda place: pw.put(X, on=pw.virtual_slice(2, name=LONG), shardings=pw.P("x")),
    lambda place: pw.put(LONG, on=place),
    lambda place: pw.jit(named(lambda x: x, LONG), on=place, in_shardings=pw.P("x"))(X),
    lambda place: pw.jit(named(lambda x: x, LONG), on=place)({LONG: "text"}),
    lambda place: pw.jit(named(failing, LONG), on=pw.virtual_slice(1))(X).result(),
    lambda place: pw.schedule(LONG, 2, 4),
    lambda place: pw.schedule(" ".join(LONG), 2, 4),
    lambda place: pw.fsdp(lambda params, x: 0.0, {"w": X}, on=place, mode=LONG),
]


@pytest.mark.parametrize("call", CALLS)
def test_an_error_shows_both_ends_of_a_long_name(left: pw.VirtualSlice, call: Callable[..., object]) -> None:
    with pytest.raises(PathwaysError, match="x.*…") as caught:
        call(left)
    assert len(str(caught.value)) <= 10_000
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_error_of_usual_names_is_as_it_was_written() -> None:
    text = " ".join(["stage", "x" * 400, "needs", "more."] * 20)
    assert str(UsageError(text)) == text
    assert str(UsageError(f"{'a' * 300}{'b' * 300} is unknown.")) == f"{'a' * 200}…{'b' * 199} is unknown."


@pytest.mark.parametrize(
    "name", ["a\rb", "a\u2028b", "a\0b", "a\x1b[31mb", "a\ud800b", "a\uffffb", "a\x85b", "naïve 模型 ×"]
)
def test_pictures_escape_characters_that_they_cannot_hold(tmp_path: Path, name: str) -> None:
    shown = name if name.isprintable() else name.encode("unicode_escape").decode()
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2):
        place = pw.virtual_slice(2, name=name)
        run = pw.program(lambda x: pw.jit(lambda x: x * 2, on=place)(x)).run(X)
        texts = []
        for view in ("timeline", "graph"):
            run.savefig(tmp_path / "run.png", show=view)
            run.savefig(tmp_path / "run.svg", show=view)
            run.to_html(tmp_path / "run.html", view)
            drawn = xml.dom.minidom.parse(str(tmp_path / "run.svg"))
            texts += [node.firstChild.data for node in drawn.getElementsByTagName("text") if node.firstChild]
        assert any(shown in text for text in texts), texts
