"""The README's promises: its script runs as it stands, and what must come early does."""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pathways_nb as pw
from pathways_nb.attach import simulator
from pathways_nb.cost.model import CostModel
from tests.conftest import ROOT

TRACES = ROOT / "tests/recorded_traces"
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
USE = README.partition("## How to use it")[2].partition("As a script")[0]
TYPED = re.compile(
    r"(controller = |with |if |pw\.|y\.|run\.|program\.|tenant\.|controller\.|float|np\.)[^…]*[(\[][^…]*"
)
SNIPPETS = [code for code in dict.fromkeys(re.findall(r"`([^`]+)`", USE)) if TYPED.fullmatch(code)]
"""What is said to be typed and has no part left out; ``%`` and ``python -m`` have tests of their own."""
BY_HAND = {"pw.runs[NAME].view.selection", "run.to_pandas()"}
"""What needs a person at the figure, and what needs pandas, which the tests do not install."""


def test_one_sentence_one_picture_one_cell_before_line_25() -> None:
    top = README.splitlines()[:25]
    assert any(line.startswith("![") for line in top)
    assert any("%load_ext pathways_nb" in line for line in top)
    assert sum(line.startswith("```") for line in top) >= 2


def test_the_picture_is_what_the_first_cell_draws() -> None:
    (path,) = re.findall(r"^!\[.*\]\((.*)\)$", README.partition("```python")[0], re.MULTILINE)
    with Image.open(ROOT / path) as picture:
        said = picture.text["cell"]  # type: ignore[attr-defined]
    assert said == BLOCKS[0].rstrip("\n"), "take it again: python docs/pictures/take.py readme"


def test_the_moving_picture_is_of_a_cell_that_runs_and_is_small(fresh_python: Callable[..., Any]) -> None:
    (path,) = re.findall(r"^!\[.*\]\((.*\.webp)\)$", README, re.MULTILINE)
    assert (ROOT / path).stat().st_size <= 2_000_000
    with Image.open(ROOT / path) as picture:
        assert picture.n_frames >= 10  # type: ignore[attr-defined]
        cell = picture.getexif()[0x010E]
    # Where it is taken, the cell is the same: else take it again with `python docs/pictures/take.py live`.
    assert cell in (ROOT / "docs/pictures/take.py").read_text("utf-8").replace('LIVE = """', "")
    done = fresh_python(cell.replace("%load_ext pathways_nb\n", ""))
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_readme_says_where_the_live_page_is() -> None:
    assert "build/docs/html/index.html" in README
    assert "build/docs/html" in (ROOT / "Makefile").read_text("utf-8")


def test_the_first_cell_gives_what_it_says(fresh_python: Callable[..., Any]) -> None:
    done = fresh_python(BLOCKS[0].replace("%load_ext pathways_nb\n", ""))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].endswith("56.0")


def test_the_first_cell_names_the_controller_of_which_the_text_speaks(fresh_python: Callable[..., Any]) -> None:
    (remove,) = (code for code in SNIPPETS if code.startswith("controller.remove"))
    cell = BLOCKS[0].replace("%load_ext pathways_nb\n", "")
    done = fresh_python(f"{cell}\n{remove}\nprint(controller.status())")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "lost: island 1, dev 0–3" in done.stdout


def test_the_script_trains_and_leaves_its_files(fresh_python: Callable[..., Any], tmp_path: Path) -> None:
    assert sum(bool(line) for line in BLOCKS[1].splitlines()) <= 30, "lines of code"
    done = fresh_python(f"import os\nos.chdir({str(tmp_path)!r})\n" + BLOCKS[1])
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if re.fullmatch(r"\d+ [\d.]+", line)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
    assert "train: makespan" in done.stdout
    run = pw.load(tmp_path / "train.run")
    assert [(program.graph.name, program.runs) for program in run.programs] == [("step", 50)]
    assert json.loads((tmp_path / "train.json").read_text())["traceEvents"]
    assert ET.parse(tmp_path / "train.svg").getroot().attrib["width"] == "6in"


@pytest.fixture(scope="module")
def typed() -> Iterator[dict[str, Any]]:
    """What the snippets take for granted: two islands, a program with a node "a", runs of it, two schedules."""
    controller = pw.attach("cpu", islands=2, devices_per_island=4)
    place = pw.virtual_slice(4, island=0, name="place")

    @pw.jit(on=place)
    def a(v: Any) -> Any:
        return v.sum()

    x, program = np.arange(8, dtype="f4"), pw.program(lambda v: a(v), name="program")
    with pw.attach("sim:tpu_v3:1x4"):
        simulated = program.run(x)
    real = program.run(x)
    runs = {"run": real, "real": real, "simulated": simulated, "run_a": real, "run_b": simulated}
    schedules = {"a": pw.schedule("gpipe", devices=4, microbatches=8), "b": pw.schedule("1f1b", 4, 8)}
    yield {"pw": pw, "np": np, "controller": controller, "place": place, "x": x, "y": a(x), "tree": [a(x)],
           "step": pw.fsdp(lambda w, x: (w.sum() * x).mean(), x, on=place, batch=(x,)),
           "program": program, "tenant": pw.client("ann"), "NAME": "train", "fn": lambda n, policy: {"n": n},
           "rank0": pw.load(TRACES / "gloo_rank0.json.gz"), "rank1": pw.load(TRACES / "gloo_rank1.json.gz"),
           **runs, **schedules}  # fmt: skip
    controller.close()


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) > 40
    assert set(SNIPPETS) >= BY_HAND


@pytest.mark.parametrize("code", [code for code in SNIPPETS if code not in BY_HAND])
def test_what_the_readme_says_to_type_runs(
    typed: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(pw.runs, "train", typed["run"])
    monkeypatch.setattr(
        simulator, "_measurer", [simulator._measurer[0]._replace(model=lambda session: CostModel.of("tpu_v3"))]
    )
    typed["run"].save("a.run")
    if code.startswith("pw.load"):
        (tmp_path / "trace.json.gz").write_bytes((TRACES / "torch_cpu_step.json.gz").read_bytes())
        profile = ROOT / "datasets/pathways_datasets/recorded/h200_plain_step.xplane.pb.gz"
        (tmp_path / "host.xplane.pb").write_bytes(gzip.decompress(profile.read_bytes()))
    if code.startswith("pw.restore_state"):
        pw.save_state("step100", typed["tree"])
    if code.startswith('pw.attach("sim"'):  # else it would stay attached
        code = f"with {code}:"
    if code.startswith('pw.attach("ray"'):  # its processes are the cluster's tests' to start
        called = ast.parse(code, mode="eval").body
        assert {keyword.arg for keyword in called.keywords} <= inspect.signature(pw.attach).parameters.keys()
        return
    exec(f"{code} pass" if code.endswith(":") else f"{code}: pass" if code.startswith("if ") else code, dict(typed))
    pw.style("screen")
