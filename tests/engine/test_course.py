"""Questions: blank, right, typically wrong, of the wrong type, before the run, and unknown."""

from __future__ import annotations

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.course import QUESTIONS
from pathways_nb.examples import two_stages


@pytest.fixture
def ran(controller):
    """What the quickstart's cells leave behind."""
    left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    a = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"))
    b = pw.jit(lambda v: v + 1, on=right, in_shardings=pw.P("x"))
    c = pw.jit(lambda v: v / 2, on=left, in_shardings=pw.P("x"))

    @pw.program
    def f(v):
        x = a(v)
        return b(x), a(c(x))

    with pw.record("figure2") as run:
        f(np.array([1.0, 2.0]))
    pw.runs["figure2"] = run
    step = two_stages.pipelined(pw.virtual_slice(4), pw.virtual_slice(4), microbatches=4)
    params, state, tokens, targets = two_stages.start()
    with pw.record("train") as run:
        step(params, state, tokens, targets)
    pw.runs["train"] = run
    yield
    pw.runs.clear()


RIGHT = {"01.crossings": 1, "01.speedup": 8 / 5}
WRONG = {
    "01.crossings": {5: "from the place", 4: "counts computations", 7: "from the place"},
    "01.speedup": {
        2: "When does the second begin?",
        5 / 8: "the other way round",
        4: "only two islands",
        3: "Count turns: 4",
    },
}


def test_every_question_has_an_answer_and_wrong_ones_here() -> None:
    assert set(QUESTIONS) == set(RIGHT) == set(WRONG)


def test_blank_right_and_wrong(ran, capsys) -> None:
    for name, answer in RIGHT.items():
        assert pw.check(name, ...) is False
        assert capsys.readouterr().out == f"{name}: not answered yet. Put your answer in place of the dots.\n"
        assert pw.check(name, answer) is True
        assert capsys.readouterr().out == f"{name}: right.\n"
        for wrong, hint in WRONG[name].items():
            assert pw.check(name, wrong) is False
            text = capsys.readouterr().out
            assert hint in text, (wrong, text)
            assert str(answer) not in text.removeprefix(name), "a hint does not tell the answer"
        assert pw.check(name, "one") is False
        assert capsys.readouterr().out == f"{name}: 'one' is a str; a number is wanted.\n"
    assert pw.check("01.speedup", 1.6) is True
    assert pw.check("01.crossings", np.int64(1)) is True


def test_before_its_run_a_question_says_which_cell_to_run(controller, capsys) -> None:
    pw.reset()
    assert pw.check("01.crossings", 1) is False
    assert "run the cell that begins with %%pathways and has --run figure2 first" in capsys.readouterr().out


def test_an_unknown_question_names_the_known_ones() -> None:
    with pytest.raises(
        pw.UsageError, match=r"^check\('07.nothing'\): there is no such question; there are 01.crossings,"
    ):
        pw.check("07.nothing", 1)
