"""Forms of saved files: what is written comes back, and what is wrong is named with its place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest

from pathways_nb.util.json_forms import Form, list_of, one_of, optional, record, row
from pathways_nb.util.json_text import DamagedError, Field


class Size(NamedTuple):
    wide: int
    high: int


@dataclass(frozen=True)
class Sheet:
    name: str
    sizes: tuple[Size, ...]
    kind: str = "plain"
    note: str | None = None
    tags: frozenset[str] = frozenset()


SIZE = row(Size._make, partial(Field.whole, low=1, high=9), Field.whole)
SHEET = record(
    Sheet,
    only=("format",),
    name=Field.text,
    sizes=list_of(SIZE),
    kind=one_of("plain", "lined"),
    note=optional(Field.text),
    tags=optional(Form(lambda field: frozenset(field.texts()), sorted), frozenset(), may_lack=True),
)
WRITTEN = {"name": "a", "sizes": [[1, 2], [3, 4]], "kind": "lined", "note": None, "tags": ["x", "y"]}


def test_what_is_written_comes_back_in_the_declared_order() -> None:
    sheet = Sheet("a", (Size(1, 2), Size(3, 4)), "lined", None, frozenset("yx"))
    assert json.dumps(SHEET.write(sheet)) == json.dumps(WRITTEN)
    assert SHEET.read(Field(WRITTEN)) == sheet
    assert SHEET.read(Field({**WRITTEN, "note": "n"})).note == "n"


def test_only_what_was_added_later_may_be_missing() -> None:
    older = {key: value for key, value in WRITTEN.items() if key != "tags"}
    assert SHEET.read(Field(older)).tags == SHEET.read(Field({**WRITTEN, "tags": None})).tags == frozenset()
    with pytest.raises(DamagedError, match="^sheets lacks 'note'$"):
        SHEET.read(Field({key: value for key, value in WRITTEN.items() if key != "note"}, "sheets"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sizes": [[1, 2], [10, 4]]}, r"sizes\[1\]\[0\] is 10, not a whole number from 1 to 9"),
        ({"sizes": [[1, 2, 3]]}, r"sizes\[0\] is \[1, 2, 3\], not a list of 2 values"),
        ({"kind": "dotted"}, "kind is 'dotted', not one of 'plain', 'lined'"),
        ({"tags": [1]}, r"tags\[0\] is 1, not text"),
        ({"nmae": "b"}, "it has 'nmae', which is none of 'format', 'name', 'sizes', .*; 'name' is near"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change, text) -> None:
    with pytest.raises(DamagedError, match=text):
        SHEET.read(Field({**WRITTEN, **change}))


def test_a_list_may_have_a_length() -> None:
    assert list_of(SIZE, 1).read(Field([[1, 2]], "sizes")) == (Size(1, 2),)
    with pytest.raises(DamagedError, match="sizes is .*, not a list of 2 values"):
        list_of(SIZE, 2).read(Field([[1, 2]], "sizes"))


def test_other_keys_may_be_there_unless_a_record_is_for_people() -> None:
    assert record(Size, wide=Field.whole, high=Field.whole).read(Field({"wide": 1, "high": 2, "deep": 3})) == (1, 2)
    assert SHEET.read(Field({**WRITTEN, "format": 1})).name == "a"
