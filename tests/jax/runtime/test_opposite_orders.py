"""Two real processes that enqueue the same all-reduces: right in one order, wrong or dead in opposite ones."""

from __future__ import annotations

import pathways_nb as pw
from pathways_nb.examples.opposite_orders import ORDERS, ROUNDS, demonstrate
from tests.support.waiting import LIMIT


def test_opposite_orders_give_wrong_numbers_or_end_the_processes(capfd) -> None:
    cases = demonstrate(LIMIT)
    assert [(case.order, *case.sizes) for case in cases] == list(ROUNDS)
    for case in cases:
        assert case.right == (case.order == "same"), case
        if case.right:
            assert case.got == ((3, 30), (3, 30))
            assert (case.exit_codes, case.text) == ((None, None), "right")
    equal, unequal = cases[2:]
    assert (None in equal.got, equal.text) == (False, "wrong, without an error")
    assert equal.exit_codes == (None, None)
    assert None in unequal.got
    assert any(unequal.exit_codes), "one of them at least aborts"
    printed, noise = capfd.readouterr()
    assert [line.split()[0] for line in printed.splitlines()] == ["order", "same", "same", "opposite", "opposite"]
    assert noise == ""


def test_what_the_processes_do_is_what_the_checker_finds() -> None:
    assert pw.check_orders(ORDERS["same"])
    assert not pw.check_orders(ORDERS["opposite"])


def test_processes_that_do_not_answer_are_killed_and_one_line_says_so(capfd) -> None:
    assert demonstrate(limit=0.05) == []
    assert capfd.readouterr() == (
        "JAX could not join two processes here, so there is nothing to see: no answer within 0.05 s.\n",
        "",
    )


def test_processes_that_cannot_be_joined_are_one_line(capfd, monkeypatch, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['jax'] = None")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert demonstrate() == []
    printed, noise = capfd.readouterr()
    assert printed.startswith("JAX could not join two processes here, so there is nothing to see: ModuleNotFoundError")
    assert noise == ""
