"""Categories of memory: their words, and which of them a path has."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from pathways_nb.plan.memory_categories import CATEGORIES, DECLARED, category_of, check, in_order
from pathways_nb.plan.memory_parts import added, less


def test_a_path_has_the_category_of_the_nearest_path_above_it() -> None:
    declared = {"state": "optimizer", "state[0].mu": "gradients", "result[0]": "parameters"}
    assert category_of("state[0].nu['w']", declared) == "optimizer"
    assert category_of("state[0].mu['w']", declared) == "gradients"
    assert category_of("result[0]", declared) == "parameters"
    assert category_of("result[01]", declared) is category_of("states", declared) is None


def test_an_unknown_category_is_refused_with_the_nearest() -> None:
    assert check("optimizer", "put") == "optimizer"
    with pytest.raises(pw.UsageError, match=r"^put\(category='parameter'\): there is no such category of memory; choose "
                                            r"from parameters, optimizer, .*; did you mean 'parameters'\?$"):  # fmt: skip
        check("parameter", "put(category='parameter')")


def test_the_order_is_that_of_the_stack_and_unknown_words_come_last() -> None:
    assert set(DECLARED) < set(CATEGORIES)
    assert in_order(["", "temporaries", "parameters"]) == ["parameters", "temporaries", ""]


def test_sums_leave_out_what_is_nothing_and_change_no_operand() -> None:
    one = {"values": 3, "results": 2}
    assert added(one, {"values": 3, "temporaries": 1}, -1) == {"results": 2, "temporaries": -1}
    assert added(one, {"values": 0}) is one
    assert less(one, ["results"], 4) == {"values": 1}
    assert less(one, ["results"], 0) is one
    assert one == {"values": 3, "results": 2}
