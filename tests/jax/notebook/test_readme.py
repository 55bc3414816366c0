"""The README's promises: its script runs as it stands, and what must come early does."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pathways_nb as pw
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_one_sentence_one_picture_one_cell_before_line_25() -> None:
    top = README.splitlines()[:25]
    assert any(line.startswith("![") for line in top)
    assert any("%load_ext pathways_nb" in line for line in top)
    assert sum(line.startswith("```") for line in top) >= 2


def test_the_first_cell_gives_what_it_says(fresh_python: Callable[..., Any]) -> None:
    done = fresh_python(BLOCKS[0].replace("%load_ext pathways_nb\n", ""))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].endswith("56.0")


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
