"""How long the quickstart's first training step waits for compilers: in a first kernel, and in a second one.

Both are kernels of their own with one cache of compiled programs, empty in the first. They run the cells of notebook 01
up to the training; nothing is compiled after its first step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import nbformat

from pathways_nb.bench import lab
from pathways_nb.bench.stopwatch import spread
from pathways_nb.notebook.demo import execute

ROUNDS = 3
_NOTEBOOK = lab.ROOT / "notebooks" / "01_quickstart.ipynb"
_STEP = """
import json, time
began = time.perf_counter()
with pw.record("first step") as first_step:
    params, state, value = train_step(params, state, *batch())
    float(value)
seconds = time.perf_counter() - began
compiled = [run.events.of_kind("compile") for run in (pw.runs["figure2"], first_step)]
print(json.dumps({"step": seconds, "compile": sum(float((one["end"] - one["start"]).sum()) for one in compiled)}))
"""
"""The first step alone, in place of the cell that trains."""
_NOT_INHERITED = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")


def run() -> dict[str, Any]:
    """Return the seconds of compiling with an empty cache, summed over nodes, and of a second kernel's first step."""
    first, second = [], []
    for _ in range(ROUNDS):
        with TemporaryDirectory() as cache:
            first.append(_kernel(cache))
            second.append(_kernel(cache))
    figures = {
        "compile_seconds_quickstart": median(one["compile"] for one in first),
        "warm_first_step_seconds": median(one["step"] for one in second),
    }
    detail = {
        "seconds of compiling, over nodes, with an empty cache": spread([one["compile"] for one in first]),
        "seconds of the first step, with an empty cache": spread([one["step"] for one in first]),
        "seconds of compiling, over nodes, in a second kernel": spread([one["compile"] for one in second]),
        "seconds of the first step, in a second kernel": spread([one["step"] for one in second]),
    }
    return {"figures": figures, "detail": detail}


def _kernel(cache: str) -> dict[str, float]:
    """Return the seconds of compiling and of the first step in a fresh kernel.

    Args:
        cache: the folder in which programs and this project's other caches are kept.
    """
    content = nbformat.read(_NOTEBOOK, as_version=4)
    train = next(at for at, cell in enumerate(content.cells) if "--run train" in cell.source)
    content.cells = [*content.cells[:train], nbformat.v4.new_code_cell(_STEP)]
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache, "PYTHONPATH": lab.SOURCES}):
        for name in _NOT_INHERITED:
            os.environ.pop(name, None)
        execute(content, Path(cache))
    (said,) = (output.text for output in content.cells[-1].outputs if output.get("name") == "stdout")
    return dict(json.loads(said))
