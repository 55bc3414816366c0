"""The walks of CONTRIBUTING.md work as they are written: what is to be added is added, and then tried out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.conftest import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
BLOCKS = re.findall(r"```(python|json)\n(.*?)```", TEXT, re.DOTALL)
FILE = re.compile(r"# (?:widgets/)?(pathways_\w+(?:/\w+)+)\.py\n")
ADD = """\
import importlib, sys, types

def add(name, code):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        room, _, last = name.rpartition(".")
        module = sys.modules[name] = types.ModuleType(name)
        setattr(importlib.import_module(room), last, module)
    exec(compile(code, name, "exec"), vars(module))

def add_chips(entries):
    from pathways_nb.cost.hardware import tables
    tables._table()["chips"].update(entries)
"""


def statement(kind: str, block: str) -> str:
    """Python that does what a reader of the block is to do."""
    if kind == "json":
        return f"add_chips({block})"
    if match := FILE.match(block):
        return f"add({match[1].replace('/', '.')!r}, {block!r})"
    return block


def test_there_are_five_walks() -> None:
    walks = re.findall(r"^## A (.*)", TEXT, re.MULTILINE)
    assert walks == ["scheduling policy", "pipeline schedule", "chip", "view", "notebook"]


def test_every_walk_can_be_walked(fresh_python: Callable[..., Any]) -> None:
    done = fresh_python(ADD + "\n".join(statement(*block) for block in BLOCKS))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "11.rounds: right." in done.stdout
    assert "waves, 4 devices × 8 microbatches: sound" in done.stdout
