"""A planned step as a run: its streams, its memory by category, its files and its comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.parallel.fsdp.operation_costs import TICK
from pathways_nb.parallel.fsdp.step_planner import Planner
from pathways_nb.parallel.fsdp.timeline import StepTimeline
from tests.jax.fsdp.test_planner import CHIP, step


@pytest.fixture(scope="module")
def planner() -> Planner:
    return step().planner(chip=CHIP)


@pytest.fixture(scope="module")
def planned(planner: Planner) -> StepTimeline:
    return planner.timeline(planner.per_block())


def test_streams_and_waits_are_ops_of_one_launch(planned: StepTimeline) -> None:
    run = planned.run
    assert run.summary().makespan == pytest.approx(planned.seconds)
    ops = run.ops
    assert ops.joined == 1.0
    assert ops.of(kind="collective").seconds == pytest.approx(planned.exchanged)
    assert ops.of(kind="wait").seconds == pytest.approx(planned.waited)
    assert ops.of(kind="compute").seconds + ops.of(kind="copy").seconds == pytest.approx(planned.compute * TICK)
    assert set(ops.of(kind="compute")["name"]) == {"forward", "backward"}
    causes = set(ops.of(kind="wait")["source"])
    assert causes <= set(ops.of(kind="collective")["name"]) | {"all-reduce the loss"}


def test_streams_of_their_own_are_told_apart(planner: Planner) -> None:
    three = Planner(planner.traced, planner.mode, planner.model, planner.sizes, streams=3)
    ops = three.timeline(three.per_block()).run.ops
    assert set(ops["kind"]) == {"compute", "copy", "gather", "reduce", "wait"}
    assert all(name.startswith(("gather ", "regather ")) for name in ops.of(kind="gather")["name"])


def test_collectives_have_different_names(planner: Planner) -> None:
    for plan in (planner.per_parameter(), planner.per_block(), planner.greedy()):
        graph = planner.timeline(plan).graph
        labels = [graph.label(op) for op in graph.collectives]
        assert len(set(labels)) == len(labels)


def test_the_memory_of_the_run_is_that_of_the_curve(planned: StepTimeline) -> None:
    (held,) = planned.run.memory("category")
    assert held.peak.bytes == planned.memory.peak
    most = {name: int(sizes.max()) for name, sizes in planned.memory.bytes.items()}
    found = dict(zip(held.names, held.levels.max(0).tolist(), strict=True))
    assert found == {name: size for name, size in most.items() if size}


def test_the_summary_has_the_bound_beside_what_is_exposed(planned: StepTimeline) -> None:
    said = repr(planned)
    assert "16 × gpu_h100_sxm" in said
    assert " exposed (bound " in said
    assert " ms for regather layers.0.down +8" in said


def test_a_planned_step_is_saved_and_read(planned: StepTimeline, tmp_path: Path) -> None:
    planned.run.save(tmp_path / "planned.run")
    again = pw.load(tmp_path / "planned.run")
    assert list(again.ops) == list(planned.run.ops)
    assert again.memory("category")[0].peak == planned.run.memory("category")[0].peak


def test_two_plans_are_compared_with_their_streams(planner: Planner, planned: StepTimeline, tmp_path: Path) -> None:
    single = planner.timeline(planner.per_parameter())
    both = pw.compare(planned.run, single.run)
    assert both.difference.table["longer"].tolist() == pytest.approx([single.seconds - planned.seconds])
    assert len(both.ops) == len(planned.run.ops) + len(single.run.ops)
    np.testing.assert_array_equal(both.ops.of(island=1)["name"], single.run.ops["name"])
    both.savefig(tmp_path / "both.svg", show=("ops", "categories"))
    text = (tmp_path / "both.svg").read_text()
    for words in ("per block (simulated)", "per parameter (simulated)", "collectives", "gathered", "activations"):
        assert words in text


def test_the_picture_of_a_step_shows_streams_and_categories(planned: StepTimeline, tmp_path: Path) -> None:
    planned.savefig(tmp_path / "planned.svg")
    text = (tmp_path / "planned.svg").read_text()
    for words in ("dev 0 · compute", "dev 0 · collectives", "temporaries", "exposed (bound"):
        assert words in text
