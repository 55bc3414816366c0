"""Questions: blank, right, typically wrong, of the wrong type, before the run, and unknown."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.course.answer_check import QUESTIONS
from pathways_nb.examples import mixture, two_stages
from pathways_nb.examples.sparse_mixture import SparseMixture


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
    pw.runs["sparse"] = mixture_step()
    with pw.record("pressure") as run, pw.client("ann"):  # 2 MB of argument and as much of result on each device
        a(np.ones(1_000_000, np.float32)).wait()
    pw.runs["pressure"] = run
    pw.runs["fifth"] = research()
    yield
    pw.runs.clear()


def mixture_step() -> pw.Run:
    """14 tokens, two of four experts chosen, with room for 16 and 8."""
    router = pw.virtual_slice(1, island=0)
    kinds = mixture.Kinds(4, 8)
    front, params = mixture.init(kinds, 8)
    model = SparseMixture(router, [pw.virtual_slice(1, island=1) for _ in range(4)])
    with pw.record("sparse") as run:
        model.gradients(front, params, *kinds.batch(9, 0, 5, 0))
    return run


def research() -> pw.Run:
    """A chain of 4 s, of which adding takes 1 s and the message next to nothing."""
    place = pw.virtual_slice(8)
    add, other = (pw.work(seconds, on=place, name=name) for name, seconds in (("add_any", 1.0), ("other", 3.0)))
    with pw.attach("sim", chip="tpu_v3"):
        return pw.program(lambda: other(add())).run()


RIGHT = {
    "01.crossings": 1,
    "01.speedup": 8 / 5,
    "02.sequential": 200.0,
    "02.parallel": 105.0,
    "02.hidden": 43.125,
    "02.fused": 50.0,
    "03.part": 3 / 8,
    "03.luck": 1 / 6,
    "04.peak": 3.0,
    "04.together": 6,
    "05.transfers": 8,
    "05.rows": 28 / 11,
    "06.smallest": 9.675,
    "06.clients": 7,
    "07.bubble": 3 / 11,
    "07.peak": 4.0,
    "07.fewest": 133,
    "07.zero": 27.0,
    "07.slow": 57.0,
    "07.room": "v-half",
    "08.bubble": 3 / 19,
    "08.count": 40,
    "08.longest": 1,
    "09.gather": 70.0,
    "09.sink": 7,
    "09.regather": 15,
    "09.bucket": 440.0,
    "09.prefetch": 14.0,
    "09.finish": 2.0,
    "09.pace": 8,
    "09.bound": 6.2,
    "10.at_most": 4 / 3,
    "11.messages": 6,
    "12.received": 64 * 2048 * 4096 * 3 * 2 * 3 / 4 / 1e9,
    "12.inputs": 32 * 128 * 2048 * 4096 * 2 / 1e9,
    "12.parameters": 2 * 32 * 12 * 4096**2 * 2 / 1e9,
}
WRONG = {
    "01.crossings": {5: "from the place", 4: "counts computations", 7: "from the place"},
    "01.speedup": {
        2: "When does the second begin?",
        5 / 8: "the other way round",
        4: "only two islands",
        3: "Count turns: 4",
    },
    "02.sequential": {100: "the stages alone", 105: "one message for all stages", 1: "costs the same"},
    "02.parallel": {
        100: "the stages alone",
        110: "both are on their way",
        200: "That is sequential",
        1: "All messages",
    },
    "02.hidden": {50: "Nearly", 0.043125: "In milliseconds", 5: "For n stages of t ms"},
    "02.fused": {80: "the chain as it was", 45: "That is parallel dispatch", 1: "as its stages together"},
    "03.part": {
        1 / 4: "an equal part",
        3 / 5: "its own counts, too",
        37.5: "between 0 and 1",
        0.5: "compare a share with the sum of all",
    },
    "03.luck": {
        1 / 2: "with three there are more",
        5 / 6: "do not fit",
        1 / 36: "Any order is good on the first device",
        1 / 3: "how many of them fit?",
    },
    "04.peak": {5: "keeps every value", 2: "which its caller still holds", 12: "all four devices", 7: "third stage"},
    "04.together": {7: "would not fit whole", 25: "and round down"},
    "05.transfers": {4: "forward half", 16: "counts all experts", 3: "for one chosen expert"},
    "05.rows": {4: "rows of padding", 2: "numbers of experts", 11 / 28: "other way round", 5: "every expert has room"},
    "06.smallest": {
        8.75: "proportion to the larger point",
        18.4: "proportion to the smaller point",
        0.009675: "In milliseconds",
        5: "for each host more",
    },
    "06.clients": {
        6: "Nearly",
        6.95: "how many whole clients",
        1: "meanwhile all stops",
        16: "Each must come from another",
    },
    "07.bubble": {
        3 / 8: "idle time over working time",
        9: "how long a device idles",
        27.3: "between 0 and 1",
        8 / 11: "in which they work",
        1 / 4: "how many does the whole take",
        3 / 4: "without microbatches",
        0.1: "before the last device begins",
    },
    "07.peak": {
        64: "That is GPipe",
        32: "does not grow with the number",
        3: "then comes one more",
        1: "the last device",
        7: "how many is that",
    },
    "07.fewest": {
        140: "fewer will do",
        132: "Nearly",
        20: "With so few",
        152: "more than is needed",
    },
    "07.zero": {
        24: "do they all begin at the same time",
        33: "That is 1F1B",
        30: "its delay counts once",
        28: "when does the last of them begin",
    },
    "07.slow": {
        48: "the last device alone",
        36: "All of them have to",
        66: "four slow stages",
        41.25: "by the average",
        50: "before it begins",
    },
    "07.room": {
        "1f1b": "It needs room for 8",
        "seq1f1b": "it cuts sequences",
        "v-min": "with a bubble of 11.9%",
        "zb-v": "It needs room for 8",
        "half": "Write the name of a schedule",
        5: "Write the name of a schedule",
    },
    "08.bubble": {
        3 / 16: "idle time over working time",
        3 / 20: "how many turns does the last device wait",
        3 / 4: "in one piece",
        16 / 19: "in which they work",
        0.5: "take the place of microbatches",
    },
    "08.count": {
        1600: "Take the square root",
        10: "That is for two stages",
        math.sqrt(1700): "waits for nobody",
        30: "For which k",
    },
    "08.longest": {0: "Count from", 20: "fewest tokens before it"},
    "09.gather": {80: "has an eighth already", 10: "what it had before", 8: "How large is each part"},
    "09.sink": {8: "Nearly", 0: "multiplies by the same matrices", 4: "the gradient by a block's input"},
    "09.regather": {16: "Nearly", 7: "The forward pass gathers, too", 8: "Count A and a"},
    "09.bucket": {280: "Those are the gathers", 160: "alone", 480: "Nearly", 40: "Each exchange less"},
    "09.prefetch": {12: "first gather hide", 11: "computation is the slower one", 20: "in front of theirs"},
    "09.finish": {8: "holds up the next block", 0: "during the last reduction", 6: "Three of the four"},
    "09.pace": {4: "without gathering again", 15: "one for each parameter", 12: "Count A and a"},
    "09.bound": {7: "some of it hides", 6.3: "not the part of them that was visible", 1: "share one stream"},
    "10.at_most": {
        1 / 4: "the part of the path that would go",
        25: "the part of the path that would go",
        5 / 4: "Nearly",
        3 / 4: "other way round",
        8 / 7: "twice as fast",
        4: "the whole with the additions",
        2: "the row add_any",
    },
    "11.messages": {128: "one message for each node", 3: "Every host", 12: "How many hosts"},
    "12.received": {
        3.221: "what it holds afterwards",
        0.8053: "one quarter",
        4.832: "has 2 bytes",
        5: "Multiply sequences",
    },
    "12.inputs": {
        2.147: "one layer's",
        8.59: "divided over the model axis as well",
        137.4: "has 2 bytes",
        5: "A device has 1024 / 8 sequences",
    },
    "12.parameters": {
        12.88: "That is one pass",
        0.8053: "one block's",
        0.4027: "one block's",
        51.54: "and there are two passes",
        5: "times passes",
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
        said = capsys.readouterr().out
        assert isinstance(answer, str) or said == f"{name}: 'one' is a str; a number is wanted.\n"
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
