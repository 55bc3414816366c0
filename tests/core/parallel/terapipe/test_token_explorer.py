"""The token-slice explorer without a notebook: what it shows equals the planner's answers, and errors are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.errors import UsageError
from pathways_nb.parallel.terapipe.problem import Problem
from pathways_nb.parallel.terapipe.slice_costs import Hinge
from pathways_nb.parallel.terapipe.slicing_picture import SlicingPicture, nearly_equal
from pathways_nb.parallel.terapipe.token_explorer import TokenExplorer
from tests.core.parallel.terapipe.cases import hinge

SMALL: dict[str, Any] = {"length": 256, "stages": 8, "granularity": 16, "uniform": 5}


@pytest.fixture
def explorer() -> TokenExplorer:
    return pw.terapipe.explore(**SMALL)


@pytest.mark.parametrize(("choice", "value"), [("stages", 20), ("length", 512), ("batch", 3), ("granularity", 8),
                                               ("per_pair", 3e-8), ("floor", 0.0), ("fixed", 0.001)])  # fmt: skip
def test_a_choice_changes_the_optimum_to_that_of_plan(explorer: TokenExplorer, choice: str, value: float) -> None:
    before = explorer.picture
    setattr(explorer, choice, value)
    assert explorer.picture is not before
    cost = Hinge(explorer.floor, explorer.fixed, explorer.per_token, explorer.per_pair)
    sizes = {name: getattr(explorer, name) for name in ("length", "batch", "stages", "granularity")}
    assert explorer.planned == pw.terapipe.plan(cost, **sizes)
    assert explorer.picture is explorer.picture, "it is planned once"


def test_rows_are_the_slices_and_their_seconds(explorer: TokenExplorer) -> None:
    picture = explorer.picture
    best, even, own = picture.rows
    assert tuple(best.tokens) == explorer.planned.token_slices
    assert tuple(own.tokens) == (64, 48, 48, 48, 48), "nearly equal, the longer ones first"
    assert len(set(even.tokens.tolist())) == 1
    assert len(even.tokens) == min(explorer.planned.uniform, key=explorer.planned.uniform.__getitem__)
    for row in picture.rows:
        np.testing.assert_array_equal(row.context, [sum(row.tokens[:n]) for n in range(len(row.tokens))])
        np.testing.assert_allclose(row.seconds, Hinge()(1, row.tokens, row.context), rtol=1e-14)


@pytest.mark.parametrize("batch", [1, 3])
def test_terms_add_up_to_the_latency(batch: int) -> None:
    explorer = pw.terapipe.explore(**SMALL, batch=batch)
    picture, planned = explorer.picture, explorer.planned
    assert picture.optimum is not None
    assert picture.optimum.latency == pytest.approx(planned.latency, rel=1e-12)
    assert picture.optimum.slices == planned.slice_count
    problem = Problem(256, batch, 8, 16)
    for one in picture.uniform:
        tokens = nearly_equal(problem, one.slices)
        seconds = Hinge()(1, np.array(tokens), np.cumsum(tokens) - tokens)
        assert one.sum == pytest.approx(batch * seconds.sum(), rel=1e-12)
        assert one.waits == pytest.approx((explorer.stages - 1) * seconds.max(), rel=1e-12)
    assert {one.slices for one in picture.uniform} == {1, 2, 4, 5, 8, 16}
    assert picture.best_uniform.latency == min(one.latency for one in picture.uniform if one.slices != 5)


def test_the_surface_has_the_cost_of_every_slice_that_fits(explorer: TokenExplorer) -> None:
    surface = explorer.picture.surface
    assert surface is not None
    assert (surface.tokens + surface.context <= 256).all()
    np.testing.assert_allclose(surface.seconds, Hinge()(1, surface.tokens, surface.context), rtol=1e-14)
    shown = set(zip(surface.tokens.tolist(), surface.context.tolist(), strict=True))
    assert {(16, 0), (16, 240), (explorer.planned.token_slices[0], 0)} <= shown


def test_groups_of_several_sequences_are_rows() -> None:
    explorer = pw.terapipe.explore(
        hinge(0.02, 0.001, 1e-5, 1e-9), length=64, batch=7, stages=2, granularity=32, uniform=1
    )
    own, expected = explorer.picture.rows[:-2], dict.fromkeys(explorer.planned.scheme)
    assert [tuple(row.tokens) for row in own] == [tokens for _, tokens in expected]
    assert sum(int(row.heading.split(" group")[0].split(" · ")[-1]) for row in own) == len(explorer.planned.scheme)


def test_a_table_gives_its_length_and_is_looked_up() -> None:
    table = np.full((3, 3), 1.0)
    table[2] = 7.0
    explorer = pw.terapipe.explore(table, stages=3, granularity=10, uniform=1)
    assert explorer.length == 30
    assert explorer.choices == ("stages", "length", "batch", "granularity", "uniform")
    assert explorer.planned == pw.terapipe.plan(table, length=30, stages=3, granularity=10)
    explorer.length = 20
    assert sum(explorer.planned.token_slices) == 20
    explorer.granularity = 5
    assert repr(explorer) == (
        "the table of costs has 30 tokens in units of 10: take a length of at most 30, and a granularity that is a "
        "multiple of 10."
    )


def test_a_long_sequence_is_planned_in_longer_units_and_says_so() -> None:
    explorer = pw.terapipe.explore(length=8192, granularity=1, stages=40, uniform=64)
    assert explorer.picture.note == (
        "Planned in units of 16 tokens, so that a change is shown at once; pw.terapipe.plan takes granularity=1."
    )
    assert all(tokens % 16 == 0 for tokens in explorer.planned.token_slices)


@pytest.mark.parametrize(
    ("choice", "value", "says"),
    [
        ("length", 250, "length=250 is no multiple of granularity=16"),
        ("uniform", 17, "uniform=17: 256 tokens in units of 16 make 1 to 16 slices."),
        ("stages", 0, "stages=0"),
        ("floor", float("nan"), "nan"),
    ],
)
def test_what_cannot_be_planned_is_told_and_can_be_mended(
    explorer: TokenExplorer, choice: str, value: Any, says: str
) -> None:
    before = getattr(explorer, choice)
    setattr(explorer, choice, value)
    assert says in explorer.picture.error
    assert says in repr(explorer)
    assert explorer.picture.rows == ()
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        _ = explorer.planned
    setattr(explorer, choice, before)
    assert explorer.picture.error == ""


def test_a_cost_that_fails_is_told() -> None:
    def cost(sequences: Any, tokens: Any, context: Any) -> float:
        raise ZeroDivisionError("tokens over nothing")

    explorer = pw.terapipe.explore(cost, **SMALL)
    assert "tokens over nothing" in repr(explorer)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": 0.1}, "terapipe.explore: there is no 'start' to choose; all: floor, fixed, per_token, per_pair."),
        ({"cost": hinge(0.1, 0.1, 0, 0), "fixed": 1.0},
         "terapipe.explore: there is no 'fixed' to choose; a cost has no constants."),
    ],
)  # fmt: skip
def test_constants_that_are_not_there_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        pw.terapipe.explore(**given)
    assert str(refused.value) == says


def test_the_picture_is_written(explorer: TokenExplorer, tmp_path: Path) -> None:
    explorer.savefig(tmp_path / "slices.svg")
    text = (tmp_path / "slices.svg").read_text()
    assert "yours, uniform, 5 slices" in text
    explorer.length = 250
    explorer.savefig(tmp_path / "refused.svg")
    assert "no multiple of" in (tmp_path / "refused.svg").read_text()


def test_a_picture_without_slices_is_its_error() -> None:
    assert repr(SlicingPicture(error="no")) == "no"
