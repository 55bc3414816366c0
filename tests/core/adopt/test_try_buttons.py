"""Buttons that try a step without a constraint."""

from __future__ import annotations

from jax.sharding import PartitionSpec

import pathways_nb as pw
from pathways_nb.adopt.constraints import Constraint
from pathways_nb.adopt.try_buttons import try_buttons


def test_a_click_is_replaced_by_what_the_change_does_or_by_the_error():
    rows = [Constraint((f"a.py:{at}",), PartitionSpec("data"), (8,), "float32") for at in (1, 2)]

    def tried(one: Constraint) -> str:
        if one.line == "a.py:2":
            raise pw.UsageError("it is <not> taken")
        return "exposed 2 ms → 1 ms"

    boxes = try_buttons(rows, tried).children
    assert [box.children[1].value for box in boxes] == ["a.py:1 (P('data'))", "a.py:2 (P('data'))"]
    for box in boxes:
        box.children[0].click()
    assert [box.children[0].value for box in boxes] == ["&#x27;exposed 2 ms → 1 ms&#x27;", "it is &lt;not&gt; taken"]
    assert try_buttons([], tried).children[0].value.startswith("No constraint")
