"""Numbers and types in sentences."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.util.words import a_type_of, axes_in_words, counted, first_ones, plural


@pytest.mark.parametrize(
    ("count", "thing", "ending", "said"),
    [(0, "device", "s", "0 devices"), (1, "device", "s", "1 device"), (2, "launch", "es", "2 launches"),
     (1, "entry", "s", "1 entry"), (3, "entry", "s", "3 entries"), (2, "array", "s", "2 arrays")],
)  # fmt: skip
def test_one_thing_and_several(count: int, thing: str, ending: str, said: str) -> None:
    assert counted(count, thing, ending) == said
    assert plural(count, thing, ending) == said.split()[1]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1, "an int"),
        ("a", "a str"),
        ([], "a list"),
        (np.ones(1), "an ndarray"),
        (np.array(["a"], object), "an ndarray of dtype object"),
        (np.array(["a"]), "an ndarray of dtype <U1"),
        (np.uint8(1), "a uint8"),
        (None, "a NoneType"),
    ],
)
def test_types_have_their_article(value: object, said: str) -> None:
    assert a_type_of(value) == said


def test_the_first_of_many_names_and_the_axes_of_a_mesh() -> None:
    assert first_ones(["a", "b", "c"], 3) == "a, b, c"
    assert first_ones(["a", "b", "c"], 1) == "a and 2 more"
    assert first_ones([], 3) == ""
    assert axes_in_words({"data": 16, "model": 4}) == "data 16 × model 4"
